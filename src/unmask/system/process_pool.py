"""Jobs -> results, in order, on several processes, never reading far ahead of the workers."""

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
    """Yield every job with its result; `work` must be a function that can be pickled."""
    if workers <= 1:
        yield from ((job, work(job)) for job in jobs)
        return
    spawn = get_context("spawn")  # a fork would copy the locks of running threads
    with ProcessPoolExecutor(
        workers, mp_context=spawn, initializer=_begin, initargs=(os.getpid(),)
    ) as pool:
        submitted = ((job, pool.submit(work, job)) for job in jobs)
        try:
            waiting = deque(islice(submitted, workers + 1))
            while waiting:
                waiting.extend(islice(submitted, 1))
                job, future = waiting.popleft()
                yield job, future.result()
        except BrokenProcessPool:
            raise UserError(
                "a worker process was killed, often because memory ran out; what was finished is "
                "kept. Run the same command again, with fewer --workers."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """A worker keeps to one thread, for there is one for each core, and dies with its parent."""
    os.environ["RAYON_NUM_THREADS"] = "1"  # the tokenizer's engine
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask to be told
        os._exit(1)
