"""SIGINT and SIGTERM -> a wish to stop, which the loop grants before its next batch."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME = 2.0  # seconds


class StopRequest:
    """The signal that came, 0 if none did."""

    number = 0
    came = 0.0

    def take(self, number: int, frame: FrameType | None) -> None:
        """Remember the first; leave at once on the second, which loses no published state.

        A scheduler and torchrun may both pass on the same wish: what comes within SAME is one.
        """
        now = time.monotonic()
        if not self.number:
            self.number, self.came = number, now
        elif now - self.came > SAME:
            os._exit(128 + number)


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Catch the two signals while the block runs."""
    wish = StopRequest()
    before = {s: signal.signal(s, wish.take) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
