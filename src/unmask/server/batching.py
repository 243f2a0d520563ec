"""Pending requests -> batches and generation sessions -> answers, computed by one thread.

The event loop never computes: it puts a request into a queue and awaits its future. The inference
thread takes the oldest request and all waiting requests with the same key (model, capability,
options), up to a number of tokens. Without load, no request waits for others; under load, batches
fill by themselves.

An answer that is generated token by token needs a session. After each batch, the running sessions
take one step each, one after another, for as long as the batch took; at least one session takes a
step. Between two layers of a step, a waiting batch of another model is computed first if sessions
have had a quarter of the time of the last batch. So no request waits for a long text to end, and
most do not even wait for a step.
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

PartialCallback = Callable[[object], None]  # receives the partial answer after each step
# The time of sessions between two batches, relative to that of the first, before a batch may
# interrupt a step. With 0, a client that sends one request after another would starve them.
SESSION_SHARE = 0.25


class GenerationSession(Protocol):
    """Answers to several items that are generated together, step by step."""

    @property
    def done(self) -> bool:
        """Are all answers complete?"""

    def step(self) -> None:
        """Generate a little more of each unfinished answer, such as one token."""

    def answers(self) -> Sequence[object]:
        """Return the partial answer to each item, in order."""


@dataclass
class PendingRequest:
    """The items of one request (or of a part of it), which share model, capability and options."""

    # Requests with equal keys are computed together. Keys are compared and never hashed, because
    # the options of a task may be lists.
    key: object
    run: Callable[[Sequence[Any]], Any]  # items -> one answer per item, or a session for all
    items: Sequence[object]
    tokens: int  # estimated
    generates: bool = False  # `run` returns a session
    model: str = ""  # its name
    on_partial: PartialCallback | None = None  # set if the client wants to see the answer grow
    future: Future[list[object]] = field(default_factory=Future)
    queued_at: float = field(default_factory=time.monotonic)
    abandoned: bool = False  # the client has disconnected or does not wait any longer
    steps_sent: int = 0  # steps of the session behind the last partial answer that was sent


@dataclass
class RunningSession:
    """A generation session and the requests that share it."""

    session: GenerationSession
    requests: list[PendingRequest]
    steps: int = 0  # taken


class Batcher:
    """The queue of pending requests and the inference thread that answers them."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.requests: deque[PendingRequest] = deque()
        # Only the inference thread touches the sessions, so they need no lock.
        self.sessions: deque[RunningSession] = deque()
        self.waiting = 0  # texts in the queue
        self.stepping: str | None = None  # name of the model whose session takes a step just now
        self.sessions_turn = 0.0  # the time until which no batch may interrupt a step
        self.changed = Condition()
        self.stopped = False
        # A daemon: a computation that outlasts the drain time must not keep the process alive.
        self.thread = Thread(target=self._run, name="unmask-batches", daemon=True)
        metrics.waiting.set_function(lambda: self.waiting)

    def start(self) -> None:
        """Start the inference thread."""
        self.thread.start()

    def stop(self) -> None:
        """Let the thread finish the queue; after the drain time, stop waiting for it."""
        with self.changed:
            self.stopped = True
            self.changed.notify()
        if self.thread.is_alive():
            self.thread.join(timeout=self.limits.drain_seconds)

    def full(self, more: int = 1) -> RequestError | None:
        """Return the error with which to refuse `more` texts, or None if they may wait.

        The guard calls this without the lock to refuse early; `ask` checks again with it.
        """
        waiting, limit = self.waiting, self.limits.queue
        if self.stopped:
            return too_late("the server is shutting down. Try again later.")
        if waiting + more <= limit:
            return None
        return busy(
            f"the queue is full: {waiting} texts are waiting, and at most {limit} may. Try again "
            "in a second."
        )

    async def ask(self, request: PendingRequest) -> list[Any]:
        """Queue a request and wait for the answers to its items, in order."""
        if not request.items:
            return []
        with self.changed:
            if error := self.full(len(request.items)):
                raise error
            self.waiting += len(request.items)
            self.requests.append(request)
            self.changed.notify()
        try:
            return await asyncio.wrap_future(request.future)
        finally:
            # Also reached when the client disconnects, which cancels the wait. Until the request is
            # answered, this flag tells the inference thread to drop it.
            request.abandoned = True

    async def stream(self, request: PendingRequest) -> AsyncIterator[Any]:
        """Yield the growing answer to a request with one item; the last one is complete."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[object] = asyncio.Queue()
        complete = object()

        # Called by the inference thread. The loop runs these callbacks in order, and the future is
        # resolved by a later one, so no partial answer can arrive after `end`.
        def put(answer: object) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, answer)

        request.on_partial = put
        task = asyncio.create_task(self.ask(request))
        task.add_done_callback(lambda _: queue.put_nowait(complete))
        try:
            while (answer := await queue.get()) is not complete:
                yield answer
            yield task.result()[0]  # raises here if the request has failed
        finally:
            task.cancel()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            # Sessions get as much time as the batch took, so that neither can starve the other.
            # Without a batch that is none: one session steps, then the queue is checked again.
            seconds = self._start_batch(batch) if batch else 0.0
            until = time.monotonic() + seconds
            for _ in range(len(self.sessions)):
                self._step_session()
                if time.monotonic() >= until:
                    break

    def interrupt(self) -> None:
        """Compute a waiting batch of another model; called between two layers of a network.

        It does nothing unless a session is taking a step and has had its time.
        """
        model = self.stepping
        if model is None or not self.requests or time.monotonic() < self.sessions_turn:
            return
        self.stepping = None  # the layers of this batch are not interrupted in turn
        try:
            with self.changed:
                batch = self._take_batch(stepping=model)
            if batch:
                self._start_batch(batch)
        finally:
            self.stepping = model

    def _next_batch(self) -> list[PendingRequest] | None:
        """Wait for work and return the next batch; None ends the thread.

        The batch is empty if there is only a session to continue.
        """
        with self.changed:
            while not self.requests:
                if self.sessions:
                    return []
                if self.stopped:
                    return None
                self.changed.wait()
            return self._take_batch()

    def _take_batch(self, stepping: str | None = None) -> list[PendingRequest]:
        """Remove the next batch from the queue, and all abandoned or expired requests.

        `stepping` is the model of a session in the middle of a step.
        """
        batch: list[PendingRequest] = []
        others: deque[PendingRequest] = deque()
        for request in self.requests:
            expired = self._expired(request)
            # A request for the same model waits until the step ends: the step may be listening to
            # the network's attention. So does one that begins a session, which takes its time.
            waits = stepping is not None and (request.generates or request.model == stepping)
            if not (request.abandoned or expired) and (waits or not self._fits(batch, request)):
                others.append(request)
                continue
            self.waiting -= len(request.items)
            if request.abandoned or not _mark_running(request.future):
                continue
            if expired:
                message = "the request waited too long in the queue. Try again."
                request.future.set_exception(too_late(message))
            else:
                batch.append(request)
        self.requests = others
        return batch

    def _expired(self, request: PendingRequest) -> bool:
        return time.monotonic() - request.queued_at > self.limits.request_seconds

    def _fits(self, batch: list[PendingRequest], request: PendingRequest) -> bool:
        if request.generates and len(self.sessions) >= self.limits.sessions:
            return False  # it stays in the queue, and requests without a session overtake it
        if not batch:
            return True  # however many tokens it has, or it would never run
        tokens = sum(member.tokens for member in batch) + request.tokens
        return request.key == batch[0].key and tokens <= self.limits.batch_tokens

    def _start_batch(self, batch: list[PendingRequest]) -> float:
        """Compute a batch, or begin its session, and return the seconds that it took."""
        started = time.monotonic()
        self._answer_batch(batch)
        now = time.monotonic()
        self.sessions_turn = now + SESSION_SHARE * (now - started)
        return now - started

    def _answer_batch(self, batch: list[PendingRequest]) -> None:
        """Compute a batch, or begin its session; an error becomes the requests' exception."""
        items = [item for request in batch for item in request.items]
        try:
            result = batch[0].run(items)
            self.metrics.batch(len(items), sum(request.tokens for request in batch))
            if batch[0].generates:
                self.sessions.append(RunningSession(result, batch))
                return
            answers = _split(result, batch)
        # A panic in the tokenizers library (Rust) is not an Exception. If it ended this thread, the
        # server would never answer again.
        except BaseException as error:
            self._report_failure(batch, error)
            return
        for request, request_answers in zip(batch, answers, strict=True):
            request.future.set_result(request_answers)

    def _step_session(self) -> None:
        """Take one step of the next session, after checking its requests' deadlines."""
        running = self.sessions.popleft()
        session, requests = running.session, running.requests
        running.steps += 1
        for request in requests:
            if self._expired(request) and not request.future.done():
                message = "the request took too long. Try again, or ask for less."
                request.future.set_exception(too_late(message))
        waiting = [
            request for request in requests if not (request.abandoned or request.future.done())
        ]
        if not waiting:
            return  # the session ends here: it is not put back
        try:
            self.stepping = requests[0].model
            try:
                session.step()
            finally:
                self.stepping = None
            # Partial answers must be decoded to text, so they are made only if they are needed.
            needed = session.done or any(request.on_partial for request in waiting)
            answers = _split(session.answers(), requests) if needed else [[]] * len(requests)
        except BaseException as error:
            self._report_failure(waiting, error)
            return
        for request, request_answers in zip(requests, answers, strict=True):
            if request.abandoned or request.future.done():
                continue
            if session.done:
                request.future.set_result(request_answers)
            # A session that failed starts again from its first step (see `_failed`). A streaming
            # client gets nothing until the text is longer than what it has already seen.
            elif request.on_partial and running.steps > request.steps_sent:
                request.steps_sent = running.steps
                request.on_partial(request_answers[0])  # a streamed request has a single item
        if not session.done:
            self.sessions.append(running)  # at the end: sessions take turns

    def _report_failure(self, batch: list[PendingRequest], error: BaseException) -> None:
        """Report the error to a single request; requeue several, to be computed one by one.

        So an error in one request does not reach the others of its batch. They are queued instead
        of run at once, because each may need a session and the number of sessions is limited.
        """
        if len(batch) == 1:
            batch[0].future.set_exception(_client_error(error))
            return
        # At the front and in their old order. The queue may exceed its limit for a moment: these
        # requests were admitted before, and refusing them now would lose them.
        with self.changed:
            for request in reversed(batch):
                request.key = object()  # equal to no other key, so the request stays alone
                self.waiting += len(request.items)
                self.requests.appendleft(request)


def _mark_running(future: Future[list[object]]) -> bool:
    """Mark a future as running; return False if it was cancelled before.

    A running future cannot be cancelled, so setting its result cannot fail even if the client
    disconnects at the same moment. A requeued request has a running future already, which
    `set_running_or_notify_cancel` would refuse.
    """
    return future.running() or future.set_running_or_notify_cancel()


def _split(answers: Sequence[object], requests: Sequence[PendingRequest]) -> list[list[object]]:
    """Split the answers of a batch among its requests."""
    remaining = iter(answers)
    return [[next(remaining) for _ in request.items] for request in requests]


def _client_error(error: BaseException) -> Exception:
    """Turn errors in the input into a 413 or 422, and any other into an internal error."""
    if isinstance(error, TextTooLong):
        # Only a request that ran alone gets here, so the number counts its own texts.
        return too_large(
            f"text {error.number} has {error.tokens:,} tokens; the model reads at most "
            f"{error.limit}. Shorten it, or have it truncated (truncate: true)."
        )
    if isinstance(error, DataError | SettingsError):
        return invalid(str(error))
    # A BaseException must not reach the event loop, so it is wrapped. Its traceback is logged.
    internal_error = RuntimeError(repr(error))
    internal_error.__cause__ = error
    return internal_error
