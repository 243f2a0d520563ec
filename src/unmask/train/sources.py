"""Records -> the micro-batches of each step, as a function of where a run is.

A source maps (cursor, step, progress) to lazy micro-batches and knows nothing of processes: `Deal`
gives micro-batch i to process i % world, and only then are they built. Each has a seed of its own,
so that any pass can be repeated exactly, by whichever process.
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
from unmask.data.packing import neighbours
from unmask.objectives.base import Objective
from unmask.system.distributed import Processes
from unmask.system.errors import DataError, SettingsError
from unmask.train.recipe import Recipe
from unmask.train.steps.base import MicroBatch

_ORDER, _DROPOUT, _MIXTURE, _PREPARE = 300, 301, 303, 304  # one key per kind of draw

Cursor = dict[str, int]


@dataclass(frozen=True)
class LazyMicroBatch:
    """A micro-batch that is not built yet, and the seed of its dropout."""

    make: Callable[[], Batch]
    seed: int


PlannedMicroBatch = tuple[Sequence[LazyMicroBatch], Cursor]


class Source(Protocol):
    """Where the micro-batches of a step come from."""

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which everything is seen once."""

    def pieces(self, cursor: Cursor, step: int, progress: float) -> PlannedMicroBatch:
        """All micro-batches of a step, and the cursor of the step after it."""

    def sample(self, count: int) -> Batch:
        """A small batch of the first examples."""


class ShuffledWindows:
    """Records epoch after epoch, each epoch in another order.

    An item is a group of examples that belong together, often of one; a group is never torn apart.
    `lay_out` makes a batch of examples, which the objective prepares. With `neighbours`, steps are
    made of items of like length: that many steps are drawn together and sorted by length.
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
        self._order: tuple[int, NDArray[np.int64]] | None = None
        if not items:
            raise DataError("there are no examples to train on; need at least one.")
        if self.loop.batch_size < self.loop.micro_batches:
            raise SettingsError(
                f"loop.batch_size is {self.loop.batch_size}, for {self.loop.micro_batches} "
                "micro-batches; need an example for each. Raise loop.batch_size."
            )

    def pieces(self, cursor: Cursor, step: int, progress: float) -> PlannedMicroBatch:
        """The next items in micro-batches of examples of like length, groups together."""
        numbers, then = self.take(cursor, self.loop.batch_size)
        parts = _adjusted(self.parts(numbers), self.loop.micro_batches)
        return _lazy(parts, self.seed, step, progress), then

    def parts(self, numbers: Sequence[int]) -> list["_Part"]:
        """Chosen items, about loop.micro_tokens in each part, the shortest first."""
        lengths = [self.length(i) for i in numbers]
        found = neighbours(lengths, self.loop.micro_tokens)
        return [_Part(self, [numbers[i] for i in places]) for places in found]

    def sample(self, count: int) -> Batch:
        """The first items, as at the beginning of a run."""
        return self.batch(range(min(count, len(self.items))), 0, 0.0)

    def take(self, cursor: Cursor, count: int) -> tuple[list[int], Cursor]:
        """The numbers of the next items, over the end of an epoch if need be."""
        epoch, row = cursor.get("epoch", 0), cursor.get("row", 0)
        taken: list[int] = []
        while len(taken) < count:
            order = self._epoch(epoch)
            some = order[row : row + count - len(taken)]
            taken += some.tolist()
            row += len(some)
            if row == len(order):
                epoch, row = epoch + 1, 0
        return taken, {"epoch": epoch, "row": row}

    def batch(self, numbers: Sequence[int], seed: int, progress: float) -> Batch:
        """A batch of chosen items."""
        groups = [self.items[i] for i in numbers]
        batch = self.lay_out([example for group in groups for example in group])
        known = [i for i, group in zip(numbers, groups, strict=True) for _ in group]
        batch = replace(batch, number=torch.tensor(known, dtype=torch.long), seed=seed)
        if len(known) > len(groups):
            places = [place for place, group in enumerate(groups) for _ in group]
            batch = replace(batch, record=torch.tensor(places, dtype=torch.long))
        return self.objective.prepare(batch, counter_rng.key(self.seed, _PREPARE), progress)

    def length(self, item: int) -> int:
        """The tokens of an item."""
        return sum(len(example.ids) for example in self.items[item])

    def _epoch(self, number: int) -> NDArray[np.int64]:
        known = self._order  # read once: two steps may be dealt at a time, see Ahead
        if known is not None and known[0] == number:
            return known[1]
        root = counter_rng.key(self.seed, _ORDER, number)
        order = counter_rng.permutation(root, len(self.items))
        if self.neighbours > 1:
            order = self._sorted(order, root)
        self._order = number, order
        return order

    def _sorted(self, order: NDArray[np.int64], root: int) -> NDArray[np.int64]:
        """Each pool by length, cut into steps, and the steps of all pools in a random order."""
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
    """Items of one source that are computed at a time."""

    source: ShuffledWindows
    numbers: list[int]

    @property
    def tokens(self) -> int:
        return sum(map(self.source.length, self.numbers))

    def halves(self) -> list["_Part"]:
        half = len(self.numbers) // 2
        return [replace(self, numbers=n) for n in (self.numbers[:half], self.numbers[half:])]


def _adjusted(parts: list[_Part], unit: int) -> list[_Part]:
    """Split parts until their number is a multiple of `unit`.

    Where there are too few items for that, the smallest neighbours are joined instead.
    """
    items = sum(len(part.numbers) for part in parts)
    count = min(-(-len(parts) // unit) * unit, items // unit * unit)
    while len(parts) > count:
        pairs = enumerate(pairwise(parts))
        place = min((a.tokens + b.tokens, i) for i, (a, b) in pairs if a.source is b.source)[1]
        both = parts[place].numbers + parts[place + 1].numbers
        parts[place : place + 2] = [replace(parts[place], numbers=both)]
    while len(parts) < count:
        largest = max(range(len(parts)), key=lambda i: len(parts[i].numbers))
        parts[largest : largest + 1] = parts[largest].halves()
    return parts


def _lazy(parts: Sequence[_Part], root: int, step: int, progress: float) -> list[LazyMicroBatch]:
    """Plan a micro-batch of each part."""
    seeds = [counter_rng.key(root, _DROPOUT, step, 0, place) % 2**63 for place in range(len(parts))]
    return [
        LazyMicroBatch(partial(part.source.batch, part.numbers, seed, progress), seed)
        for part, seed in zip(parts, seeds, strict=True)
    ]


class Mixture:
    """Several sources, drawn by their sizes to the power of a temperature.

    `per` says how often is drawn: one source for each step, for each micro-batch, or for each
    record. Every source has a cursor of its own.
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
                f"loop.batch_size is {self.loop.batch_size}, for {len(sources)} data sets in "
                f"{unit} micro-batches; need an example for each. Raise loop.batch_size."
            )
        sizes = np.array([len(source.items) for source in sources.values()], dtype=np.float64)
        self.bounds = np.cumsum(sizes**temperature / (sizes**temperature).sum())
        self.steps_per_epoch = sum(source.steps_per_epoch for source in sources.values())

    def pieces(self, cursor: Cursor, step: int, progress: float) -> PlannedMicroBatch:
        """The next items of the sources whose turn it is."""
        draws_of = {"step": 1, "piece": self.loop.micro_batches, "record": self.loop.batch_size}
        units = draws_of[self.per]
        names = self._drawn([step * units + unit for unit in range(units)])
        each, more = divmod(self.loop.batch_size, units)  # the first `more` units have one more
        parts: list[_Part] = []
        for name, source in self.sources.items():
            drawn = [each + (unit < more) for unit in range(units) if names[unit] == name]
            if drawn:
                own = {key: cursor.get(f"{name}.{key}", 0) for key in ("epoch", "row")}
                numbers, then = source.take(own, sum(drawn))
                cursor = cursor | {f"{name}.{key}": value for key, value in then.items()}
                parts += source.parts(numbers)
        return _lazy(_adjusted(parts, self.loop.micro_batches), self.seed, step, progress), cursor

    def sample(self, count: int) -> Batch:
        """The first items of the first source."""
        return next(iter(self.sources.values())).sample(count)

    def _drawn(self, units: Sequence[int]) -> list[str]:
        names = list(self.sources)
        found = counter_rng.uniform(
            counter_rng.key(self.seed, _MIXTURE), np.array(units, dtype=np.uint64)
        )
        places: list[int] = np.searchsorted(self.bounds, found, side="right").tolist()
        return [names[min(place, len(names) - 1)] for place in places]


@dataclass(frozen=True)
class Dealt:
    """What one process computes of a step."""

    pieces: Sequence[MicroBatch]
    rounds: int  # the most micro-batches that any process has
    cursor: Cursor


class Dealer:
    """A source as one of several processes sees it: its own micro-batches, built."""

    def __init__(self, source: Source, processes: Processes) -> None:
        self.source, self.processes = source, processes

    def take(self, cursor: Cursor, step: int, progress: float) -> Dealt:
        """Build this process's micro-batches of a step."""
        pieces, then = self.source.pieces(cursor, step, progress)
        mine = pieces[self.processes.rank :: self.processes.world]
        rounds = -(-len(pieces) // self.processes.world)
        return Dealt([MicroBatch(piece.make(), piece.seed) for piece in mine], rounds, then)


class Prefetch:
    """A deal that is one step ahead, in a thread; it pays where something else computes, on a GPU.

    `progress_at` says how far a run will be at a step.
    """

    def __init__(self, deal: Dealer, progress_at: Callable[[int], float]) -> None:
        self.deal, self.progress_at = deal, progress_at
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self.made: tuple[Cursor, int, Future[Dealt]] | None = None

    def take(self, cursor: Cursor, step: int, progress: float) -> Dealt:
        """See Deal."""
        if self.made is not None and self.made[:2] == (cursor, step):
            dealt = self.made[2].result()
        else:  # the first step, or one that was given up
            dealt = self.deal.take(cursor, step, progress)
        at = dealt.cursor, step + 1, self.progress_at(step + 1)
        self.made = *at[:2], self.thread.submit(self.deal.take, *at)
        return dealt
