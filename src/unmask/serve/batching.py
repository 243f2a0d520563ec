"""Requests -> batches: what waits for the same is computed together, by one thread.

The event loop only puts work into a queue and waits for its future; it is never blocked. A batch
takes the oldest work and all that wants the same (model, verb, options) until it has enough tokens,
so that under load batches fill by themselves and without load nobody waits for company.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

from unmask.errors import DataError, SettingsError
from unmask.serve.limits import Limits, Refused, busy, invalid, too_late

Run = Callable[[list[Any]], Sequence[Any]]  # items -> an answer to each


@dataclass
class Work:
    """The items of one request, all of which want the same."""

    key: Hashable
    run: Run
    items: list[Any]
    tokens: int
    future: "asyncio.Future[list[Any]]"
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """The queue and the thread that empties it."""

    def __init__(
        self, limits: Limits, *, seen: Callable[[int, int], None] = lambda texts, tokens: None
    ) -> None:
        self.limits, self.seen = limits, seen
        self.works: deque[Work] = deque()
        self.waiting = 0  # texts in the queue
        self.changed = Condition()
        self.stopped = False
        self.thread = Thread(target=self._serve, name="unmask-batches", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self.thread.start()

    def stop(self) -> None:
        """End when the queue is empty, or leave what still runs to die with the process."""
        with self.changed:
            self.stopped = True
            self.changed.notify()
        if self.thread.is_alive():
            self.thread.join(timeout=self.limits.drain_seconds)

    def full(self, more: int = 1) -> Refused | None:
        """Why so many more texts may not wait, if they may not."""
        waiting, most = self.waiting, self.limits.queue
        if self.stopped:
            return too_late("the server is being stopped. Try again.")
        if waiting + more <= most:
            return None
        return busy(f"{waiting} texts wait already, and {most} may. Try again in a second.")

    async def ask(self, key: Hashable, run: Run, items: list[Any], tokens: int) -> list[Any]:
        """Wait for the answers to the items, in order; works with an equal key share a `run`."""
        if not items:
            return []
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        with self.changed:
            if refused := self.full(len(items)):
                raise refused
            self.waiting += len(items)
            self.works.append(Work(key, run, items, tokens, future))
            self.changed.notify()
        return await future

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            for work, found in zip(batch, self._answers(batch), strict=True):
                _tell(work, found)

    def _next(self) -> list[Work] | None:
        """The oldest work and its like; waits for one, and is None when all is over."""
        with self.changed:
            while not self.works:
                if self.stopped:
                    return None
                self.changed.wait()
            late = time.monotonic() - self.limits.request_seconds
            batch: list[Work] = []
            others: deque[Work] = deque()
            for work in self.works:
                if work.future.cancelled():
                    self.waiting -= len(work.items)
                elif work.since < late:
                    self.waiting -= len(work.items)
                    _tell(work, too_late("it waited too long. Try again."))
                elif not batch or (work.key == batch[0].key and self._fits(batch, work)):
                    self.waiting -= len(work.items)
                    batch.append(work)
                else:
                    others.append(work)
            self.works = others
        return batch

    def _fits(self, batch: list[Work], work: Work) -> bool:
        return sum(own.tokens for own in batch) + work.tokens <= self.limits.batch_tokens

    def _answers(self, batch: list[Work]) -> list[Any]:
        """What each work gets: a list of answers, or the error that is its own."""
        items = [item for work in batch for item in work.items]
        if not items:
            return []
        try:
            found = iter(batch[0].run(items))
            self.seen(len(items), sum(work.tokens for work in batch))
            return [[next(found) for _ in work.items] for work in batch]
        except BaseException as error:  # a panic of the tokenizer's engine is no Exception
            if len(batch) == 1:
                return [_known(error)]
            # One by one: what is wrong with one is not answered to its neighbours.
            return [own for work in batch for own in self._answers([work])]


def _tell(work: Work, found: Any) -> None:
    """Let the request go on, in its own thread."""
    loop = work.future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_settle, work.future, found)


def _settle(future: "asyncio.Future[list[Any]]", found: Any) -> None:
    if future.done():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)


def _known(error: BaseException) -> Exception:
    """What is wrong with the text is the client's to know; the rest is ours."""
    if isinstance(error, DataError | SettingsError):
        return invalid(str(error))
    return error if isinstance(error, Refused) else RuntimeError(repr(error))
