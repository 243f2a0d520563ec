"""Files or rows of labelled data -> paths that jobs read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.data.read.objects import by_row, files_in, rows_as_file, rows_of
from unmask.infer.records import named_rows

if TYPE_CHECKING:
    from unmask.tasks.asks import Ask


@dataclass(frozen=True)
class Source:
    """Paths of labelled data, and the name of the argument if they hold its rows."""

    paths: list[Path]
    rows: str | None = None

    def by_row(self, where: str) -> str:
        """Return the place of a record: a line of the user's file, or a row of the argument."""
        return where if self.rows is None else by_row(where, self.paths[0], self.rows)


@contextmanager
def as_files(data: object, ask: type[Ask], name: str) -> Iterator[Source]:
    """Yield the paths of labelled data; rows are written to a temporary file.

    `ask` is the question of the task, whose fields name the values of tuples.
    """
    paths = files_in(data)
    if paths is not None:
        yield Source(paths)
        return
    with rows_as_file(named_rows(ask, rows_of(data, name), name, labelled=True), name) as path:
        yield Source([path], name)
