"""Records -> the micro-batches of each step, as a pure function of the position in a run.

A source maps (cursor, step, progress) to lazy micro-batches and knows nothing of processes. A
`Dealer` gives micro-batch i to process i % world size, and only then builds it. Each micro-batch
has a seed of its own, so any process can compute it, again and with the same bits.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.data import counter_rng
from unmask.data.batch import Batch, Tokenized
from unmask.data.packing import group_by_length
from unmask.objectives.base import Objective
from unmask.system.distributed import Processes
from unmask.system.errors import DataError, SettingsError
from unmask.train.recipe import Recipe
from unmask.train.steps.base import MicroBatch

# One key per kind of draw. Other numbers would change the bits of every run that is resumed.
_ORDER, _DROPOUT, _MIXTURE, _PREPARE = 300, 301, 303, 304

Cursor = dict[str, int]


@dataclass(frozen=True)
class LazyMicroBatch:
    """A micro-batch that is not built yet, with the seed of its dropout."""

    make: Callable[[], Batch]
    seed: int


PlannedStep = tuple[Sequence[LazyMicroBatch], Cursor]


class Source(Protocol):
    """Supplies the micro-batches of every step of a run."""

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps in one pass over the data; may be fractional."""

    def plan_step(self, cursor: Cursor, step: int, progress: float) -> PlannedStep:
        """Plan all micro-batches of a step; also return the cursor of the next step."""

    def sample(self, count: int) -> Batch:
        """Build a small batch of the first examples."""


class ShuffledWindows:
    """Records in shuffled order, epoch after epoch.

    An item is a group of examples that stay in one micro-batch, often just one example. `lay_out`
    makes a batch of examples, which the objective then prepares. With `neighbours` above 1, steps
    hold items of similar length: that many steps are drawn together and sorted by length.
    """

    def __init__(
        self,
        items: Sequence[Sequence[Tokenized]],
        lay_out: Callable[[Sequence[Any]], Batch],
        objective: Objective,
        recipe: Recipe,
        *,
        neighbours: int = 1,
    ) -> None:
        self.items, self.lay_out, self.neighbours = items, lay_out, neighbours
        self.objective = objective
        self.seed, self.loop = recipe.seed, recipe.loop
        self.steps_per_epoch = len(items) / self.loop.batch_size
        self._cached_order: tuple[int, NDArray[np.int64]] | None = None
        if not items:
            raise DataError("there are no examples to train on; need at least one.")
        if self.loop.batch_size < self.loop.micro_batches:
            raise SettingsError(
                f"loop.batch_size is {self.loop.batch_size}, but a step has "
                f"{self.loop.micro_batches} micro-batches and each needs at least one example. "
                "Raise loop.batch_size."
            )

    def plan_step(self, cursor: Cursor, step: int, progress: float) -> PlannedStep:
        """Plan the next items, in micro-batches of similar length that keep groups whole."""
        numbers, next_cursor = self.take(cursor, self.loop.batch_size)
        parts = _adjust_count(self.parts(numbers), self.loop.micro_batches)
        return _plan_micro_batches(parts, self.seed, step, progress), next_cursor

    def parts(self, numbers: Sequence[int]) -> list["_Part"]:
        """Split items into parts of `loop.micro_batch_tokens` tokens, shortest items first."""
        lengths = [self.length(i) for i in numbers]
        groups = group_by_length(lengths, self.loop.micro_batch_tokens)
        return [_Part(self, [numbers[i] for i in indices]) for indices in groups]

    def sample(self, count: int) -> Batch:
        """Build a batch of the first items, prepared as at the start of a run."""
        return self.batch(range(min(count, len(self.items))), 0, 0.0)

    def take(self, cursor: Cursor, count: int) -> tuple[list[int], Cursor]:
        """Take the numbers of the next items, continuing into the next epoch where one ends."""
        epoch, row = cursor.get("epoch", 0), cursor.get("row", 0)
        taken: list[int] = []
        while len(taken) < count:
            order = self._epoch_order(epoch)
            chunk = order[row : row + count - len(taken)]
            taken += chunk.tolist()
            row += len(chunk)
            if row == len(order):
                epoch, row = epoch + 1, 0
        return taken, {"epoch": epoch, "row": row}

    def batch(self, numbers: Sequence[int], seed: int, progress: float) -> Batch:
        """Build the batch of these items, prepared by the objective."""
        groups = [self.items[i] for i in numbers]
        batch = self.lay_out([example for group in groups for example in group])
        item_numbers = [i for i, group in zip(numbers, groups, strict=True) for _ in group]
        batch = replace(batch, number=torch.tensor(item_numbers, dtype=torch.long), seed=seed)
        if len(item_numbers) > len(groups):  # without groups, every example is a record of its own
            record_numbers = [record for record, group in enumerate(groups) for _ in group]
            batch = replace(batch, record=torch.tensor(record_numbers, dtype=torch.long))
        return self.objective.prepare(batch, counter_rng.key(self.seed, _PREPARE), progress)

    def length(self, item: int) -> int:
        """Number of tokens of an item."""
        return sum(len(example.ids) for example in self.items[item])

    def _epoch_order(self, number: int) -> NDArray[np.int64]:
        # Read once, because the thread of Prefetch may replace it at any moment.
        cached = self._cached_order
        if cached is not None and cached[0] == number:
            return cached[1]
        root = counter_rng.key(self.seed, _ORDER, number)
        order = counter_rng.permutation(root, len(self.items))
        if self.neighbours > 1:
            order = self._sort_by_length(order, root)
        self._cached_order = number, order  # one assignment, so that number and order always match
        return order

    def _sort_by_length(self, order: NDArray[np.int64], root: int) -> NDArray[np.int64]:
        """Sort each pool of steps by length, cut it into steps, and shuffle the steps of all pools.

        Without the last shuffle, lengths would rise and fall with the steps.
        """
        batch = self.loop.batch_size
        pools = np.split(order, range(batch * self.neighbours, len(order), batch * self.neighbours))
        steps = []
        for pool in pools:
            pool = pool[np.argsort([self.length(int(i)) for i in pool], kind="stable")]
            steps += np.split(pool, range(batch, len(pool), batch))
        shuffled = counter_rng.permutation(counter_rng.key(root, _ORDER), len(steps))
        return np.concatenate([steps[int(i)] for i in shuffled])


@dataclass(frozen=True)
class _Part:
    """Items of one source that make up a micro-batch."""

    source: ShuffledWindows
    numbers: list[int]

    @property
    def tokens(self) -> int:
        return sum(map(self.source.length, self.numbers))

    def halves(self) -> list["_Part"]:
        half = len(self.numbers) // 2
        halves = self.numbers[:half], self.numbers[half:]
        return [replace(self, numbers=numbers) for numbers in halves]


def _adjust_count(parts: list[_Part], unit: int) -> list[_Part]:
    """Split the largest parts until the number of parts is a multiple of `unit`.

    Where there are too few items for that, join the smallest adjacent parts instead.
    """
    items = sum(len(part.numbers) for part in parts)
    # Rounded up to a multiple of `unit`, but never so far that a micro-batch would have no item.
    count = min(-(-len(parts) // unit) * unit, items // unit * unit)
    while len(parts) > count:
        pairs = enumerate(pairwise(parts))
        # Only parts of one source can share a batch: another one lays its examples out differently.
        joined_tokens = [
            (left.tokens + right.tokens, i)
            for i, (left, right) in pairs
            if left.source is right.source
        ]
        index = min(joined_tokens)[1]
        joined_numbers = parts[index].numbers + parts[index + 1].numbers
        parts[index : index + 2] = [replace(parts[index], numbers=joined_numbers)]
    while len(parts) < count:
        largest = max(range(len(parts)), key=lambda i: len(parts[i].numbers))
        parts[largest : largest + 1] = parts[largest].halves()
    return parts


def _plan_micro_batches(
    parts: Sequence[_Part], run_seed: int, step: int, progress: float
) -> list[LazyMicroBatch]:
    """Plan one micro-batch for each part, with a dropout seed of its own."""
    # Seeded by place in the step and not by process, so two processes draw what one would.
    seeds = [
        counter_rng.key(run_seed, _DROPOUT, step, 0, position) % 2**63
        for position in range(len(parts))
    ]
    return [
        LazyMicroBatch(partial(part.source.batch, part.numbers, seed, progress), seed)
        for part, seed in zip(parts, seeds, strict=True)
    ]


class Mixture:
    """Several sources, sampled in proportion to their sizes raised to the power `temperature`.

    `per` is the unit of sampling: one source for each step, each micro-batch or each record. Every
    source has a cursor of its own.
    """

    def __init__(
        self,
        sources: dict[str, ShuffledWindows],
        temperature: float,
        seed: int,
        per: Literal["step", "piece", "record"] = "step",
    ) -> None:
        self.sources, self.seed, self.per = sources, seed, per
        self.loop = next(iter(sources.values())).loop
        unit = self.loop.micro_batches
        if per == "record" and len(sources) > self.loop.batch_size // unit * unit:
            raise SettingsError(
                f"loop.batch_size is {self.loop.batch_size}, but a step has {len(sources)} data "
                f"sets and {unit} micro-batches, and each needs at least one example. Raise "
                "loop.batch_size."
            )
        sizes = np.array([len(source.items) for source in sources.values()], dtype=np.float64)
        self.bounds = np.cumsum(sizes**temperature / (sizes**temperature).sum())
        self.steps_per_epoch = sum(source.steps_per_epoch for source in sources.values())

    def plan_step(self, cursor: Cursor, step: int, progress: float) -> PlannedStep:
        """Plan the next items of the sources that this step draws."""
        unit_counts = {"step": 1, "piece": self.loop.micro_batches, "record": self.loop.batch_size}
        units = unit_counts[self.per]
        # Numbered through the whole run: what a step draws depends on its number alone.
        names = self._draw_sources([step * units + unit for unit in range(units)])
        # The first `remainder` units get one item more.
        per_unit, remainder = divmod(self.loop.batch_size, units)
        parts: list[_Part] = []
        for name, source in self.sources.items():
            item_counts = [
                per_unit + (unit < remainder) for unit in range(units) if names[unit] == name
            ]
            if item_counts:
                source_cursor = {key: cursor.get(f"{name}.{key}", 0) for key in ("epoch", "row")}
                numbers, next_cursor = source.take(source_cursor, sum(item_counts))
                cursor = cursor | {f"{name}.{key}": value for key, value in next_cursor.items()}
                parts += source.parts(numbers)
        parts = _adjust_count(parts, self.loop.micro_batches)
        return _plan_micro_batches(parts, self.seed, step, progress), cursor

    def sample(self, count: int) -> Batch:
        """Build a batch of the first items of the first source."""
        return next(iter(self.sources.values())).sample(count)

    def _draw_sources(self, units: Sequence[int]) -> list[str]:
        names = list(self.sources)
        draws = counter_rng.uniform(
            counter_rng.key(self.seed, _MIXTURE), np.array(units, dtype=np.uint64)
        )
        indices: list[int] = np.searchsorted(self.bounds, draws, side="right").tolist()
        # Rounding may leave the last bound just below 1, and a draw above it.
        return [names[min(index, len(names) - 1)] for index in indices]


@dataclass(frozen=True)
class Dealt:
    """The share of a step that one process computes."""

    micro_batches: Sequence[MicroBatch]
    rounds: int  # largest number of micro-batches on any process
    cursor: Cursor


class Dealer:
    """Builds the micro-batches of one process, and no others."""

    def __init__(self, source: Source, processes: Processes) -> None:
        self.source, self.processes = source, processes

    def take(self, cursor: Cursor, step: int, progress: float) -> Dealt:
        """Build this process's micro-batches of a step."""
        planned, next_cursor = self.source.plan_step(cursor, step, progress)
        mine = planned[self.processes.rank :: self.processes.world]
        rounds = -(-len(planned) // self.processes.world)
        return Dealt([MicroBatch(lazy.make(), lazy.seed) for lazy in mine], rounds, next_cursor)


class Prefetch:
    """A `Dealer` that builds the batches of the next step in a thread while a GPU computes.

    `progress_at` predicts the progress of the run at a step.
    """

    def __init__(self, dealer: Dealer, progress_at: Callable[[int], float]) -> None:
        self.dealer, self.progress_at = dealer, progress_at
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self.pending: tuple[Cursor, int, Future[Dealt]] | None = None

    def take(self, cursor: Cursor, step: int, progress: float) -> Dealt:
        """Return the batches that were built ahead, if they are for this step; else build them."""
        if self.pending is not None and self.pending[:2] == (cursor, step):
            dealt = self.pending[2].result()
        else:  # the first step, or a step that is repeated
            dealt = self.dealer.take(cursor, step, progress)
        next_step = dealt.cursor, step + 1, self.progress_at(step + 1)
        self.pending = *next_step[:2], self.thread.submit(self.dealer.take, *next_step)
        return dealt
