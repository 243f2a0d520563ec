"""Names: windows that lose no word, tags that spell names, scores that are CoNLL's."""

import numpy as np
import pytest
import seqeval.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from unmask.data.labelled.columns import Columns
from unmask.data.labelled.conll import Entity, Sentence, entities_of_tags, sentence_of
from unmask.data.read.lines import REFUSE
from unmask.infer.answering import answer_records
from unmask.system.errors import DataError
from unmask.tasks.forward import LiveForward, scores_of
from unmask.tasks.ner import FoundEntities, FoundEntity, Ner, NerSettings
from unmask.text.tokens import Tokenizers

TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def sentence(text, *entities, document=0):
    """Words with a space between them; entities as (label, first word, last word + 1)."""
    at, words = 0, []
    for word in text.split():
        words.append((at, at + len(word)))
        at += len(word) + 1
    named = tuple(Entity(words[a][0], words[b - 1][1], label) for label, a, b in entities)
    return Sentence(text, tuple(words), named, "here:1", document)


JOHN = sentence("john smith lives in paris .", ("PER", 0, 2), ("LOC", 4, 5))


@pytest.fixture
def task():
    return Ner(NerSettings(), TAGS)


def windows_of(task, some, tokenizer, limit=32):
    return [found for _, found in task.windows(some, Tokenizers(tokenizer, limit))]


def test_a_word_is_judged_by_its_first_piece(task, words):
    ((window,),) = windows_of(task, [sentence("unaffable john", ("PER", 1, 2))], words)
    tokens = [words.vocabulary.tokens[i] for i in window.ids]
    assert tokens == ["[CLS]", "un", "##aff", "##able", "john", "[SEP]"]
    assert list(window.places) == [1, 4]
    assert window.truth == [0, 3]


def test_a_word_of_which_nothing_is_left_still_has_a_place(task, words):
    """A zero-width space is dropped by the tokenizer; the word must not vanish."""
    text = "john ​ smith"
    own = Sentence(text, ((0, 4), (5, 6), (7, 12)), (), "here:1")
    ((window,),) = windows_of(task, [own], words)
    assert len(window.places) == 3
    assert window.ids[window.places[1]] == words.vocabulary.unknown


@pytest.mark.parametrize("length", [1, 9, 10, 11, 30, 95])
@pytest.mark.parametrize("stride", [0, 4])
def test_of_a_long_sentence_every_word_is_judged_once(words, length, stride):
    task = Ner(NerSettings(stride=stride), TAGS)
    long = sentence(" ".join(["john", "unaffable", "cat"][i % 3] for i in range(length)))
    (windows,) = windows_of(task, [long], words, limit=12)
    assert sorted(word for window in windows for word in window.metadata) == list(range(length))
    for window in windows:
        assert len(window.ids) <= 12
        for place, word in zip(window.places, window.metadata, strict=True):
            first = ["john", "un", "cat"][word % 3]
            assert words.vocabulary.tokens[window.ids[place]] == first


def test_a_word_is_judged_where_most_is_shown_around_it(words):
    task = Ner(NerSettings(stride=6), TAGS)
    (windows,) = windows_of(task, [sentence("cat " * 20)], words, limit=12)
    for window in windows[1:-1]:
        for place in window.places:
            assert 2 <= place - 1 < 8  # of ten: not at an edge


def test_neighbours_of_a_document_are_shown_and_not_judged(words):
    task = Ner(NerSettings(context=2), TAGS)
    some = [
        sentence("the cat sat", document=1),
        sentence("john lives", ("PER", 0, 1), document=1),
        sentence("a dog", document=1),
        sentence("paris", ("LOC", 0, 1), document=2),
    ]
    found = windows_of(task, some, words)
    shown = [[words.vocabulary.tokens[i] for i in w.ids[1:-1]] for (w,) in found]
    assert shown == [
        ["the", "cat", "sat", "john", "lives"],
        ["cat", "sat", "john", "lives", "a", "dog"],
        ["john", "lives", "a", "dog"],
        ["paris"],
    ]
    assert [list(w.places) for (w,) in found] == [[1, 2, 3], [3, 4], [3, 4], [1]]
    assert found[1][0].truth == [3, 0]


def test_the_loss_is_over_words_and_not_over_pieces(task, network_for, words):
    network = network_for(task)
    ((window,),) = windows_of(task, [sentence("unaffable john", ("PER", 1, 2))], words)
    batch = task.batch([window], Tokenizers(words, 32))
    scores = scores_of(network, batch)
    assert batch.counts == {"ner": 2}
    expected = F.cross_entropy(scores, torch.tensor([0, 3]), reduction="sum")
    torch.testing.assert_close(task.loss(scores, batch), expected)


def test_names_are_stretches_of_the_text(task, words):
    scores = np.full((6, 5), -5.0, np.float32)
    for word, tag in enumerate([3, 4, 0, 0, 1, 0]):
        scores[word, tag] = 5.0
    answer = task.decode(
        JOHN, [type("W", (), {"metadata": range(6)})], [scores], Tokenizers(words, 32)
    )
    assert [(e.label, e.text, e.start, e.end) for e in answer.entities] == [
        ("PER", "john smith", 0, 10),
        ("LOC", "paris", 20, 25),
    ]
    assert answer.tags == ("B-PER", "I-PER", "O", "O", "B-LOC", "O")
    assert all(e.probability > 0.99 for e in answer.entities)


def test_the_answer_to_a_long_sentence_has_a_tag_for_every_word(task, network_for, words):
    long = sentence("john smith lives in paris . " * 20)
    network = network_for(task)
    ((_, whole),) = answer_records(LiveForward(network), Tokenizers(words, 16), task, [long])
    assert len(whole.tags) == 120


def test_a_plain_text_is_cut_into_words_as_bert_does():
    found = sentence_of("John lives in Paris, 中国!", "here:1")
    assert [found.text[a:b] for a, b in found.words] == [
        "John", "lives", "in", "Paris", ",", "中", "国", "!",
    ]  # fmt: skip


tag = st.sampled_from(TAGS)


@given(st.lists(st.lists(st.tuples(tag, tag), min_size=1, max_size=8), min_size=1, max_size=5))
@settings(deadline=None)
def test_names_are_scored_as_seqeval_does(pairs):
    truth = [[t for t, _ in some] for some in pairs]
    said = [[s for _, s in some] for some in pairs]
    task = Ner(NerSettings(), TAGS)
    records, found = [], []
    for right, claimed in zip(truth, said, strict=True):
        own = sentence(
            " ".join("w" for _ in right), *((b, a, c) for a, c, b in entities_of_tags(right))
        )
        records.append(own)
        names = [
            FoundEntity(label, "", own.words[a][0], own.words[b - 1][1], 1.0)
            for a, b, label in entities_of_tags(claimed)
        ]
        found.append(FoundEntities(tuple(names), tuple(claimed)))
    scores = task.score(records, found)
    for name, metric in (
        ("f1", seqeval.metrics.f1_score),
        ("precision", seqeval.metrics.precision_score),
        ("recall", seqeval.metrics.recall_score),
    ):
        assert scores[name] == pytest.approx(float(metric(truth, said, zero_division=0)))


def test_a_label_seen_only_in_held_out_data_is_named(task):
    with pytest.raises(DataError, match="here:1: unknown label 'ORG'.*not occur in the training"):
        task.check([sentence("john", ("ORG", 0, 1))])


def test_without_names_there_is_nothing_to_learn():
    with pytest.raises(DataError, match="here:1: no entity in 2 sentences"):
        Ner.learn(NerSettings(), [sentence("a cat"), sentence("a dog")])


def test_tags_are_learned_from_labels():
    assert Ner.learn(NerSettings(), [JOHN]).tags == TAGS


def test_an_inside_that_begins_a_name_is_refused_or_on_demand_taken_for_a_beginning(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("john B-PER\nlives O\nin O\nparis I-LOC\n\njohn B-PER\nsmith B-PER\n")
    with pytest.raises(DataError, match=r"a\.conll:4: 'I-LOC' after O.*task\.lenient=true"):
        list(Ner.read([path], Columns(), REFUSE, NerSettings()))
    first, second = Ner.read([path], Columns(), REFUSE, NerSettings(lenient=True))
    assert [entity.label for entity in first.entities] == ["PER", "LOC"]
    assert len(second.entities) == 2, "and a B- still begins one"


def test_no_sentence_is_shown_beside_those_of_another_file(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text("john B-PER\n\nsmith B-PER\n\n-DOCSTART- O\n\nparis B-LOC\n")
    paths = [tmp_path / "one", tmp_path / "two"]
    found = list(Ner.read_files(paths, Columns(), REFUSE, NerSettings(context=8)))
    assert [sentence.text for sentence in found] == ["john", "smith", "paris"] * 2
    assert [sentence.document for sentence in found] == [0, 0, 2, 1, 1, 3]
