"""Progress of a job -> standard error: lines, with a bar or with periodic progress lines.

On a terminal, a bar is shown below the lines and disappears when its stage ends. Elsewhere, a plain
line is printed every few seconds.
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
PATIENCE = 2.0  # seconds before the first plain line: shorter jobs print none
REDRAW = 0.1  # seconds between two updates of the bar
BAR_WIDTH = 40
ERASE = "\r\x1b[2K"  # back to the start of the line, and clear it


@dataclass
class Stage:
    """One stage of a job: its name, its unit, how much is done and how much there is."""

    name: str
    unit: str
    total: int | None = None
    done: int = 0
    before: int = 0  # done when the stage began, as in a resumed job
    started: float = field(default_factory=lambda: time.monotonic())
    note: str = ""  # shown beside the numbers, such as a loss
    seconds_left: float | None = None  # if the job knows; otherwise estimated from the rate

    @property
    def rate(self) -> float:
        """Units per second since the stage began."""
        return (self.done - self.before) / max(time.monotonic() - self.started, 1e-9)

    @property
    def left(self) -> float | None:
        """Seconds until the end; None if they cannot be estimated."""
        if self.seconds_left is not None:
            return self.seconds_left
        if not self.total or not self.rate:
            return None
        return max(self.total - self.done, 0) / self.rate


class Terminal(Console):
    """A console on standard error, with the progress of one stage at a time.

    If standard error is closed, full or has no reader, output is dropped and the job continues.
    """

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self.due = 0.0  # when progress may be shown again
        self.drawn = False  # whether a bar is the last thing on the screen
        self.quiet = False  # print errors only
        self.verbose = False  # print details too

    def say(self, line: str) -> None:
        """Print a notice, above the bar if there is one."""
        if not self.quiet:
            self.error(line)

    def detail(self, line: str) -> None:
        """Print a line that is shown with --verbose only."""
        if self.verbose:
            self.error(line)

    def error(self, line: str) -> None:
        """Print a line that is shown with --quiet, too."""
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
        """Update the bar, or print a line if one is due; a new name starts a new stage."""
        if self.quiet:
            return
        if self.stage is None or self.stage.name != what:
            self._report_stage()
            self.stage = Stage(what, unit, before=done)
            started = self.stage.started
            # max: a new stage does not shorten the pause after the last line.
            self.due = started if self._has_bars() else max(self.due, started + PATIENCE)
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
        """End the current stage and remove its bar."""
        self._erase()
        self._report_stage()
        self.stage, self.due = None, 0.0

    def _report_stage(self) -> None:
        """With --verbose, print how long the stage that ends here has taken."""
        stage = self.stage
        if stage is not None and self.verbose:
            self.stage = None  # its bar is not drawn again below the line
            seconds = time.monotonic() - stage.started
            self.detail(f"stage: {stage.name}: {stage.done:,} {stage.unit} in {seconds:.2f} s")

    def answer(self, line: str, *, flush: bool = False) -> None:
        """Print a line of the result on standard output; a failure to write it is an error.

        Use `print` for remarks of a verb whose result is a file: losing those is no error.
        """
        if self.drawn and sys.stdout.isatty():  # same screen; the next update redraws the bar below
            self._erase()
        if isinstance(sys.stdout, GuardedStream):
            sys.stdout.need()
        print(line, flush=flush)

    def _has_bars(self) -> bool:
        """Whether it is a terminal with control characters, which those of some editors lack."""
        if not self._stream.isatty():
            return False
        from rich.console import Console as Rich  # here, because only bars need it

        return not Rich(stderr=True).is_dumb_terminal

    def _draw(self, stage: Stage) -> None:
        """Draw the bar of a stage over the last one."""
        from rich.console import Console as Rich

        # rich only formats the line. Its live display would also capture standard output, and
        # results that are redirected to a file would end up on the screen.
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
        """The current standard error, behind a guard."""
        return guarded(sys.stderr)


terminal = Terminal()  # one per process, because bar and lines share one standard error
notice, detail, answer = terminal.say, terminal.detail, terminal.answer


class ProgressBar:
    """Progress of a job with a single stage."""

    def __init__(self, name: str, unit: str, total: int | None) -> None:
        self.name, self.unit, self.total, self.done = name, unit, total, 0

    def advance(self, step: int = 1) -> None:
        """Count `step` more units as done and update the display."""
        self.done += step
        terminal.progress(self.name, self.unit, self.done, self.total)


@contextmanager
def progress(name: str, unit: str, total: int | None = None) -> Iterator[ProgressBar]:
    """Show the progress of a job on standard error while the block runs."""
    job = ProgressBar(name, unit, total)
    job.advance(0)
    try:
        yield job
    finally:
        terminal.finish()  # before the error that ends the job is printed


def _line(stage: Stage) -> str:
    """Format a stage as a plain line."""
    of = f" of {stage.total:,}" if stage.total else ""
    left = "" if stage.left is None else f", {stage.left:,.0f} s left"
    note = f"; {stage.note}" if stage.note else ""
    return f"{stage.name}: {stage.done:,}{of} {stage.unit}, {_rate(stage.rate)}{left}{note}"


def _bar(stage: Stage) -> "Table":
    """Lay out a stage as a bar of one line."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total = "?" if stage.total is None else str(stage.total)
    picture = ProgressBar(stage.total, stage.done, width=BAR_WIDTH, animation_time=time.monotonic())
    cells = (
        Text(stage.name),
        picture,
        Text(f"{stage.done:>{len(total)}}/{total}", style="progress.download"),
        Text(stage.unit),
        Text(_rate(stage.rate) if stage.done > stage.before else ""),
        Text(_clock(stage.left), style="progress.remaining"),
        Text(stage.note),
    )
    grid = Table.grid(padding=(0, 1))
    for cell in cells:  # a narrow screen cuts the bar and the note, not the numbers
        grid.add_column(no_wrap=cell not in (picture, cells[-1]))
    grid.add_row(*cells)
    return grid


def _rate(rate: float) -> str:
    """Format a rate, with decimals if it is small.

    >>> _rate(1234.5), _rate(0.25)
    ('1,234 a second', '0.25 a second')
    """
    return f"{rate:,.0f} a second" if rate >= 10 else f"{rate:.2f} a second"


def _clock(seconds: float | None) -> str:
    """Format seconds as hours, minutes and seconds.

    >>> _clock(3725.9), _clock(None)
    ('1:02:05', '-:--:--')
    """
    if seconds is None:
        return "-:--:--"
    minutes, seconds = divmod(int(max(seconds, 0.0)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
