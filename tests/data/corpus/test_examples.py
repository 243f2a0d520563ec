"""Examples: the paper's rules for what is put into an example, and for its labels.

In most corpora here every token occurs once, so that an example tells where it comes from.
"""

from typing import get_args

import numpy as np
import pytest

from tests.corpora import chatter, corpus_of, counted, random_lengths
from unmask.data.corpus.config import ExampleSettings, Pairs
from unmask.data.corpus.examples import (
    IS_NEXT,
    NO_PAIR,
    NOT_NEXT,
    ExamplePlan,
    plan_examples,
    split_documents,
)
from unmask.data.corpus.stream import Stream
from unmask.system.errors import DataError
from unmask.system.settings import validate

LONG = 512  # more than any document here has, so that nothing is cut
KINDS = get_args(Pairs)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Two hundred documents of a few sentences."""
    lengths = random_lengths(200, (1, 12), (3, 12))
    return corpus_of(tmp_path_factory.mktemp("library"), counted(lengths))


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """A few documents that are much longer than an example."""
    lengths = random_lengths(30, (30, 60), (3, 30), seed=1)
    return corpus_of(tmp_path_factory.mktemp("books"), counted(lengths))


def everything(corpus):
    return np.arange(len(corpus.documents) - 1)


def planned(corpus, *, length=LONG, epochs=1, chosen=None, **settings) -> ExamplePlan:
    """The examples of some epochs, joined."""
    chosen = everything(corpus) if chosen is None else chosen
    how = ExampleSettings(**settings)
    plans = [plan_examples(corpus, chosen, how, length=length, root=e) for e in range(epochs)]
    return ExamplePlan(
        *(np.concatenate([getattr(p, name) for p in plans]) for name in vars(plans[0]))
    )


def same(one: ExamplePlan, other: ExamplePlan) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one))


def documents_of(corpus, positions):
    """The document that each position is in."""
    sentences = np.searchsorted(corpus.sentences, positions, side="right") - 1
    return np.searchsorted(corpus.documents, sentences, side="right") - 1


def labelled(plan: ExamplePlan, label: int) -> ExamplePlan:
    return ExamplePlan(*(part[plan.label == label] for part in vars(plan).values()))


def spans(plan: ExamplePlan) -> list[np.ndarray]:
    """The positions of every segment of every example."""
    first = zip(plan.first, plan.first_length, strict=True)
    second = zip(plan.second, plan.second_length, strict=True)
    return [np.arange(at, at + n) for at, n in [*first, *second] if n]


def guessed(numbers: np.ndarray, answers: np.ndarray) -> float:
    """How many of two answers the best single threshold on a number gets right."""
    shares = [((numbers >= bound) == answers).mean() for bound in np.unique(numbers)]
    return max(max(share, 1 - share) for share in shares)


def tokens(corpus, start, length):
    return corpus.tokens(int(start), int(length)).tolist()


def test_a_second_segment_that_follows_is_the_very_next_text_of_its_document(library):
    follows = labelled(planned(library, epochs=3), IS_NEXT)
    assert len(follows.first) > 100
    assert (follows.first + follows.first_length == follows.second).all()
    last = follows.second + follows.second_length - 1
    assert (documents_of(library, follows.first) == documents_of(library, last)).all()


def test_the_two_segments_meet_where_a_sentence_ends(library):
    follows = labelled(planned(library, epochs=3), IS_NEXT)
    assert np.isin(follows.second, library.sentences).all()


def test_text_is_cut_out_of_a_stretch_no_longer_than_an_example_and_a_sentence(books):
    follows = labelled(planned(books, length=64, epochs=3), IS_NEXT)
    stretch = follows.second + follows.second_length - follows.first
    assert (stretch > 61).any(), "nothing was cut, so this test says nothing"
    assert (stretch < 61 + np.diff(books.sentences).max()).all()
    assert (follows.first + follows.first_length <= follows.second).all()


@pytest.mark.parametrize("length", [32, LONG])
def test_a_second_segment_that_differs_is_of_one_other_document(library, length):
    differs = labelled(planned(library, length=length, epochs=3), NOT_NEXT)
    assert len(differs.first) > 100
    own = documents_of(library, differs.first)
    other = documents_of(library, differs.second)
    assert (own != other).all()
    assert (documents_of(library, differs.second + differs.second_length - 1) == other).all()


def test_a_second_segment_that_differs_may_be_of_any_other_document(library):
    differs = labelled(planned(library, epochs=80), NOT_NEXT)
    assert set(documents_of(library, differs.second)) == set(everything(library))


def test_in_a_corpus_of_copies_the_true_next_sentence_is_never_called_another(tmp_path):
    corpus = corpus_of(tmp_path, counted([[4, 4, 4, 6, 6]]) * 200)
    plan = planned(corpus, epochs=5)
    differs = labelled(plan, NOT_NEXT)
    assert len(differs.first) > 300
    after = differs.first + differs.first_length
    sizes = np.diff(corpus.sentences)[np.searchsorted(corpus.sentences, after)]
    for true, size, other in zip(after, sizes, differs.second, strict=True):
        assert tokens(corpus, true, size) != tokens(corpus, other, size)
    asked = (plan.label != NO_PAIR).sum()
    assert abs(len(differs.first) / asked - 0.5) < 2 / np.sqrt(asked)


def test_where_every_other_text_is_the_true_one_nothing_is_called_another(tmp_path):
    corpus = corpus_of(tmp_path, [["the same again", "the same again"]] * 50)
    plan = planned(corpus)
    assert not (plan.label == NOT_NEXT).any()
    assert (plan.label == IS_NEXT).any()
    assert (plan.second_length[plan.label == NO_PAIR] == 0).all()


@pytest.mark.parametrize("pairs", ["nsp", "sop"])
@pytest.mark.parametrize("length", [32, 128])
def test_the_two_answers_are_equally_frequent(library, pairs, length):
    labels = planned(library, length=length, epochs=20, pairs=pairs).label
    asked = labels[labels != NO_PAIR]
    assert len(asked) >= 2000
    assert abs((asked == NOT_NEXT).mean() - 0.5) < 2 / np.sqrt(len(asked))  # four deviations


# Whole sentences are taken, so the lengths cannot be equal; a guess by length alone stays near
# chance, and nearest where documents are long.
@pytest.mark.parametrize(
    ("sentences", "words", "length", "chance"),
    [
        ((2, 4), (3, 12), 128, 0.58),
        ((4, 12), (3, 12), 64, 0.56),
        ((30, 60), (5, 40), 128, 0.535),
    ],
    ids=["leaflets", "articles", "books"],
)
def test_no_length_tells_the_answer(tmp_path, sentences, words, length, chance):
    lengths = random_lengths(20_000 // (sum(sentences) * sum(words) // 4), sentences, words)
    corpus = corpus_of(tmp_path, counted(lengths))
    plan = planned(corpus, length=length, epochs=15)
    asked = plan.label != NO_PAIR
    assert asked.sum() >= 2000
    answers = plan.label[asked] == NOT_NEXT
    for numbers in (plan.first_length, plan.second_length, plan.lengths):
        assert guessed(numbers[asked], answers) < chance


@pytest.mark.parametrize("pairs", KINDS)
def test_a_stretch_of_one_sentence_is_one_segment_of_which_nothing_is_said(tmp_path, pairs):
    corpus = corpus_of(tmp_path, counted([[5], [7], [6]]))
    plan = planned(corpus, pairs=pairs)
    assert plan.first_length.tolist() == [5, 7, 6]
    assert plan.second_length.tolist() == [0, 0, 0]
    assert plan.label.tolist() == [NO_PAIR] * 3
    assert plan.lengths.tolist() == [7, 9, 8]  # [CLS] and one [SEP]


def test_a_pair_has_three_special_tokens(library):
    plan = planned(library)
    pair = plan.second_length > 0
    assert (plan.special_tokens[pair] == 3).all()
    assert (plan.lengths == plan.first_length + plan.second_length + plan.special_tokens).all()


def test_every_pair_has_an_answer_and_only_pairs_have_one(library):
    plan = planned(library, epochs=3)
    assert ((plan.second_length > 0) == (plan.label != NO_PAIR)).all()


def test_sentence_order_swaps_neighbours_and_takes_nothing_from_elsewhere(library):
    plan = planned(library, pairs="sop", epochs=3)
    follows, differs = labelled(plan, IS_NEXT), labelled(plan, NOT_NEXT)
    assert min(len(follows.first), len(differs.first)) > 100
    assert (follows.first + follows.first_length == follows.second).all()
    assert (differs.second + differs.second_length == differs.first).all()
    for plan in (follows, differs):
        there = documents_of(library, plan.first)
        assert (there == documents_of(library, plan.second)).all()


def test_without_pairs_every_example_is_one_segment(library):
    plan = planned(library, pairs="off", epochs=3)
    assert not plan.second_length.any()
    assert (plan.label == NO_PAIR).all()
    assert (plan.special_tokens == 2).all()


def test_a_stretch_is_cut_in_two_at_any_of_its_sentences(tmp_path):
    corpus = corpus_of(tmp_path, counted([[5] * 4, [5] * 4]))
    plan = planned(corpus, epochs=100, short_share=0.0)
    whole = (plan.first % 20 == 0) & (plan.label == IS_NEXT)
    firsts, counts = np.unique(plan.first_length[whole], return_counts=True)
    assert firsts.tolist() == [5, 10, 15]
    assert counts.min() > 10


def test_what_another_text_replaced_begins_the_next_example(tmp_path):
    corpus = corpus_of(tmp_path, counted([[5] * 6, [5] * 6]))
    plan = planned(corpus, epochs=20, short_share=0.0)
    after = (plan.first + plan.first_length)[plan.label == NOT_NEXT]
    assert len(after) > 10
    assert set(after) <= set(plan.first)


@pytest.mark.parametrize("pairs", KINDS)
@pytest.mark.parametrize("length", [8, 31, 128])
def test_nothing_is_longer_than_it_may_be_or_empty(books, pairs, length):
    plan = planned(books, length=length, pairs=pairs)
    assert plan.lengths.max() <= length
    assert plan.first_length.min() >= 1


def test_examples_fill_the_length_but_for_the_short_ones(books):
    full = planned(books, length=64, short_share=0.0, pairs="sop").lengths
    assert (full == 64).mean() > 0.9  # all but the last of each document
    mixed = planned(books, length=64, short_share=0.3, pairs="sop", epochs=5).lengths
    assert 0.2 < (mixed < 60).mean() < 0.4


def test_when_two_segments_do_not_fit_the_longer_one_gives_way(tmp_path):
    corpus = corpus_of(tmp_path, counted([[4, 14], [14, 4]]))
    plan = planned(corpus, length=19, short_share=0.0, pairs="sop", epochs=10)
    pairs = plan.second_length > 0
    shorter = np.minimum(plan.first_length, plan.second_length)[pairs]
    assert set(shorter) == {4}  # 16 tokens are left beside three special ones
    assert set(plan.lengths[pairs]) == {19}


@pytest.mark.parametrize("pairs", KINDS)
def test_every_token_of_every_training_document_is_reached_in_time(tmp_path, pairs):
    lengths = [[3, 4, 5, 6], [40, 3], [1], [2, 9, 2, 9, 2, 9], [70], [5, 1, 1, 1, 1]]
    corpus = corpus_of(tmp_path, counted(lengths))
    plan = planned(corpus, length=16, pairs=pairs, epochs=60)
    found = np.unique(np.concatenate(spans(plan)))
    assert found.tolist() == list(range(corpus.size))


def test_without_pairs_and_short_examples_every_token_is_seen_once_an_epoch(tmp_path):
    corpus = corpus_of(tmp_path, counted([[5] * 7, [10, 5, 5, 10], [10] * 3, [5]]))
    for epoch in range(3):
        plan = planned(corpus, length=22, pairs="off", short_share=0.0, epochs=epoch + 1)
        found = np.sort(np.concatenate(spans(plan)))  # four fives are an example: nothing is cut
        assert found.tolist() == sorted([*range(corpus.size)] * (epoch + 1))


def stretches(corpus, room):
    """The rule spelled out: from a document's beginning, sentences until they fill an example."""
    found = []
    for begin, end in zip(corpus.documents, corpus.documents[1:], strict=False):
        at = begin
        while at < end:
            then = at + 1
            while then < end and corpus.sentences[then] - corpus.sentences[at] < room:
                then += 1
            found.append((int(corpus.sentences[at]), int(corpus.sentences[then])))
            at = then
    return found


def test_without_pairs_an_example_is_cut_out_of_the_sentences_that_fill_it(books):
    plan = planned(books, length=64, pairs="off", short_share=0.0)
    expected = stretches(books, 62)
    assert len(plan.first) == len(expected) > 300
    for at, size, (begin, end) in zip(plan.first, plan.first_length, expected, strict=True):
        assert size == min(62, end - begin)
        assert begin <= at
        assert at + size <= end
    fronts = [at - begin for at, (begin, end) in zip(plan.first, expected, strict=True)]
    backs = [end - at - 62 for at, (_, end) in zip(plan.first, expected, strict=True)]
    assert max(fronts) > 5, "text is cut off at the front"
    assert max(backs) > 5, "and at the end"


@pytest.mark.parametrize("pairs", KINDS)
def test_a_sentence_that_is_too_long_is_cut_and_not_lost(tmp_path, pairs):
    corpus = corpus_of(tmp_path, counted([[100], [100]]))
    room = 30 if pairs == "off" else 29
    plan = planned(corpus, length=32, pairs=pairs, short_share=0.0)
    if pairs == "off":
        assert plan.first_length.tolist() == [room, room, room, 100 - 3 * room] * 2
    found = set(np.concatenate(spans(planned(corpus, length=32, pairs=pairs, epochs=20))))
    assert found == set(range(200))


def test_the_last_of_each_so_many_documents_is_held_out_by_hand():
    train, held = split_documents(10, 3)
    assert held.tolist() == [2, 5, 8]
    assert train.tolist() == [0, 1, 3, 4, 6, 7, 9]


def test_nothing_is_held_out_if_that_is_asked():
    train, held = split_documents(4, 0)
    assert train.tolist() == [0, 1, 2, 3]
    assert held.tolist() == []


@pytest.mark.parametrize("pairs", KINDS)
def test_held_out_documents_are_in_no_segment_of_any_training_example(library, pairs):
    train, held = split_documents(len(everything(library)), 5)
    used = planned(library, chosen=train, pairs=pairs, epochs=10, length=64)
    seen = set(documents_of(library, np.concatenate(spans(used))))
    assert seen == set(train.tolist())
    evaluated = planned(library, chosen=held, pairs=pairs, epochs=10, length=64)
    assert set(documents_of(library, np.concatenate(spans(evaluated)))) == set(held.tolist())


def test_next_sentences_from_one_document_are_refused_with_what_to_do(tmp_path):
    corpus = corpus_of(tmp_path, counted([[5, 5, 5]]))
    says = (
        rf'^{corpus.path}: 1 documents; .* needs at least two.* blank lines.*--set data.pairs="off"'
    )
    with pytest.raises(DataError, match=says):
        planned(corpus)
    for pairs in ("sop", "off"):
        assert len(planned(corpus, pairs=pairs).first)


def test_no_document_gives_no_example(library):
    nothing = np.zeros(0, dtype=np.int64)
    assert len(planned(library, chosen=nothing, pairs="off").first) == 0


@pytest.mark.parametrize("pairs", KINDS)
def test_examples_are_a_function_of_seed_and_epoch(library, pairs):
    def epoch(seed, number):
        how = ExampleSettings(pairs=pairs)
        return Stream(library, everything(library), how, seed, 64).epoch(number).plan

    assert same(epoch(1, 2), epoch(1, 2))
    assert not same(epoch(1, 2), epoch(1, 3))
    assert not same(epoch(1, 2), epoch(2, 2))


def test_an_epoch_does_not_depend_on_those_asked_for_before(library):
    how = ExampleSettings()
    used = Stream(library, everything(library), how, 0, 64)
    for number in (0, 5, 3):
        fresh = Stream(library, everything(library), how, 0, 64)
        assert same(used.epoch(number).plan, fresh.epoch(number).plan)


def test_with_copies_so_many_versions_come_in_turn_each_time_in_another_order(library):
    stream = Stream(library, everything(library), ExampleSettings(copies=3), 0, 64)
    epochs = [stream.epoch(number) for number in range(6)]
    for number in range(3):
        again = epochs[number + 3]
        assert same(epochs[number].plan, again.plan)
        assert np.array_equal(epochs[number].numbers, again.numbers)
        assert not np.array_equal(epochs[number].members, again.members)
    assert not same(epochs[0].plan, epochs[1].plan)
    assert not same(epochs[1].plan, epochs[2].plan)


def test_a_real_looking_corpus_gives_all_three_labels(tmp_path):
    corpus = corpus_of(tmp_path, [*chatter(20), ["one alone"]])
    assert set(planned(corpus, length=64).label) == {IS_NEXT, NOT_NEXT, NO_PAIR}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"pairs": "nps"}, "'pairs' is 'nps'; "),
        ({"short_share": 1.5}, "'short_share' is 1.5; "),
        ({"copies": -1}, "'copies' is -1; "),
        ({"heldout": 5}, "unknown key 'heldout'; did you mean 'held_out'?"),
    ],
)
def test_a_wrong_setting_is_named(table, says):
    with pytest.raises(ValueError) as error:
        validate(ExampleSettings, table, where="recipe [examples]")
    assert str(error.value).startswith("recipe [examples]: " + says)
