"""SIGINT and SIGTERM -> a stop request, which the training loop honours before its next batch."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME_REQUEST_SECONDS = 2.0  # seconds within which signals count as one request


class StopRequest:
    """The first stop signal that arrived; `number` is 0 until there is one."""

    number = 0
    received_at = 0.0

    def take(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; exit at once on a second one, which loses no published state.

        A scheduler and torchrun may both forward one request, so signals within
        `SAME_REQUEST_SECONDS` of the first are taken for the same request.
        """
        now = time.monotonic()
        if not self.number:
            self.number, self.received_at = number, now
        elif now - self.received_at > SAME_REQUEST_SECONDS:
            # Not sys.exit: an exception would first run cleanup code and wait for threads.
            os._exit(128 + number)


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM while the block runs, and restore the previous handlers after it."""
    request = StopRequest()
    previous = {
        number: signal.signal(number, request.take) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
