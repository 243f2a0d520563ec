"""Jobs -> results, in order, from several processes, reading only a few jobs ahead."""

import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

from unmask.system.errors import UserError

_PR_SET_PDEATHSIG = 1
Job = TypeVar("Job")
Result = TypeVar("Result")


def map_in_order(
    work: Callable[[Job], Result], jobs: Iterable[Job], workers: int
) -> Iterator[tuple[Job, Result]]:
    """Yield each job with its result, in order; `work` and its jobs must be picklable."""
    if workers <= 1:
        yield from ((job, work(job)) for job in jobs)
        return
    context = get_context("spawn")  # a fork would copy the locks of running threads
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start_worker, initargs=(os.getpid(),)
    ) as pool:
        # Lazy, unlike pool.map, which reads all jobs at once: chunks of a corpus would fill memory.
        submitted = ((job, pool.submit(work, job)) for job in jobs)
        try:
            # One job more than there are workers, so that none is idle while a result is consumed.
            pending = deque(islice(submitted, workers + 1))
            while pending:
                pending.extend(islice(submitted, 1))
                job, future = pending.popleft()
                yield job, future.result()
        except BrokenProcessPool:
            raise UserError(
                "a worker process was killed, often because memory ran out; finished work is kept. "
                "Run the same command again with fewer --workers."
            ) from None
        finally:
            # Also when the consumer stops early: no process may outlive the generator.
            pool.shutdown(cancel_futures=True)


def _start_worker(parent: int) -> None:
    """Set up a worker: one thread, as there is a worker per core, and an end with its parent."""
    os.environ["RAYON_NUM_THREADS"] = "1"  # threads of the tokenizer's engine
    if sys.platform == "linux":
        # A parent that is killed cannot shut its pool down; the kernel kills its workers instead.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl
        os._exit(1)
