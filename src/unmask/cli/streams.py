"""Standard output and error, which may be closed, full, or have no reader any more.

A job outlives them: the first write that fails is the last one, and what comes after it goes
nowhere. Only a verb whose answer is what it prints fails with its standard output.
"""

import errno
import os
import sys
from contextlib import suppress
from typing import Any, TextIO, cast


class OutputLost(Exception):
    """The answer cannot be written. No OSError: nobody may take it for a fault of the disk."""

    def __init__(self, cause: OSError | ValueError) -> None:
        super().__init__(f"standard output: {getattr(cause, 'strerror', None) or cause}.")
        self.exit_code = 0 if getattr(cause, "errno", None) == errno.EPIPE else 1  # 0: `| head`


class GuardedStream:
    """A standard stream whose loss ends no job, unless the stream carries the answer."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.needed = False  # is a failure an error?
        self.error: OutputLost | None = None  # why it was given up

    def write(self, text: str) -> int:
        """Write, or drop what nobody can read."""
        if self.error is None:
            try:
                return self.stream.write(text)
            except UnicodeError:  # a ValueError too, but the text is at fault
                raise
            except (OSError, ValueError) as error:  # ValueError: it was closed
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Pass on what is held."""
        if self.error is None:
            try:
                self.stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def need(self) -> None:
        """From here on a failure is an error, also one that has happened already."""
        self.needed = True
        if self.error is not None:
            raise self.error

    def isatty(self) -> bool:
        """Is it a terminal that can still be written to?"""
        return self.error is None and self.stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _give_up(self, error: OSError | ValueError) -> None:
        self.error = OutputLost(error)
        with suppress(OSError, ValueError):  # what the buffers hold would fail again at the end
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())
            os.close(null)
        if self.needed:
            raise self.error


def guarded(stream: TextIO) -> GuardedStream:
    """The stream behind a guard; one that has a guard is left as it is."""
    return stream if isinstance(stream, GuardedStream) else GuardedStream(stream)


def guard_streams() -> None:
    """Put a guard before standard output and error, for everything that runs in this process."""
    for name, mode, flags in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),  # cannot be written to: a closed one has no answer
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            # The lowest free number is the stream's own. Left free, it would go to the next file
            # that is opened, and what libraries print would end up in that file.
            number = os.open(os.devnull, flags)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
    sys.stdout = cast(TextIO, guarded(sys.stdout))
    sys.stderr = cast(TextIO, guarded(sys.stderr))


def drop_rest() -> None:
    """Write what is left on standard output; whether that works no longer matters."""
    stream = guarded(sys.stdout)
    stream.needed = False
    stream.flush()
