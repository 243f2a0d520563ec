"""Jobs -> results, in order, on several processes, never reading far ahead of the workers."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from unmask.errors import UserError

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Job], Result], jobs: Iterable[Job], workers: int
) -> Iterator[tuple[Job, Result]]:
    """Yield every job with its result; `work` must be a function that can be pickled."""
    if workers <= 1:
        yield from ((job, work(job)) for job in jobs)
        return
    spawn = get_context("spawn")  # a fork would copy the locks of running threads
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_use_one_thread) as pool:
        waiting: deque[tuple[Job, Future[Result]]] = deque()
        try:
            for job in jobs:
                waiting.append((job, pool.submit(work, job)))
                if len(waiting) > workers + 1:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        except BrokenProcessPool:
            raise UserError(
                "a worker process was killed, often because memory ran out; what was finished is "
                "kept. Run the same command again, with fewer --workers."
            ) from None
        finally:
            for _, future in waiting:
                future.cancel()


def _use_one_thread() -> None:
    """The workers are as many as the cores: each keeps to one."""
    os.environ["RAYON_NUM_THREADS"] = "1"  # the tokenizer's engine
