"""The stream: every example of an epoch once, for any processes, batch sizes and starting points.

Nothing but a cursor is state, so reading on from a cursor is compared with never having stopped.
"""

import random

import numpy as np
import pytest
import torch

from tests.corpora import chatter, corpus_of, counted, random_lengths, tokenizer_for
from unmask.data.corpus import stream as module
from unmask.data.corpus.config import ExampleSettings
from unmask.data.corpus.examples import IS_NEXT, NO_PAIR, NOT_NEXT
from unmask.data.corpus.stream import Cursor, Stream
from unmask.jobs.inputs.corpus import CorpusSource
from unmask.jobs.pretrain import Pretrain
from unmask.objectives.mlm import MaskedLM, MaskSettings
from unmask.system.distributed import Processes
from unmask.system.errors import DataError
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.compose import compose
from unmask.train.sources import Dealer

LENGTH = 48


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Over six hundred examples an epoch; no token occurs twice."""
    lengths = random_lengths(300, (1, 12), (3, 12))
    return corpus_of(tmp_path_factory.mktemp("stream"), counted(lengths))


def stream_of(corpus, *, seed=0, length=LENGTH, **settings) -> Stream:
    documents = np.arange(len(corpus.documents) - 1)
    return Stream(corpus, documents, ExampleSettings(**settings), seed, length)


def examples_of(stream, rows) -> list[tuple[int, ...]]:
    """Every example of some rows, whole: its number, label, tokens and segments."""
    batch = stream.batch(rows)
    places = zip(batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True)
    found = []
    for i, (row, start, length) in enumerate(places):
        stretch = (row, slice(start, start + length))
        head = int(batch.number[i]), int(batch.labels["pair"][i])
        found.append((*head, *batch.tokens[stretch].tolist(), *batch.segments[stretch].tolist()))
    return found


def read(stream, cursor, rows, times):
    """Take `rows` rows repeatedly; return the rows of each time, and the cursor after it."""
    steps = []
    for _ in range(times):
        taken, cursor = stream.take(cursor, rows)
        steps.append((taken, cursor))
    return steps


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_each_example_of_an_epoch_is_read_once_over_the_ends_of_epochs(corpus, rows):
    stream = stream_of(corpus)
    expected = [sorted(stream.epoch(e).numbers.tolist()) for e in range(3)]
    assert min(map(len, expected)) > 600
    seen = [[], [], []]
    for taken, _ in read(stream, Cursor(), rows, 3000 // rows):
        assert len(taken) == rows
        for at in taken:
            if at.epoch < 3:
                epoch = stream.epoch(at.epoch)
                seen[at.epoch] += epoch.numbers[epoch.row(at.row)].tolist()
    assert [sorted(numbers) for numbers in seen] == expected


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_rows_come_in_one_order_whatever_the_groups_they_are_read_in(corpus, rows):
    stream = stream_of(corpus)
    order = [at for taken, _ in read(stream, Cursor(), rows, 2000 // rows) for at in taken]
    ends = [len(stream.epoch(e)) for e in range(10)]
    everything = [Cursor(e, row) for e, end in enumerate(ends) for row in range(end)]
    assert order == everything[: len(order)]


def test_a_cursor_at_the_end_of_an_epoch_is_the_beginning_of_the_next(corpus):
    stream = stream_of(corpus)
    end = len(stream.epoch(0))
    _, cursor = stream.take(Cursor(), end)
    assert cursor == Cursor(1, 0)
    _, cursor = stream.take(Cursor(), end - 1)
    assert cursor == Cursor(0, end - 1)
    taken, cursor = stream.take(Cursor(0, end - 1), 2)
    assert taken == [Cursor(0, end - 1), Cursor(1, 0)]
    assert cursor == Cursor(1, 1)


def test_reading_on_from_any_cursor_is_as_if_one_had_never_stopped(corpus):
    """Fifty places, among them the ends of epochs, one before and one after."""
    draw = random.Random(0)
    stream = stream_of(corpus)
    ends = np.cumsum([len(stream.epoch(e)) for e in range(3)]).tolist()
    rows = stream.take(Cursor(), ends[-1])[0]
    whole = {at: examples_of(stream, [at]) for at in rows}
    special = [end + shift for end in ends[:2] for shift in (-1, 0, 1)]
    places = special + draw.sample(range(ends[-1] - 8), 44)
    assert len(places) == 50
    for place in places:
        resumed = stream_of(corpus)  # as in a process of its own
        taken, cursor = resumed.take(rows[place], 3)
        again, _ = stream_of(corpus).take(cursor, 3)  # stopped again in the same epoch
        assert taken + again == rows[place : place + 6]
        for at in taken:
            assert examples_of(resumed, [at]) == whole[at]


def test_a_batch_holds_the_examples_of_its_rows_and_no_others(corpus):
    stream = stream_of(corpus)
    last = len(stream.epoch(0)) - 1
    rows = [Cursor(0, 3), Cursor(0, last), Cursor(1, 0), Cursor(0, 0)]
    one_by_one = [example for at in rows for example in examples_of(stream, [at])]
    assert examples_of(stream, rows) == one_by_one


def test_an_example_is_its_segments_between_special_tokens_by_hand(tmp_path):
    documents = [["a b", "c d e"], ["f g", "h i j"]]
    corpus = corpus_of(tmp_path, documents, tokenizer_for(documents))
    stream = stream_of(corpus, pairs="sop", short_share=0.0)
    names = corpus.tokenizer.vocabulary.tokens
    found = {}
    for _, label, *rest in (e for row in range(2) for e in examples_of(stream, [Cursor(row, 0)])):
        half = len(rest) // 2
        tokens, segments = [names[i] for i in rest[:half]], rest[half:]
        found[" ".join(tokens)] = segments, label
    options = {
        "[CLS] a b [SEP] c d e [SEP]": ([0] * 4 + [1] * 4, IS_NEXT),
        "[CLS] c d e [SEP] a b [SEP]": ([0] * 5 + [1] * 3, NOT_NEXT),
        "[CLS] f g [SEP] h i j [SEP]": ([0] * 4 + [1] * 4, IS_NEXT),
        "[CLS] h i j [SEP] f g [SEP]": ([0] * 5 + [1] * 3, NOT_NEXT),
    }
    assert found.items() <= options.items()
    assert len(found) >= 2


def test_an_example_of_one_segment_has_one_separator(tmp_path):
    corpus = corpus_of(tmp_path, [["a b c"], ["d e"]])
    stream = stream_of(corpus)
    names = corpus.tokenizer.vocabulary.tokens
    found = set()
    for _, label, *rest in examples_of(stream, [Cursor(0, 0)]):
        half = len(rest) // 2
        found.add(" ".join(names[i] for i in rest[:half]))
        assert rest[half:] == [0] * half
        assert label == NO_PAIR
    assert found == {"[CLS] a b c [SEP]", "[CLS] d e [SEP]"}


def test_rows_are_full_but_never_too_full(corpus):
    stream = stream_of(corpus)
    batch = stream.batch([Cursor(0, row) for row in range(len(stream.epoch(0)))])
    assert batch.tokens.shape[1] <= LENGTH
    assert batch.real / batch.tokens.numel() > 0.95


def test_the_examples_of_a_row_are_random_neighbours(corpus):
    """A row of examples that lie side by side in the corpus would be a row of one document."""
    epoch = stream_of(corpus).epoch(0)
    firsts = [epoch.plan.first[epoch.row(row)] for row in range(len(epoch))]
    gaps = np.concatenate([np.abs(np.diff(f)) for f in firsts if len(f) > 1])
    assert np.median(gaps) > corpus.size / 10


def test_the_number_of_an_example_is_its_own(corpus):
    numbers = np.concatenate([stream_of(corpus).epoch(e).numbers for e in range(3)])
    assert len(np.unique(numbers)) == len(numbers)


@pytest.mark.parametrize("change", [{"seed": 1}, {"length": LENGTH - 1}])
def test_another_seed_or_length_has_other_examples_with_other_numbers(corpus, change):
    one, other = stream_of(corpus).epoch(0), stream_of(corpus, **change).epoch(0)
    assert not set(one.numbers.tolist()) & set(other.numbers.tolist())
    assert not np.array_equal(one.members, other.members)


def hidden(stream, rows, **how):
    """What is shown of each example, and where tokens must be guessed, by its number."""
    masked = MaskedLM(MaskSettings(**how), stream.corpus.tokenizer.vocabulary)
    batch = masked.prepare(stream.batch(rows), 7, 0.0)
    asked = torch.zeros(batch.tokens.numel(), dtype=torch.bool)
    asked[batch.labels["mlm_places"]] = True
    asked = asked.view_as(batch.tokens)
    found = {}
    for i, number in enumerate(batch.number.tolist()):
        start = int(batch.start[i])
        stretch = (batch.row[i], slice(start, start + int(batch.length[i])))
        found[number] = batch.tokens[stretch].tolist(), asked[stretch].tolist()
    return found


@pytest.mark.parametrize("whole_words", [False, True])
def test_what_is_hidden_in_an_example_does_not_depend_on_its_mates(
    corpus, monkeypatch, whole_words
):
    stream = stream_of(corpus)
    rows = [Cursor(0, row) for row in range(len(stream.epoch(0)))]
    together = hidden(stream, rows, whole_word_masking=whole_words)
    assert any(any(asked) for _, asked in together.values())
    alone = {}
    for row in rows:
        alone |= hidden(stream, [row], whole_word_masking=whole_words)
    assert alone == together
    monkeypatch.setattr(module, "WINDOW", 5)  # another packing of the same examples
    other = stream_of(corpus)
    assert not np.array_equal(other.epoch(0).starts, stream.epoch(0).starts)
    rows = [Cursor(0, row) for row in range(len(other.epoch(0)))]
    assert hidden(other, rows, whole_word_masking=whole_words) == together


def shares(corpus, world, steps, recipe):
    """The pieces of each step, of all processes, and the cursors."""
    masked = MaskedLM(MaskSettings(), corpus.tokenizer.vocabulary)
    found, cursors = [], [{}] * world
    for step in range(steps):
        pieces = []
        for rank in range(world):
            source = CorpusSource(corpus, recipe, masked)
            dealt = Dealer(source, Processes(rank, world)).take(cursors[rank], step, step / steps)
            cursors[rank] = dealt.cursor
            assert dealt.rounds == len(dealt.micro_batches) == 4 // world
            pieces += dealt.micro_batches
        assert all(cursor == cursors[0] for cursor in cursors)
        found.append(sorted(pieces, key=lambda piece: piece.seed))
    return found, cursors[0]


@pytest.mark.parametrize("pairs", ["nsp", "off"])
def test_two_processes_share_what_one_reads(corpus, pairs):
    table = {
        "data": {"pairs": pairs},
        "schedule": {"steps": 10, "phases": [{"length": LENGTH, "batch_tokens": LENGTH * 8}]},
        "loop": {"micro_batch_tokens": LENGTH * 2},
    }
    recipe = compose(Pretrain.scope, table)
    one, cursor = shares(corpus, 1, 10, recipe)
    two, other = shares(corpus, 2, 10, recipe)
    assert cursor == other
    for alone, both in zip(one, two, strict=True):
        assert len(alone) == 4
        for piece, theirs in zip(alone, both, strict=True):
            assert piece.seed == theirs.seed
            assert torch.equal(piece.batch.tokens, theirs.batch.tokens)
            assert torch.equal(piece.batch.number, theirs.batch.number)
            assert piece.batch.counts == theirs.batch.counts


def test_a_piece_of_a_word_continues_it_unless_its_beginning_was_cut_off(tmp_path):
    words = ["aa", "##a", "b"]
    tokenizer = Tokenizer(Vocabulary([*SPECIALS, *words]))
    corpus = corpus_of(tmp_path, [["aaaa b"], ["b"]], tokenizer)  # aa ##a ##a b
    stream = stream_of(corpus, pairs="off")
    batch = stream.batch([Cursor(0, 0)])
    at = int(batch.start[batch.length.argmax()])
    assert batch.continues[0, at : at + 6].tolist() == [False, False, True, True, False, False]
    shorter = stream_of(corpus, pairs="off", length=4)  # two pieces at a time: aa ##a | ##a b
    batch = shorter.batch([Cursor(0, row) for row in range(len(shorter.epoch(0)))])
    ids = tokenizer.vocabulary.ids
    for row, start in zip(batch.row.tolist(), batch.start.tolist(), strict=True):
        first = int(batch.tokens[row, start + 1])
        assert not batch.continues[row, start + 1]
        assert bool(batch.continues[row, start + 2]) == (first == ids["aa"])


def test_words_given_by_spaces_are_known_to_the_batch(tmp_path):
    documents = [["我 爱 猫狗 鸟", "狗 猫"], ["鸟狗猫", "猫"]]
    tokenizer = Tokenizer(Vocabulary([*SPECIALS, *"我爱猫狗鸟"]))
    corpus = corpus_of(tmp_path, documents, tokenizer, words="spaces")
    batch = stream_of(corpus, pairs="off").batch([Cursor(0, 0)])
    names = tokenizer.vocabulary.tokens
    glued = ""
    for token, continues in zip(batch.tokens[0].tolist(), batch.continues[0], strict=True):
        glued += ("" if continues else " ") + names[token]
    assert "[CLS] 我 爱 猫狗 鸟 狗 猫 [SEP]" in glued
    assert "[CLS] 鸟狗猫 猫 [SEP]" in glued


def test_a_corpus_of_many_shards_is_read_as_one(tmp_path):
    documents = chatter(60)
    tokenizer = tokenizer_for(documents)
    one = corpus_of(tmp_path / "one", documents, tokenizer)
    many = corpus_of(tmp_path / "many", documents, tokenizer, shard_characters=1000)
    assert len(many.shards) > 5
    for row in range(len(stream_of(one).epoch(0))):
        at = [Cursor(0, row)]
        assert examples_of(stream_of(one), at) == examples_of(stream_of(many), at)


@pytest.mark.timeout(2)
def test_a_stream_of_no_documents_is_refused(corpus):
    nobody = Stream(corpus, np.arange(0), ExampleSettings(pairs="off"), 0, LENGTH)
    with pytest.raises(DataError):
        nobody.take(Cursor(), 1)
