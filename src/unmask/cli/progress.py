"""Reports of a job on standard error: lines, and how far it is.

On a terminal a bar stands below the lines and disappears when its stage ends; elsewhere a plain
line comes every few seconds.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unmask.cli.streams import GuardedStream, guarded
from unmask.system.console import Console

if TYPE_CHECKING:
    from rich.table import Table

EVERY = 5.0  # seconds between plain lines
PATIENCE = 2.0  # seconds before the first: a shorter job says nothing
REDRAW = 0.1  # seconds between two pictures of the bar
BAR_WIDTH = 40
ERASE = "\r\x1b[2K"  # back to the start of the line, and clear it


@dataclass
class Stage:
    """One part of a job: what is counted, how far it is, how far it goes."""

    what: str
    unit: str
    total: int | None = None
    done: int = 0
    before: int = 0  # done when it began
    begun: float = field(default_factory=lambda: time.monotonic())
    note: str = ""  # what else is to be seen, as a loss
    seconds_left: float | None = None  # as the job knows it; None: estimated from the rate

    @property
    def rate(self) -> float:
        """How much is done in a second."""
        return (self.done - self.before) / max(time.monotonic() - self.begun, 1e-9)

    @property
    def left(self) -> float | None:
        """Seconds until the end; None where nobody can tell."""
        if self.seconds_left is not None:
            return self.seconds_left
        if not self.total or not self.rate:
            return None
        return max(self.total - self.done, 0) / self.rate


class Terminal(Console):
    """Standard error: lines, and the progress of one stage after the other.

    A standard error that is closed, full or without a reader is given up silently.
    """

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self.due = 0.0  # when progress is shown again
        self.drawn = False  # is a bar the last thing on the screen?

    def say(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        drawn = self.drawn
        self._erase()
        self._write(f"{line}\n")
        if drawn and self.stage:
            self._draw(self.stage)

    def progress(
        self,
        what: str,
        unit: str,
        done: int,
        total: int | None = None,
        *,
        note: str = "",
        seconds_left: float | None = None,
    ) -> None:
        """Move the bar on, or print a line if one is due; a new name starts a new stage."""
        if self.stage is None or self.stage.what != what:
            self.stage = Stage(what, unit, before=done)
            begun = self.stage.begun
            self.due = begun if self._has_bars() else max(self.due, begun + PATIENCE)
        stage = self.stage
        stage.done, stage.total, stage.note, stage.seconds_left = done, total, note, seconds_left
        now = time.monotonic()
        if now < self.due:
            return
        if self._has_bars():
            self.due = now + REDRAW
            self._draw(stage)
        else:
            self.due = now + EVERY
            self._write(f"{_line(stage)}\n")

    def finish(self) -> None:
        """End the current stage and take its bar off the screen."""
        self._erase()
        self.stage, self.due = None, 0.0

    def answer(self, line: str, *, flush: bool = False) -> None:
        """Print a line of what was asked for on standard output; that it gets lost is an error.

        `print` is for what a verb says about files it has written: those are the answer.
        """
        if self.drawn and sys.stdout.isatty():  # the same screen: the bar comes back below
            self._erase()
        if isinstance(sys.stdout, GuardedStream):
            sys.stdout.need()
        print(line, flush=flush)

    def _has_bars(self) -> bool:
        """Is it a terminal that knows control characters, unlike those of some editors?"""
        if not self._stream.isatty():
            return False
        from rich.console import Console as Rich

        return not Rich(stderr=True).is_dumb_terminal

    def _draw(self, stage: Stage) -> None:
        """Replace the bar by one that shows the stage as it is now."""
        from rich.console import Console as Rich

        rich = Rich(stderr=True)
        with rich.capture() as captured:
            rich.print(_bar(stage), no_wrap=True)
        self._write(ERASE + captured.get().partition("\n")[0])
        self.drawn = True

    def _erase(self) -> None:
        if self.drawn:
            self._write(ERASE)
            self.drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    @property
    def _stream(self) -> GuardedStream:
        """Standard error as it is now, behind a guard."""
        return guarded(sys.stderr)


terminal = Terminal()  # of this process: it has one standard error
notice, answer = terminal.say, terminal.answer


class ProgressBar:
    """How much of a job of one stage is done, shown on the terminal."""

    def __init__(self, what: str, unit: str, total: int | None) -> None:
        self.what, self.unit, self.total, self.done = what, unit, total, 0

    def advance(self, step: int = 1) -> None:
        """Count `step` more as done."""
        self.done += step
        terminal.progress(self.what, self.unit, self.done, self.total)


@contextmanager
def progress(what: str, unit: str, total: int | None = None) -> Iterator[ProgressBar]:
    """Show a job's progress on standard error while the block runs."""
    job = ProgressBar(what, unit, total)
    job.advance(0)
    try:
        yield job
    finally:
        terminal.finish()  # before anybody prints the error that ends the job


def _line(stage: Stage) -> str:
    """A stage as a plain line."""
    of = f" of {stage.total:,}" if stage.total else ""
    left = "" if stage.left is None else f", {stage.left:,.0f} s left"
    note = f"; {stage.note}" if stage.note else ""
    return f"{stage.what}: {stage.done:,}{of} {stage.unit}, {_rate(stage.rate)}{left}{note}"


def _bar(stage: Stage) -> "Table":
    """A stage as a bar of one line."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total = "?" if stage.total is None else str(stage.total)
    picture = ProgressBar(stage.total, stage.done, width=BAR_WIDTH, animation_time=time.monotonic())
    cells = (
        Text(stage.what),
        picture,
        Text(f"{stage.done:>{len(total)}}/{total}", style="progress.download"),
        Text(stage.unit),
        Text(_rate(stage.rate) if stage.done > stage.before else ""),
        Text(_clock(stage.left), style="progress.remaining"),
        Text(stage.note),
    )
    grid = Table.grid(padding=(0, 1))
    for cell in cells:  # on a narrow screen the bar and the note give way
        grid.add_column(no_wrap=cell not in (picture, cells[-1]))
    grid.add_row(*cells)
    return grid


def _rate(rate: float) -> str:
    """So many a second, with digits where they are few.

    >>> _rate(1234.5), _rate(0.25)
    ('1,234 a second', '0.25 a second')
    """
    return f"{rate:,.0f} a second" if rate >= 10 else f"{rate:.2f} a second"


def _clock(seconds: float | None) -> str:
    """Hours, minutes and seconds.

    >>> _clock(3725.9), _clock(None)
    ('1:02:05', '-:--:--')
    """
    if seconds is None:
        return "-:--:--"
    minutes, seconds = divmod(int(max(seconds, 0.0)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
