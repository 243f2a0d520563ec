"""SIGINT and SIGTERM -> a wish to stop, which the loop grants after the step it is in."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):
    """A run was asked to stop, has saved its state, and did."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Wish:
    """The signal that came, 0 if none did."""

    number = 0

    def take(self, number: int, frame: FrameType | None) -> None:
        """Remember the first; leave at once on the second, which loses no published state."""
        if self.number:
            os._exit(128 + number)
        self.number = number


@contextmanager
def stop_wishes() -> Iterator[Wish]:
    """Catch the two signals while the block runs."""
    wish = Wish()
    before = {s: signal.signal(s, wish.take) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
