"""Statistics: numbers that can be counted by hand, the same in parts as in the whole."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from unmask.data.corpus import statistics
from unmask.data.corpus.corpus import open_corpus
from unmask.data.corpus.statistics import BINS, OFTEN, SAMPLED, CorpusReport, length_bins

# Two documents, of 3 + 3 + 3 tokens (the word "zebra" is unknown) and of 1, and a blank record.
TEXT = '{"text": "the cat sat\\nthe cat sat\\na zebra !"}\n{"text": " "}\n{"text": "爱"}\n'


def noted(*sentences: str) -> CorpusReport:
    """Of a shard that has these sentences and nothing else."""
    found = CorpusReport(sentences=len(sentences))
    found.note_sentences(Counter(sentences))
    return found


def joined(*parts: CorpusReport) -> CorpusReport:
    whole = CorpusReport()
    for part in parts:
        whole.add(part)
    return whole


def test_lengths_are_counted_by_powers_of_two():
    found = length_bins(np.array([1, 2, 3, 4, 7, 8, 900]))
    assert found[:4] == [1, 2, 2, 1]
    assert found[9] == 1  # 512 to 1023
    assert (len(found), sum(found)) == (BINS, 7)


def test_the_statistics_of_a_corpus_are_those_counted_by_hand(prepared):
    folder = prepared({"a.jsonl": TEXT})
    found = open_corpus(folder).statistics
    assert (found.records, found.documents, found.single, found.empty) == (2, 2, 1, 0)
    assert (found.sentences, found.tokens, found.unknown) == (4, 10, 1)
    assert found.characters == len("the cat sat\nthe cat sat\na zebra !") + 1
    assert found.sentence_bins[:3] == [1, 3, 0]  # lengths 3, 3, 3 and 1
    assert found.document_bins[:5] == [1, 0, 0, 1, 0]  # lengths 9 and 1


def test_a_report_gives_shares_of_the_whole(prepared):
    report = open_corpus(prepared({"a.jsonl": TEXT})).statistics.report()
    assert report["tokens a sentence"] == 10 / 4
    assert report["unknown share"] == 1 / 10
    assert report["single share"] == 1 / 2
    assert report["duplicate share"] == 1 / 4
    assert report["often"] == [("the cat sat", 2)]


def test_nothing_at_all_has_a_report_too():
    report = CorpusReport().report()
    assert [report[name] for name in report if name.endswith("share")] == [0, 0, 0]


def test_a_sentence_without_a_token_is_counted_as_empty(prepared):
    found = open_corpus(prepared({"a.txt": "the cat\n\x01\n\x02\n"})).statistics
    assert (found.records, found.empty, found.sentences, found.documents) == (3, 2, 1, 1)


@pytest.mark.parametrize(
    ("sentences", "share"),
    [
        ([], 0),
        (["a"], 0),
        (["a", "b", "c"], 0),
        (["a", "a"], 1 / 2),
        (["a", "a", "a", "b"], 2 / 4),
        (["a", "a", "b", "b", "c"], 2 / 5),
        ([str(i % 40) for i in range(100)], 60 / 100),  # more are repeated than kept by name
        (["x" * 300, "x" * 300, "y"], 1 / 3),  # too long to be kept by name
        ([f"{'x' * 250}{i % 2}" for i in range(6)], 4 / 6),  # ... and alike at the beginning
    ],
    ids=str,
)
def test_the_share_of_sentences_seen_before_is_exact_where_there_are_few(sentences, share):
    assert noted(*sentences).duplicate_share == pytest.approx(share)


def test_a_sentence_that_two_shards_have_is_a_duplicate():
    whole = joined(noted("a", "b"), noted("a", "c"))
    assert whole.duplicate_share == 1 / 4


def test_duplicates_of_shards_are_those_of_the_whole():
    whole = noted(*["a"] * 6, "b")
    parts = joined(noted(*["a"] * 5), noted("a", "b"))
    assert whole.duplicate_share == pytest.approx(5 / 7)
    assert parts.duplicate_share == pytest.approx(5 / 7)


def test_shards_add_up_to_the_whole(prepared):
    lines = [f"the {'cat ' * (i % 9 + 1)}sat. a dog {'!' * (i % 4)}\n" for i in range(200)]
    one = open_corpus(prepared({"a.txt": "".join(lines)}, "one", shard_characters=2**20))
    many = open_corpus(prepared({"a.txt": "".join(lines)}, "many", shard_characters=1000))
    assert (len(one.shards), len(many.shards) > 3) == (1, True)
    left = {"often"}  # each shard names its own; a test above is about them
    for name in set(vars(one.statistics)) - left:
        assert getattr(many.statistics, name) == getattr(one.statistics, name), name


def test_parts_add_up_in_any_grouping():
    parts = [noted(*[f"{i} {j % 3}" for j in range(9)]) for i in range(4)]
    left = joined(joined(parts[0], parts[1]), joined(parts[2], parts[3]))
    assert vars(left) == vars(joined(*parts))


def test_the_sample_of_a_shard_stays_bounded_however_many_sentences_it_has():
    sizes = [len(noted(*map(str, range(count))).sample) for count in (100, SAMPLED, 20_000)]
    assert sizes[:2] == [100, SAMPLED]
    assert SAMPLED / 4 < sizes[2] <= SAMPLED


def test_the_sample_of_a_corpus_stays_bounded_however_many_shards_it_has(monkeypatch):
    monkeypatch.setattr(statistics, "MERGED", 300)
    whole = CorpusReport()
    for shard in range(20):
        whole.add(noted(*[f"{shard} {i}" for i in range(100)]))
        assert len(whole.sample) <= 300
    assert len(whole.sample) > 75


def test_the_sample_tells_the_share_of_duplicates_among_many_sentences():
    sentences = [f"sentence {i}" for i in range(10_000)]
    found = noted(*sentences, *sentences)
    assert len(found.sample) <= SAMPLED
    assert found.duplicate_share == pytest.approx(1 / 2, abs=0.03)


def test_a_thin_and_a_thick_sample_are_joined_as_thin_ones():
    many, few = noted(*map(str, range(20_000))), noted("19999", "new")
    whole = joined(few, many)
    assert whole.zeros == many.zeros > 0
    assert set(whole.sample) <= {*many.sample, *few.sample}
    assert all(int(mark, 16) % 2**whole.zeros == 0 for mark in whole.sample)


def test_the_sentences_repeated_most_are_kept_by_name_and_told_in_their_order():
    sentences = [f"s{i:02}" for i in range(30) for _ in range(i)]
    found = noted(*sentences).report()["often"]
    assert found == [(f"s{i}", i) for i in range(29, 29 - OFTEN, -1)]


def test_sentences_repeated_as_often_are_told_by_their_letters():
    found = noted(*"b b a a c c".split()).report()["often"]
    assert found == [("a", 2), ("b", 2), ("c", 2)]


def test_what_is_kept_by_name_is_short_and_stays_bounded():
    whole = CorpusReport()
    for shard in range(50):
        whole.add(noted(*[f"{shard} {i} {'long' * 100}" for i in range(20)] * 2))
    assert len(whole.often) <= 20 * OFTEN
    assert max(map(len, whole.often)) == 200


def test_often_is_in_falling_order_whatever_the_order_of_shards():
    one = joined(noted("a", "a"), noted("b", "b", "b")).report()["often"]
    other = joined(noted("b", "b", "b"), noted("a", "a")).report()["often"]
    assert one == other == [("b", 3), ("a", 2)]
    assert all(first[1] >= second[1] for first, second in pairwise(one))
