"""How far a long job is: a bar on a terminal, a plain line every few seconds elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY = 5.0  # seconds between plain lines
PATIENCE = 2.0  # seconds before the first: a shorter job says nothing


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

    @property
    def rate(self) -> float:
        """How much is done in a second."""
        return (self.done - self.before) / max(time.monotonic() - self.begun, 1e-9)


class Job:
    """A job of one stage after the other; `show` is told whenever one moves on."""

    def __init__(self, what: str, unit: str, total: int | None) -> None:
        self.stage = Stage(what, unit, total)

    def advance(self, step: int = 1) -> None:
        """So much more is done."""
        self.stage.done += step
        self.show()

    def reach(self, what: str, unit: str, done: int, total: int | None, *, note: str = "") -> None:
        """Stage `what` is so far; a new name begins a new stage."""
        if what != self.stage.what:
            self.stage = Stage(what, unit, before=done)
        self.stage.done, self.stage.total, self.stage.note = done, total, note
        self.show()

    def show(self) -> None:
        """Tell somebody."""


@contextmanager
def progress(what: str, unit: str, total: int | None = None) -> Iterator[Job]:
    """Show a job's progress on standard error while the block runs."""
    if not sys.stderr.isatty():
        yield _Lines(what, unit, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TextColumn("{task.fields[unit]}"),
        TextColumn("{task.fields[rate]}"),
        Left(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    ) as bars:
        yield _Bar(bars, what, unit, total)


class _Bar(Job):
    def __init__(self, bars: "Progress", what: str, unit: str, total: int | None) -> None:
        super().__init__(what, unit, total)
        self.bars = bars
        self.tasks = {what: self._task(what, unit, total)}

    def show(self) -> None:
        stage = self.stage
        if stage.what not in self.tasks:
            self.tasks[stage.what] = self._task(stage.what, stage.unit, None)
        task = self.tasks[stage.what]
        self.bars.update(
            task,
            completed=stage.done,
            total=stage.total,
            note=stage.note,
            rate=_rate(stage.rate),
        )

    def _task(self, what: str, unit: str, total: int | None) -> "TaskID":
        return self.bars.add_task(what, total=total, unit=unit, note="", rate="")


class _Lines(Job):
    def __init__(self, what: str, unit: str, total: int | None) -> None:
        super().__init__(what, unit, total)
        self.due = time.monotonic() + PATIENCE

    def show(self) -> None:
        now, stage = time.monotonic(), self.stage
        if now < max(self.due, stage.begun + PATIENCE):
            return
        self.due = now + EVERY
        rate = stage.rate
        of = f" of {stage.total:,}" if stage.total else ""
        left, note = "", f"; {stage.note}" if stage.note else ""
        if stage.total and rate:
            left = f", {(stage.total - stage.done) / rate:,.0f} s left"
        print(
            f"{stage.what}: {stage.done:,}{of} {stage.unit}, {_rate(rate)}{left}{note}",
            file=sys.stderr,
            flush=True,
        )


def _rate(rate: float) -> str:
    """So many a second, with digits where they are few.

    >>> _rate(1234.5), _rate(0.25)
    ('1,234 a second', '0.25 a second')
    """
    return f"{rate:,.0f} a second" if rate >= 10 else f"{rate:.2f} a second"


def notice(line: str) -> None:
    """Say something beside the answer."""
    print(line, file=sys.stderr, flush=True)
