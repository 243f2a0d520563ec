"""Requests -> batches and sessions, computed by one thread.

The event loop only puts work into a queue and waits for its future; it is never blocked. A batch
takes the oldest work and all that wants the same (model, verb, options) until it has enough tokens,
so that under load batches fill by themselves and without load nobody waits for company.

Some answers grow step by step, such as texts token by token: their works begin a session. After a
batch the sessions take a step each, one after another, for as long as the batch took; at least one
of them does. A step is short, so that nobody waits for a long text to end.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, Protocol

from unmask.server.limits import Limits, RequestError, busy, invalid, too_large, too_late
from unmask.server.metrics import Metrics
from unmask.system.errors import DataError, SettingsError, TextTooLong

Grown = Callable[[object], None]  # is given what there is of an answer, after each step


class GenerationSession(Protocol):
    """Answers to items that grow together."""

    @property
    def done(self) -> bool:
        """Are all answers complete?"""

    def step(self) -> None:
        """Go a short way further."""

    def answers(self) -> Sequence[object]:
        """What there is of each answer so far."""


@dataclass
class PendingRequest:
    """The items of one request, all of which want the same."""

    key: object  # works with an equal one are done together; it is compared, never hashed
    run: Callable[[Sequence[Any]], Any]  # items -> an answer to each, or their session
    items: Sequence[object]
    tokens: int
    grows: bool = False  # it is a session
    grown: Grown | None = None
    future: Future[list[object]] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)
    left: bool = False  # the client has gone
    seen: int = 0  # the steps of its session when its client was last given an answer


@dataclass
class RunningSession:
    """A session and the works that it answers."""

    session: GenerationSession
    works: list[PendingRequest]
    steps: int = 0  # taken


class Batcher:
    """The queue and the thread that empties it."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.works: deque[PendingRequest] = deque()
        self.sessions: deque[RunningSession] = deque()  # of the thread alone
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

    def full(self, more: int = 1) -> RequestError | None:
        """Why so many more texts may not wait, if they may not."""
        waiting, most = self.waiting, self.limits.queue
        if self.stopped:
            return too_late("the server is being stopped. Try again.")
        if waiting + more <= most:
            return None
        return busy(f"{waiting} texts wait already, and {most} may. Try again in a second.")

    async def ask(self, work: PendingRequest) -> list[Any]:
        """Wait for the answers to a work's items, in order."""
        if not work.items:
            return []
        with self.changed:
            if refused := self.full(len(work.items)):
                raise refused
            self.waiting += len(work.items)
            self.works.append(work)
            self.changed.notify()
        try:
            return await asyncio.wrap_future(work.future)
        finally:
            work.left = True  # matters only where it was not answered yet

    async def stream(self, work: PendingRequest) -> AsyncIterator[Any]:
        """The answer to a single item as it grows; the last one is complete."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[object] = asyncio.Queue()
        end = object()

        def put(answer: object) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, answer)

        work.grown = put
        asking = asyncio.create_task(self.ask(work))
        asking.add_done_callback(lambda _: queue.put_nowait(end))
        try:
            while (answer := await queue.get()) is not end:
                yield answer
            yield asking.result()[0]
        finally:
            asking.cancel()

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            begun = time.monotonic()
            if batch:
                self._start(batch)
            now = time.monotonic()
            until = now + (now - begun)  # with no batch, one may come: only one session steps
            for _ in range(len(self.sessions)):
                self._advance()
                if time.monotonic() >= until:
                    break

    def _next(self) -> list[PendingRequest] | None:
        """The oldest work and its like, or nothing if a session waits; None when all is over."""
        with self.changed:
            while not self.works:
                if self.sessions:
                    return []
                if self.stopped:
                    return None
                self.changed.wait()
            batch: list[PendingRequest] = []
            others: deque[PendingRequest] = deque()
            for work in self.works:
                expired = self._expired(work)
                if not (work.left or expired or self._fits(batch, work)):
                    others.append(work)
                    continue
                self.waiting -= len(work.items)
                if work.left or not _begun(work.future):
                    continue  # the client has gone
                if expired:
                    work.future.set_exception(too_late("it waited too long. Try again."))
                else:
                    batch.append(work)
            self.works = others
        return batch

    def _expired(self, work: PendingRequest) -> bool:
        return time.monotonic() - work.since > self.limits.request_seconds

    def _fits(self, batch: list[PendingRequest], work: PendingRequest) -> bool:
        if work.grows and len(self.sessions) >= self.limits.sessions:
            return False
        if not batch:
            return True
        tokens = sum(own.tokens for own in batch) + work.tokens
        return work.key == batch[0].key and tokens <= self.limits.batch_tokens

    def _start(self, batch: list[PendingRequest]) -> None:
        """Give each work its answers, begin a session for all, or say what is wrong."""
        items = [item for work in batch for item in work.items]
        try:
            found = batch[0].run(items)
            self.metrics.batch(len(items), sum(work.tokens for work in batch))
            if batch[0].grows:
                self.sessions.append(RunningSession(found, batch))
                return
            answers = _dealt(found, batch)
        except BaseException as error:  # a panic of the tokenizer's engine is no Exception
            self._failed(batch, error)
            return
        for work, own in zip(batch, answers, strict=True):
            work.future.set_result(own)

    def _advance(self) -> None:
        """Take one step of the session whose turn it is; its deadline is looked at before."""
        running = self.sessions.popleft()
        session, works = running.session, running.works
        running.steps += 1
        for work in works:
            if self._expired(work) and not work.future.done():
                work.future.set_exception(too_late("it took too long. Try again, or ask for less."))
        waiting = [work for work in works if not (work.left or work.future.done())]
        if not waiting:
            return  # nobody waits for it any more
        try:
            session.step()
            shown = session.done or any(work.grown for work in waiting)
            answers = _dealt(session.answers(), works) if shown else [[]] * len(works)
        except BaseException as error:
            self._failed(waiting, error)
            return
        for work, own in zip(works, answers, strict=True):
            if work.left or work.future.done():
                continue
            if session.done:
                work.future.set_result(own)
            elif work.grown and running.steps > work.seen:  # what it has seen never shrinks
                work.seen = running.steps
                work.grown(own[0])
        if not session.done:
            self.sessions.append(running)

    def _failed(self, batch: list[PendingRequest], error: BaseException) -> None:
        """What is wrong with one work is not answered to its neighbours: each goes on alone.

        They wait in front of the others, so that as few sessions run at once as ever.
        """
        if len(batch) == 1:
            batch[0].future.set_exception(_known(error))
            return
        with self.changed:
            for work in reversed(batch):
                work.key = object()  # equal to no other
                self.waiting += len(work.items)
                self.works.appendleft(work)


def _begun(future: Future[list[object]]) -> bool:
    """Is it still wanted? From now on it cannot be cancelled."""
    return future.running() or future.set_running_or_notify_cancel()


def _dealt(answers: Sequence[object], works: Sequence[PendingRequest]) -> list[list[object]]:
    """Those of each work."""
    found = iter(answers)
    return [[next(found) for _ in work.items] for work in works]


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
