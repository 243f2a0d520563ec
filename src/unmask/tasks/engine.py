"""Examples -> answers in order: sort by length, pack rows, run, put back in order.

Training's evaluation, `evaluate`, `predict`, `embed` and the server all go through here.

Memory does not grow with the input: examples are taken in groups, and only a group is held. What
an example's answer is does not depend on those that happened to share its row or its group.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Barrier
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from unmask.data.batch import Batch, Example, Tokenized, collate
from unmask.data.packing import Rows, pack
from unmask.model.network import Network
from unmask.model.network import Rows as NetworkRows
from unmask.model.shape import LABELS

GROUP = 4096  # examples that are sorted together: enough to find neighbours of equal length
BATCH_TOKENS = 2048  # per pass: large enough for the matrix products, small enough for the cache
WORKER_TOKENS = 512  # of a worker that has a core, and its cache, for itself
IDLE = 0.3  # of the workers; beyond it, all cores had better share each batch
ROW_TOKENS = 128  # short texts may share rows of this length
READ = "read"  # among a batch's labels: the places in the flat batch
ATTENTION = 600  # tokens of a row at which attention costs as much as all the rest

_CORES: ContextVar[int | None] = ContextVar("cores", default=None)  # of a worker

E = TypeVar("E", bound=Tokenized)
A = TypeVar("A")
P = TypeVar("P")


class _Map(Protocol):
    """What `map` is, for one argument."""

    def __call__(self, fn: Callable[[P], A], parts: Iterable[P], /) -> Iterable[A]: ...


def run(
    examples: Iterable[E],
    read: Callable[[list[E]], Sequence[A]],
    full: Callable[[], bool] = lambda: False,
    *,
    workers: int = 1,
    tokens: int = BATCH_TOKENS,
    worker_tokens: int | None = None,
) -> Iterator[A]:
    """Yield what `read` makes of each example, in the order they came.

    It is given neighbours in length, some `tokens` at a time, or `worker_tokens` to each of several
    workers if there is enough for them. `full` may end a group early: is more held than memory has
    room for?
    """
    examples = iter(examples)
    with ExitStack() as later:
        at_once: _Map | None = None
        while group := _group(examples, full):

            def answer(chosen: list[int], group: list[E] = group) -> Sequence[A]:
                with torch.inference_mode():
                    return read([group[i] for i in chosen])

            parts = list(by_length(group, worker_tokens or WORKER_TOKENS))
            each: _Map = map
            if workers == 1 or _idle(len(parts), workers) > IDLE:
                parts = list(by_length(group, tokens))
            else:  # they take longer to begin than one text to answer
                parts.reverse()  # who is last had better have the least to do
                each = at_once = at_once or later.enter_context(_several(workers))
            answers: dict[int, A] = {}
            for chosen, found in zip(parts, each(answer, parts), strict=True):
                answers.update(zip(chosen, found, strict=True))
            yield from (answers[i] for i in range(len(group)))


@contextmanager
def _several(workers: int) -> Iterator[_Map]:
    """A `map` whose calls run side by side, each on one core: they need not wait for each other."""
    threads, ready = torch.get_num_threads(), Barrier(workers + 1)

    def begin() -> None:
        _CORES.set(1)
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread takes the caller's number when it first asks: now
        ready.wait()

    with ThreadPoolExecutor(workers, initializer=begin) as pool:
        for _ in range(workers):
            pool.submit(int)
        ready.wait()
        torch.set_num_threads(threads)  # with which threads begin, those of the caller too
        yield pool.map


def cores() -> int:
    """How many the caller has: a worker of ours one, others as many as torch."""
    return _CORES.get() or torch.get_num_threads()


def _idle(parts: int, workers: int) -> float:
    """The share of workers that have nothing to do, if each part takes as long as another."""
    turns = -(-parts // workers)
    return 1.0 - parts / (turns * workers)


def _group(examples: Iterator[E], full: Callable[[], bool]) -> list[E]:
    group: list[E] = []
    for example in examples:
        group.append(example)
        if len(group) == GROUP or full():
            break
    return group


def by_length(examples: Sequence[Tokenized], most: int | None = None) -> Iterator[list[int]]:
    """Neighbours in length together, about `most` tokens at a time: their numbers."""
    return neighbours([len(example.ids) for example in examples], most)


def neighbours(lengths: Sequence[int], most: int | None = None) -> Iterator[list[int]]:
    """Group lengths, shortest first, about `most` in each sum: the places of each group."""
    most = most or BATCH_TOKENS
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and tokens + lengths[i] > most:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += lengths[i]
    if batch:
        yield batch


def lay_out(examples: Sequence[Example], *, pad_id: int) -> Batch:
    """Pack examples into the rows that cost least."""
    return collate(examples, rows_of([len(example.ids) for example in examples]), pad_id=pad_id)


def rows_of(lengths: Sequence[int]) -> Rows:
    """Which texts share a row: short rows, unless long ones are fuller."""
    longest = max(lengths)
    widths = [*range(longest, ROW_TOKENS, longest), max(longest, ROW_TOKENS)]
    plans = [(pack(lengths, width), width) for width in widths]
    rows, _ = min(plans, key=lambda plan: len(plan[0]) * _row_cost(plan[1]))
    return rows


def _row_cost(width: int) -> float:
    return width * (1.0 + width / ATTENTION)


class Forward(Protocol):
    """Rows -> numbers: a network as it is, or as a runtime has compiled it."""

    @property
    def workers(self) -> int:
        """Batches that are best computed side by side."""

    def scores(self, batch: Batch) -> Tensor:
        """What the head says at the places to read.  -> [P, C]"""

    def last(self, batch: Batch) -> Tensor:
        """The states of the last block.  -> [B, S, D]"""


@dataclass(frozen=True)
class Live:
    """A network as it is."""

    network: Network

    @property
    def workers(self) -> int:
        """One for each core, since they then wait for nothing; one on other devices."""
        return torch.get_num_threads() if self._device.type == "cpu" else 1

    def scores(self, batch: Batch) -> Tensor:
        """What the head says at the places to read.  -> [P, C]"""
        return scores_of(self.network, batch.to(self._device))

    def last(self, batch: Batch) -> Tensor:
        """The states of the last block.  -> [B, S, D]"""
        return self.states(batch)[-1]

    def states(self, batch: Batch) -> list[Tensor]:
        """The embeddings and the output of every block: layers + 1 tensors [B, S, D]."""
        batch = batch.to(self._device)
        trace: list[Tensor] = []
        self.network.encode(batch, trace=trace)
        return trace

    @property
    def _device(self) -> torch.device:
        return self.network.table().device


def network_of(forward: Forward) -> Network:
    """The network of a live model, which alone can say texts."""
    assert isinstance(forward, Live), "a compiled model says no texts"
    return forward.network


def scores_of(network: Network, batch: Batch, head: str = LABELS) -> Tensor:
    """Scores of labels at the places to read.  -> [P, C]"""
    return scores_at(network, batch, batch.labels[READ], head=head)


def scores_at(
    network: Network,
    rows: NetworkRows,
    places: Tensor,
    *,
    head: str = LABELS,
    shared: bool = False,
) -> Tensor:
    """The same of any rows and places.  [P] -> [P, C]"""
    states = network.states_for(head, rows, places=places, shared=shared)
    return network.label_scores(states, head)
