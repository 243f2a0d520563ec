"""Examples -> answers in their order: sort by length, batch, run, restore the order.

Evaluation during training, `evaluate`, `predict`, `embed` and the server all use this engine.

Memory does not grow with the input, because examples are processed in groups and only one group is
held. The answer to an example does not depend on the other examples of its row or group.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from threading import Barrier
from typing import Protocol, TypeVar

import torch

from unmask.data.batch import Tokenized
from unmask.data.packing import BATCH_TOKENS, WORKER_TOKENS, group_by_length

GROUP = 4096  # examples that are sorted together; enough for batches of nearly equal lengths
IDLE = 0.3  # share of idle workers above which all cores compute each batch together

_CORES: ContextVar[int | None] = ContextVar("cores", default=None)  # set in workers

E = TypeVar("E", bound=Tokenized)
A = TypeVar("A")
P = TypeVar("P")


class _Map(Protocol):
    """A function like `map` with one iterable: `map` itself, or that of a thread pool."""

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
    """Yield the answer of `read` to each example, in the order of the examples.

    `read` gets examples of similar length: about `tokens` tokens on all cores, or `worker_tokens`
    in each of several workers if there are enough batches for them. `full` is called after each
    example and returns True to end the group early, when the caller holds too much in memory.
    """
    examples = iter(examples)
    with ExitStack() as resources:
        parallel_map: _Map | None = None
        while group := _group(examples, full):

            def answer(indices: list[int], group: list[E] = group) -> Sequence[A]:
                with torch.inference_mode():
                    return read([group[i] for i in indices])

            # One small batch per core fits the core's cache and needs no synchronisation. With too
            # few batches some cores would be idle; larger batches on all cores are then faster.
            batches = list(by_length(group, worker_tokens or WORKER_TOKENS))
            map_batches: _Map = map
            if workers == 1 or _idle_share(len(batches), workers) > IDLE:
                batches = list(by_length(group, tokens))
            else:
                batches.reverse()  # end with the cheapest batches, so that workers finish together
                # Started only when needed: starting workers takes half as long as a single text.
                if parallel_map is None:
                    parallel_map = resources.enter_context(_worker_map(workers))
                map_batches = parallel_map
            answers: dict[int, A] = {}
            for indices, results in zip(batches, map_batches(answer, batches), strict=True):
                answers.update(zip(indices, results, strict=True))
            yield from (answers[i] for i in range(len(group)))


@contextmanager
def _worker_map(workers: int) -> Iterator[_Map]:
    """Provide a `map` that runs calls in parallel threads, with one core for each call."""
    threads, ready = torch.get_num_threads(), Barrier(workers + 1)

    def begin() -> None:
        _CORES.set(1)
        torch.set_num_threads(1)
        # torch fixes the number for a thread when the thread first asks. Ask now, before the
        # caller's number is restored below; otherwise every worker would use all cores.
        torch.get_num_threads()
        ready.wait()

    with ThreadPoolExecutor(workers, initializer=begin) as pool:
        # `submit` starts a thread only if none is idle. The barrier keeps those that have started
        # busy, so this starts all of them, and each has asked for its number.
        for _ in range(workers):
            pool.submit(int)
        ready.wait()
        torch.set_num_threads(threads)  # also the default of threads started later
        yield pool.map


def cores() -> int:
    """Return the number of cores for the calling thread: one in a worker, else torch's number."""
    return _CORES.get() or torch.get_num_threads()


def _idle_share(batches: int, workers: int) -> float:
    """Estimate the idle share of the workers, if all parts take equally long."""
    rounds = -(-batches // workers)
    return 1.0 - batches / (rounds * workers)


def _group(examples: Iterator[E], full: Callable[[], bool]) -> list[E]:
    group: list[E] = []
    for example in examples:
        group.append(example)
        if len(group) == GROUP or full():
            break
    return group


def by_length(examples: Sequence[Tokenized], most: int | None = None) -> Iterator[list[int]]:
    """Yield batches of about `most` tokens, as indices of examples with similar lengths."""
    return group_by_length([len(example.ids) for example in examples], most)
