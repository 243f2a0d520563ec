"""Standard output and error -> guarded streams, whose failure does not end a job.

They may be closed, full or without a reader. After the first write that fails, all further output
is dropped and the job continues. Only a verb whose result is what it prints fails with its standard
output.
"""

import errno
import os
import sys
from contextlib import suppress
from typing import Any, TextIO, cast


class OutputLost(Exception):
    """The result cannot be printed. Not an OSError, which would be reported as a disk error."""

    def __init__(self, cause: OSError | ValueError) -> None:
        super().__init__(f"standard output: {getattr(cause, 'strerror', None) or cause}.")
        self.exit_code = 0 if getattr(cause, "errno", None) == errno.EPIPE else 1  # 0: `| head`


class GuardedStream:
    """A standard stream whose failure ends a job only if it carries the result."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.needed = False  # whether a failure is an error
        self.error: OutputLost | None = None  # the failure after which output is dropped

    def write(self, text: str) -> int:
        """Write text, or drop it after a failure."""
        if self.error is None:
            try:
                return self.stream.write(text)
            except UnicodeError:  # a ValueError, but the text is at fault, not the stream
                raise
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless it has failed."""
        if self.error is None:
            try:
                self.stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def need(self) -> None:
        """Treat a failure as an error from now on, and one that has already happened, too."""
        self.needed = True
        if self.error is not None:
            raise self.error

    def isatty(self) -> bool:
        """Whether the stream is a terminal that can still be written to."""
        return self.error is None and self.stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _give_up(self, error: OSError | ValueError) -> None:
        self.error = OutputLost(error)
        # Python flushes the buffers once more at exit. That would fail again and print an error, so
        # the descriptor is pointed at the null device.
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())
            os.close(null)
        if self.needed:
            raise self.error


def guarded(stream: TextIO) -> GuardedStream:
    """Guard a stream, unless it is guarded already."""
    return stream if isinstance(stream, GuardedStream) else GuardedStream(stream)


def guard_streams() -> None:
    """Guard standard output and error for the whole process, and open those that are closed."""
    for name, mode, flags in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),  # not writable: a closed output stays an error
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            # `open` takes the lowest free descriptor, which is the closed stream's. Left free, the
            # next data file would get it, and whatever libraries print would end up in that file.
            number = os.open(os.devnull, flags)
            os.set_inheritable(number, True)  # the same holds for child processes
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
    sys.stdout = cast(TextIO, guarded(sys.stdout))
    sys.stderr = cast(TextIO, guarded(sys.stderr))


def flush_quietly() -> None:
    """Flush standard output at the end; a failure is no error any more."""
    stream = guarded(sys.stdout)
    stream.needed = False
    stream.flush()
