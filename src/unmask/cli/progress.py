"""How far a long job is: a bar on a terminal, a plain line every few seconds elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

EVERY = 5.0  # seconds between plain lines
PATIENCE = 2.0  # seconds before the first: a shorter job says nothing


class Advance(Protocol):
    """Called with what was just done, or with what is done so far and the new total."""

    def __call__(self, step: int = 1, *, done: int | None = None, total: int | None = None) -> None:
        """Move on."""


@contextmanager
def progress(what: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
    """Show a job's progress on standard error while the block runs."""
    if sys.stderr.isatty():
        with _bar(what, total, unit) as advance:
            yield advance
    else:
        yield _Lines(what, total, unit)


@contextmanager
def _bar(what: str, total: int | None, unit: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn(unit), Left(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)

        def advance(step: int = 1, *, done: int | None = None, total: int | None = None) -> None:
            if done is None:
                bar.advance(task, step)
            else:
                bar.update(task, completed=done, total=total)

        yield advance


class _Lines:
    def __init__(self, what: str, total: int | None, unit: str) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = 0
        self.begun = time.monotonic()
        self.due = self.begun + PATIENCE

    def __call__(self, step: int = 1, *, done: int | None = None, total: int | None = None) -> None:
        self.done = self.done + step if done is None else done
        self.total = total or self.total
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + EVERY
        rate = self.done / (now - self.begun)
        of = f" of {self.total:,}" if self.total else ""
        left = ""
        if self.total and rate:
            left = f", {(self.total - self.done) / rate:,.0f} s left"
        print(
            f"{self.what}: {self.done:,}{of} {self.unit}, {rate:,.0f} a second{left}",
            file=sys.stderr,
            flush=True,
        )
