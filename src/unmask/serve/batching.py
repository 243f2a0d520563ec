"""Requests -> batches: what waits for the same is computed together, by one thread.

The event loop only puts work into a queue and waits for its future; it is never blocked. A batch
takes the oldest work and all that wants the same (model, verb, options) until it has enough tokens,
so that under load batches fill by themselves and without load nobody waits for company.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

from unmask.errors import DataError, SettingsError
from unmask.serve.limits import Limits, Refused, busy, invalid, too_large, too_late
from unmask.serve.metrics import Metrics
from unmask.use.model import TextTooLong

Run = Callable[[Sequence[Any]], Sequence[Any]]  # items -> an answer to each


@dataclass
class Work:
    """The items of one request, all of which want the same."""

    key: Hashable
    run: Run
    items: Sequence[Any]
    tokens: int
    future: Future[list[Any]] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """The queue and the thread that empties it."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.works: deque[Work] = deque()
        self.waiting = 0  # texts in the queue
        self.changed = Condition()
        self.stopped = False
        self.thread = Thread(target=self._serve, name="unmask-batches", daemon=True)
        metrics.waiting.set_function(lambda: self.waiting)

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

    async def ask(self, key: Hashable, run: Run, items: Sequence[Any], tokens: int) -> list[Any]:
        """Wait for the answers to the items, in order; works with an equal key share a `run`."""
        if not items:
            return []
        work = Work(key, run, items, tokens)
        with self.changed:
            if refused := self.full(len(items)):
                raise refused
            self.waiting += len(items)
            self.works.append(work)
            self.changed.notify()
        return await asyncio.wrap_future(work.future)

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._answer(batch)

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
                expired = work.since < late
                if not (work.future.cancelled() or expired or self._fits(batch, work)):
                    others.append(work)
                    continue
                self.waiting -= len(work.items)
                if not work.future.set_running_or_notify_cancel():
                    continue  # the client has gone
                if expired:
                    work.future.set_exception(too_late("it waited too long. Try again."))
                else:
                    batch.append(work)
            self.works = others
        return batch

    def _fits(self, batch: list[Work], work: Work) -> bool:
        if not batch:
            return True
        tokens = sum(own.tokens for own in batch) + work.tokens
        return work.key == batch[0].key and tokens <= self.limits.batch_tokens

    def _answer(self, batch: list[Work]) -> None:
        """Give each work its answers, or the error that is its own."""
        items = [item for work in batch for item in work.items]
        try:
            found = iter(batch[0].run(items))
            self.metrics.batch(len(items), sum(work.tokens for work in batch))
            answers = [[next(found) for _ in work.items] for work in batch]
        except BaseException as error:  # a panic of the tokenizer's engine is no Exception
            if len(batch) == 1:
                batch[0].future.set_exception(_known(error))
                return
            for work in batch:  # what is wrong with one is not answered to its neighbours
                self._answer([work])
            return
        for work, own in zip(batch, answers, strict=True):
            work.future.set_result(own)


def _known(error: BaseException) -> Exception:
    """What is wrong with the text is the client's to know; the rest is ours."""
    if isinstance(error, TextTooLong):
        said = f"text {error.number}: {error.tokens:,} tokens; the model holds {error.limit}."
        return too_large(f"{said} Shorten it, or let its end be cut (truncate: true).")
    if isinstance(error, DataError | SettingsError):
        return invalid(str(error))
    mistake = RuntimeError(repr(error))
    mistake.__cause__ = error  # with its traceback, for the log
    return mistake
