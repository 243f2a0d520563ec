"""Dev data that are split off the training data: how many, which, and what stays together."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.labelled.columns import Columns, Sample
from unmask.data.labelled.conll import read_sentences
from unmask.data.labelled.parallel import Pair
from unmask.data.labelled.split import split_records
from unmask.data.labelled.squad import Question
from unmask.data.read.lines import REFUSE
from unmask.tasks.classify import Classify
from unmask.tasks.ner import Ner, NerSettings
from unmask.tasks.qa import Qa
from unmask.tasks.translate import Translate


def samples(labels):
    return [Sample(f"text {i}", None, (label,), f"here:{i}") for i, label in enumerate(labels)]


def split(records, kind=Classify, *, share=0.1, seed=0, **how):
    strata = [kind.stratum(record) for record in records]
    return split_records(records, kind.groups(records), strata, share=share, seed=seed, **how)


def labels(records, places):
    return Counter(records[place].label[0] for place in places)


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(100, 0.1, 10), (40, 0.25, 10), (5, 0.1, 1), (14, 0.1, 1)]
)
def test_the_share_is_met_and_is_one_at_least(count, share, expected):
    found = split(samples("ab"[i % 2] for i in range(count)), share=share)
    assert len(found.dev) == expected
    assert sorted([*found.train, *found.dev]) == list(range(count))
    assert [*found.train] == sorted(found.train), "in the order of the file"
    assert found.facts == {
        "train": count - expected,
        "dev": expected,
        "share": share,
        "seed": 0,
    }


def test_every_label_keeps_its_share():
    records = samples("a" * 70 + "b" * 24 + "c" * 6)
    assert labels(records, split(records).dev) == {"a": 7, "b": 2, "c": 1}
    assert labels(records, split(records, share=0.5).dev) == {"a": 35, "b": 12, "c": 3}


def test_the_last_example_of_a_label_is_learned_from():
    records = samples("a" * 50 + "bcdefg")
    for seed in range(20):
        assert labels(records, split(records, share=0.5, seed=seed).dev).keys() == {"a"}


def test_another_seed_chooses_other_records():
    records = samples("ab" * 50)
    assert [*split(records).dev] == [*split(records).dev]
    assert {*split(records).dev} != {*split(records, seed=1).dev}


def test_the_order_of_the_records_is_irrelevant():
    records = samples("ab" * 50)
    mixed = random.Random(0).sample(records, len(records))
    before = {records[place].text for place in split(records).dev}
    assert {mixed[place].text for place in split(mixed).dev} == before


def test_most_records_stay_where_they_are_when_others_are_added():
    records = samples("ab" * 100)
    more = records + [Sample(f"new {i}", None, ("a",), "there") for i in range(20)]
    before = {records[place].text for place in split(records).dev}
    assert len(before & {more[place].text for place in split(more).dev}) >= 0.8 * len(before)


def test_equal_texts_are_never_in_both_parts():
    """Whatever their labels; a text that is repeated often stays together."""
    texts = [f"text {i % 13}" for i in range(60)] + ["often"] * 30
    records = [Sample(text, None, ("ab"[i % 2],), f"h:{i}") for i, text in enumerate(texts)]
    for seed in range(20):
        found = split(records, seed=seed, share=0.3)
        assert not {records[i].text for i in found.train} & {records[i].text for i in found.dev}
        assert found.repeated == 0
        assert len(found.train) + len(found.dev) == len(records)


def test_questions_about_one_passage_stay_together():
    records = [Question(f"{i}", f"q {i}", f"passage {i // 5}", (), "here") for i in range(200)]
    found = split(records, Qa)
    dev = Counter(records[place].context for place in found.dev)
    assert len(found.dev) == 20
    assert {*dev.values()} == {5}
    assert "40 groups are kept whole" in found.described()


def test_translations_of_one_sentence_stay_together():
    records = [Pair(f"source {i // 2}", f"target {i}", "here") for i in range(40)]
    dev = Counter(records[place].source for place in split(records, Translate).dev)
    assert [*dev.values()] == [2, 2]


def conll(path, documents, *, marked=True):
    """A file of documents with three sentences each; the last is the same in all of them."""
    text = ""
    for number in range(documents):
        text += "-DOCSTART- O\n\n" * marked
        text += "".join(f"john B-PER\nno{number}x{i} O\n\n" for i in range(2)) + "the O\nend O\n\n"
    path.write_text(text)
    return path


def test_sentences_of_one_document_stay_together(tmp_path):
    records = [*read_sentences(conll(tmp_path / "a", 20))]
    found = split(records, Ner)
    dev = Counter(records[place].document for place in found.dev)
    assert len(dev) == 2
    assert found.repeated == 2, "the sentence that all documents have is one to learn from"
    assert {*dev.values()} == {2}
    assert "2 more are skipped, because training has the same text" in found.described()


def test_a_file_of_one_document_is_divided_by_sentences(tmp_path):
    conll(tmp_path / "a", 20, marked=False)
    conll(tmp_path / "b", 20)
    files = [tmp_path / "a", tmp_path / "b"]
    read = Ner.read_files(files, Columns(), REFUSE, NerSettings())
    groups = Ner.groups([*read])
    assert len({group for group in groups[:60] if isinstance(group, tuple)}) == 41
    assert len({*groups[60:]}) == 20


def test_a_group_that_is_too_large_is_passed_over():
    records = samples("a" * 30)
    groups = ["large"] * 25 + [f"{i}" for i in range(5)]
    for seed in range(20):
        found = split_records(records, groups, [0] * 30, share=0.1, seed=seed)
        assert min(found.dev) >= 25


def test_the_smallest_group_is_taken_where_all_are_too_large():
    records, groups = samples("a" * 30), ["x"] * 12 + ["y"] * 10 + ["z"] * 8
    sizes = set()
    for seed in range(20):
        found = split_records(records, groups, [0] * 30, share=0.03, seed=seed)
        sizes.add(len(found.dev))
    assert sizes <= {8, 10}, "one group stays for training, whichever the seed says"


def test_what_cannot_be_divided_is_none():
    assert split(samples("a")) is None
    assert split(samples("abc")) is None, "each has a label of its own"
    records = samples("a" * 6)
    assert split_records(records, ["one"] * 6, [0] * 6, share=0.5, seed=0) is None
    assert split(records, only_training=range(6)) is None


def test_records_that_must_be_learned_from_are():
    records = samples("a" * 40)
    for seed in range(10):
        found = split(records, share=0.5, seed=seed, only_training=[3, 7])
        assert not {3, 7} & {*found.dev}
        assert len(found.dev) == 20


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc")), min_size=1, max_size=60),
    st.floats(0.01, 0.9),
    st.integers(0, 3),
)
def test_whatever_the_records_no_group_is_torn(pairs, share, seed):
    records = [Sample(f"{group}", None, (name,), "here") for group, name in pairs]
    found = split(records, share=share, seed=seed)
    if found is None:
        return
    train, dev = ({records[i].text for i in part} for part in (found.train, found.dev))
    assert train
    assert dev
    assert not train & dev
    assert len(found.train) + len(found.dev) == len(records)
