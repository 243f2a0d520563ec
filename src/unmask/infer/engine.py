"""Examples -> answers in order: sort by length, pack rows, run, put back in order.

Training's evaluation, `evaluate`, `predict`, `embed` and the server all go through here.

Memory does not grow with the input: examples are taken in groups, and only a group is held. What
an example's answer is does not depend on those that happened to share its row or its group.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from threading import Barrier
from typing import Protocol, TypeVar

import torch

from unmask.data.batch import Tokenized
from unmask.data.packing import BATCH_TOKENS, WORKER_TOKENS, neighbours

GROUP = 4096  # examples that are sorted together: enough to find neighbours of equal length
IDLE = 0.3  # of the workers; beyond it, all cores had better share each batch

_CORES: ContextVar[int | None] = ContextVar("cores", default=None)  # of a worker

E = TypeVar("E", bound=Tokenized)
A = TypeVar("A")
P = TypeVar("P")


class _Map(Protocol):
    """What `map` is, for one argument."""

    def __call__(self, fn: Callable[[P], A], parts: Iterable[P], /) -> Iterable[A]: ...


def run_in_order(
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
