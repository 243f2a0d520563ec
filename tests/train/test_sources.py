"""Sources: all is seen once an epoch, in micro-batches that any number of processes share.

How several sources are mixed is also in test_mixture.py.
"""

import threading
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from tests.train.conftest import STEPS, state
from tests.train.test_loop import stopped
from unmask.data.batch import pack_and_collate
from unmask.objectives.base import Objective
from unmask.system.distributed import Processes
from unmask.system.settings import Settings
from unmask.train.recipe import Recipe
from unmask.train.sources import Dealer, LazyMicroBatch, Mixture, Prefetch, ShuffledWindows


@dataclass(frozen=True)
class Text:
    """Some tokens, all of them the number of the text."""

    number: int
    length: int = 4

    @property
    def ids(self):
        return [self.number] * self.length

    @property
    def segments(self):
        return [0] * self.length


PLAIN = Objective(Settings())  # takes batches as they are


def plain(texts):
    return pack_and_collate(texts, pad_id=-1)


def items_of(groups, *, first=0, lengths=(2, 9, 4, 7)) -> list[list[Text]]:
    """Groups with these numbers of texts, no two of them alike, and not all of one length."""
    found, number = [], first
    for size in groups:
        found.append([Text(i, lengths[i % len(lengths)]) for i in range(number, number + size)])
        number += size
    return found


def shuffled(items, batch_size, *, neighbours=1, objective=PLAIN, **loop) -> ShuffledWindows:
    how = {"batch_size": batch_size, "micro_batch_tokens": 16, **loop}
    recipe = Recipe(schedule={"steps": 10}, loop=how)
    return ShuffledWindows(items, plain, objective, recipe, neighbours=neighbours)


def texts_in(batch) -> list[int]:
    """The numbers of the texts in a batch, each of them whole."""
    found = []
    places = zip(batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True)
    for row, at, length in places:
        (number,) = set(batch.tokens[row, at : at + length].tolist())
        found.append(number)
    assert batch.real == int((batch.tokens >= 0).sum())
    return found


def texts_of(pieces) -> list[int]:
    """The numbers of the texts in all batches, in their order."""
    return [number for piece in pieces for number in texts_in(piece.make())]


def walk(some, steps):
    """The batches of each step, and the cursor after it."""
    cursor = {}
    for step in range(steps):
        pieces, cursor = some.plan_step(cursor, step, step / steps)
        yield [piece.make() for piece in pieces], cursor


def is_even(seen, numbers) -> bool:
    """Was each text seen as often as any other, or once more in an epoch that is not over?"""
    assert set(seen) <= set(numbers)
    often = [seen[number] for number in numbers]
    return max(often) - min(often) <= 1


def read(some, steps, cursor=None) -> list[list[int]]:
    """The texts of each step."""
    cursor, found = cursor or {}, []
    for step in range(steps):
        pieces, cursor = some.plan_step(cursor, step, 0.0)
        found.append(texts_of(pieces))
    return found


@pytest.mark.parametrize("neighbours", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 5, 7, 20, 50])
def test_each_epoch_has_every_text_once(batch_size, neighbours):
    some = shuffled(items_of([1] * 20), batch_size, neighbours=neighbours)
    seen = Counter()
    for number, (batches, cursor) in enumerate(walk(some, 20), start=1):
        seen.update(text for batch in batches for text in texts_in(batch))
        assert seen.total() == number * batch_size
        assert is_even(seen, range(20))
        assert 20 * cursor["epoch"] + cursor["row"] == number * batch_size
    assert set(seen.values()) == {batch_size}
    assert some.steps_per_epoch == 20 / batch_size


def test_each_epoch_has_another_order():
    order = [texts for step in read(shuffled(items_of([1] * 20), 1), 40) for texts in step]
    assert sorted(order[:20]) == sorted(order[20:]) == list(range(20))
    assert order[:20] != order[20:]


def test_reading_on_from_any_cursor_is_as_if_one_had_never_stopped():
    items = items_of([1, 2, 3] * 5)
    whole = list(walk(shuffled(items, 4, neighbours=2), 12))
    for at in range(11):
        resumed = shuffled(items, 4, neighbours=2)
        pieces, _ = resumed.plan_step(whole[at][1], at + 1, (at + 1) / 12)
        for piece, batch in zip(pieces, whole[at + 1][0], strict=True):
            assert torch.equal(piece.make().tokens, batch.tokens)


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("micro_tokens", [1, 12, 30, 1000])
def test_groups_of_all_sizes_stay_whole_however_small_micro_batches_are(
    micro_tokens, micro_batches
):
    items = items_of([2, 3, 1, 3, 2, 2, 3, 3, 2])
    together = {text.number: [t.number for t in item] for item in items for text in item}
    some = shuffled(items, 5, micro_batch_tokens=micro_tokens, micro_batches=micro_batches)
    seen = Counter()
    for batches, _ in walk(some, 9):
        for batch in batches:
            found = Counter(texts_in(batch))
            for number in found:
                assert {found[mate] for mate in together[number]} == {found[number]}
            seen += found
    assert seen == dict.fromkeys(together, 5)


AWKWARD = [(5, 3), (7, 3), (8, 3), (4, 4), (5, 4), (5, 5), (9, 2), (1, 1), (30, 8), (31, 16)]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("micro_tokens", [1, 5, 16, 10_000])
@pytest.mark.parametrize(("batch_size", "micro_batches"), AWKWARD)
def test_awkward_numbers_of_micro_batches_have_something_in_each(
    batch_size, micro_batches, micro_tokens
):
    sizes = [1, 2, 1, 1, 3]
    items = items_of(sizes * 13)
    some = shuffled(items, batch_size, micro_batch_tokens=micro_tokens, micro_batches=micro_batches)
    for batches, _ in walk(some, 6):
        assert len(batches) % micro_batches == 0
        assert len(batches) > 0
        assert all(len(batch.number) > 0 for batch in batches)
        numbers = [number for batch in batches for number in batch.number.tolist()]
        assert sum(1 / sizes[number % 5] for number in numbers) == pytest.approx(batch_size)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("micro_batches", [2, 3, 7])
def test_fewer_texts_than_a_step_has_are_seen_several_times_in_it(micro_batches):
    some = shuffled(items_of([1, 1, 1]), 7, micro_batches=micro_batches)
    for batches, _ in walk(some, 4):
        seen = Counter(text for batch in batches for text in texts_in(batch))
        assert sorted(seen.values()) == [2, 2, 3]
        assert len(batches) % micro_batches == 0


@pytest.mark.parametrize(("micro_batches", "parts"), [(1, [2] * 5), (4, [1] * 6 + [2] * 2)])
def test_micro_batches_hold_as_many_tokens_as_they_may(micro_batches, parts):
    """Two texts of eight tokens fit into one; their number is rounded up."""
    some = shuffled(items_of([1] * 40, lengths=(8,)), 10, micro_batches=micro_batches)
    ((batches, _),) = walk(some, 1)
    assert sorted(len(batch.number) for batch in batches) == parts


def test_where_there_are_too_few_texts_the_shortest_share_a_micro_batch():
    """Thirty texts, each too long to share, in a multiple of eight: the twelve shortest do."""
    some = shuffled(items_of([1] * 30, lengths=tuple(range(16, 46))), 30, micro_batches=8)
    ((batches, _),) = walk(some, 1)
    assert sorted(len(batch.number) for batch in batches) == [1] * 18 + [2] * 6
    assert all(batch.real <= 26 + 27 for batch in batches)


def test_a_micro_batch_has_texts_of_like_length():
    ((batches, _),) = walk(shuffled(items_of([1] * 20), 20), 1)
    bounds = [(int(batch.length.min()), int(batch.length.max())) for batch in batches]
    assert len(bounds) > 3
    assert all(before[1] <= after[0] for before, after in zip(bounds, bounds[1:], strict=False))


def test_every_text_has_the_number_of_its_group():
    items = items_of([1, 2, 3, 1, 2] * 3)
    known = {text.number: number for number, item in enumerate(items) for text in item}
    assert len(known) > len(items)
    for batches, _ in walk(shuffled(items, 4, micro_batches=2), 8):
        for batch in batches:
            numbers = [known[text] for text in texts_in(batch)]
            assert batch.number.tolist() == numbers


def test_texts_of_one_group_are_one_record_and_groups_of_one_text_need_none():
    items = items_of([1, 2, 3, 1, 2] * 3)
    known = {text.number: number for number, item in enumerate(items) for text in item}
    together = 0
    for batches, _ in walk(shuffled(items, 4, micro_batches=2), 8):
        for batch in batches:
            numbers = [known[text] for text in texts_in(batch)]
            if batch.record is None:
                assert len(set(numbers)) == len(numbers)
                continue
            together += 1
            records = batch.record.tolist()
            assert sorted(set(records)) == list(range(max(records) + 1))
            mates = [
                (a == b, x == y)
                for a, x in zip(records, numbers, strict=True)
                for b, y in zip(records, numbers, strict=True)
            ]
            assert all(one == other for one, other in mates)
    assert together > 5
    for batches, _ in walk(shuffled(items_of([1] * 9), 4), 3):
        assert all(batch.record is None for batch in batches)


def test_a_sample_is_of_the_first_groups():
    some = shuffled(items_of([1, 2, 1, 1]), 2)
    assert texts_in(some.sample(3)) == [0, 1, 2, 3]
    assert some.sample(3).number.tolist() == [0, 1, 1, 2]
    assert texts_in(some.sample(100)) == [0, 1, 2, 3, 4]


def test_a_batch_is_prepared_with_the_seed_of_its_micro_batch_and_the_progress_of_the_run():
    told, seeds, keys = [], [], set()

    class Telling(Objective):
        def prepare(self, batch, key, progress):
            told.append((batch.seed, progress))
            keys.add(key)
            return batch

    some = shuffled(items_of([1] * 20), 8, micro_batches=2, objective=Telling(Settings()))
    for step in range(3):
        pieces, _ = some.plan_step({}, step, step / 3)
        assert not told, "nothing is made before it is asked for"
        texts_of(pieces)
        assert told == [(piece.seed, step / 3) for piece in pieces]
        seeds += [piece.seed for piece in pieces]
        told.clear()
    assert len(set(seeds)) == len(seeds) >= 6
    assert len(keys) == 1, "one for the whole run"


@pytest.mark.parametrize("world", [2, 3, 4])
def test_micro_batches_do_not_depend_on_the_number_of_processes(world):
    """Each process has a source of its own, and takes its turn."""

    def some():
        return shuffled(items_of([1, 2, 3] * 7), 9, micro_batches=4)

    alone, cursor = Dealer(some(), Processes()), {}
    deals, cursors = [Dealer(some(), Processes(rank, world)) for rank in range(world)], [{}] * world
    for step in range(10):
        whole = alone.take(cursor, step, step / 10)
        shares = [d.take(c, step, step / 10) for d, c in zip(deals, cursors, strict=True)]
        assert all(share.cursor == whole.cursor for share in shares)
        assert {share.rounds for share in shares} == {
            max(len(share.micro_batches) for share in shares)
        }
        assert min(len(share.micro_batches) for share in shares) >= 1
        assert (
            sum(len(share.micro_batches) for share in shares)
            == len(whole.micro_batches)
            == whole.rounds
        )
        for place, piece in enumerate(whole.micro_batches):
            theirs = shares[place % world].micro_batches[place // world]
            assert theirs.seed == piece.seed
            assert torch.equal(theirs.batch.tokens, piece.batch.tokens)
            assert torch.equal(theirs.batch.number, piece.batch.number)
        cursor, cursors = whole.cursor, [share.cursor for share in shares]


SIZES = {"small": 8, "large": 72}


def mixture(temperature=0.5, per="step", *, batch_size=8, **loop) -> Mixture:
    """Eight texts from 0 on, and 72 from 100 on."""
    firsts = {"small": 0, "large": 100}
    sources = {
        name: shuffled(items_of([1] * size, first=firsts[name]), batch_size, **loop)
        for name, size in SIZES.items()
    }
    return Mixture(sources, temperature, 0, per)


def taken(cursor) -> dict[str, int]:
    """How many texts of each source have been taken, by their cursors."""
    return {
        name: size * cursor.get(f"{name}.epoch", 0) + cursor.get(f"{name}.row", 0)
        for name, size in SIZES.items()
    }


@pytest.mark.parametrize("per", ["step", "piece", "record"])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 0.8, 1.0])
def test_over_many_steps_shares_come_close_to_the_sizes_to_the_temperature(per, temperature):
    some, cursor, steps = mixture(temperature, per, micro_batches=4), {}, 2000
    for step in range(steps):
        _, cursor = some.plan_step(cursor, step, step / steps)
    found = taken(cursor)
    assert sum(found.values()) == 8 * steps
    weights = {name: size**temperature for name, size in SIZES.items()}
    expected = weights["small"] / sum(weights.values())
    assert found["small"] / (8 * steps) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("per", ["step", "piece", "record"])
@pytest.mark.parametrize(
    ("batch_size", "micro_batches"), [(6, 1), (6, 3), (7, 3), (5, 3), (3, 3), (2, 2)]
)
def test_cursors_of_all_sources_advance_without_loss_or_repetition(per, batch_size, micro_batches):
    some = mixture(0.5, per, batch_size=batch_size, micro_batches=micro_batches)
    seen = Counter()
    for number, (batches, cursor) in enumerate(walk(some, 200), start=1):
        assert len(batches) % micro_batches == 0
        seen.update(text for batch in batches for text in texts_in(batch))
        small = Counter({text: often for text, often in seen.items() if text < 100})
        assert is_even(small, range(8))
        assert is_even(seen - small, range(100, 172))
        assert taken(cursor) == {"small": small.total(), "large": (seen - small).total()}
        assert seen.total() == number * batch_size
    assert all(cursor[f"{name}.epoch"] >= 1 for name in SIZES)


def test_a_mixture_per_record_divides_a_step_in_any_way():
    found = {sum(text < 100 for text in step) for step in read(mixture(0.5, "record"), 300)}
    assert found >= {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("per", ["step", "piece", "record"])
def test_a_mixture_read_on_from_a_cursor_is_as_if_it_had_never_stopped(per):
    whole = list(walk(mixture(0.5, per, micro_batches=2), 30))
    for at in (0, 9, 28):
        pieces, cursor = mixture(0.5, per, micro_batches=2).plan_step(whole[at][1], at + 1, 0.5)
        assert cursor == whole[at + 1][1]
        for piece, batch in zip(pieces, whole[at + 1][0], strict=True):
            assert torch.equal(piece.make().tokens, batch.tokens)


def test_an_epoch_of_a_mixture_has_as_many_steps_as_those_of_its_sources():
    assert mixture().steps_per_epoch == 80 / 8


class Counting:
    """A source that says what it was asked, and in which thread."""

    def __init__(self):
        self.asked = []

    def plan_step(self, cursor, step, progress):
        self.asked.append((cursor["row"], step, progress, threading.current_thread().name))
        return [LazyMicroBatch(lambda: f"batch {step}", seed=step)], {"row": cursor["row"] + 10}


def ahead(some):
    return Prefetch(Dealer(some, Processes()), lambda step: step / 100)


def batches_of(dealt):
    return [piece.batch for piece in dealt.micro_batches]


def test_each_step_gets_its_own_batches_and_the_next_are_made_meanwhile():
    counting = Counting()
    early = ahead(counting)
    cursor = {"row": 0}
    for step in range(3):
        dealt = early.take(cursor, step, step / 100)
        cursor = dealt.cursor
        assert batches_of(dealt) == [f"batch {step}"]
        assert (dealt.micro_batches[0].seed, dealt.rounds) == (step, 1)
        assert cursor == {"row": 10 * step + 10}
    early.thread.shutdown()
    assert [asked[:3] for asked in counting.asked] == [(10 * s, s, s / 100) for s in range(4)]
    threads = [asked[3].startswith("batches") for asked in counting.asked]
    assert threads == [False, True, True, True]


def test_where_a_run_went_on_elsewhere_what_was_made_is_not_used():
    early = ahead(Counting())
    early.take({"row": 0}, 0, 0.0)
    dealt = early.take({"row": 70}, 7, 0.07)
    assert (batches_of(dealt), dealt.cursor) == (["batch 7"], {"row": 80})


def test_an_error_in_the_thread_is_raised_in_its_turn():
    class Failing(Counting):
        def plan_step(self, cursor, step, progress):
            if step == 1:
                raise ValueError("no more text")
            return super().plan_step(cursor, step, progress)

    early = ahead(Failing())
    cursor = early.take({"row": 0}, 0, 0.0).cursor
    with pytest.raises(ValueError, match="no more text"):
        early.take(cursor, 1, 0.01)


def test_a_run_with_batches_made_ahead_ends_with_the_same_bits(run, whole):
    how = {"loop": {"prefetch": "on"}, "objective": {"name": "mlm"}}
    assert state(run("ahead", **how), STEPS) == state(whole, STEPS)
    stopped(run, "again", 5, **how)
    assert state(run("again", resume=True, **how), STEPS) == state(whole, STEPS)
