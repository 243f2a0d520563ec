"""Files -> texts, one at a time and with their places, in constant memory.

    .txt                     a line is a text
    .jsonl                   an object per line; the text is under "text", or --column
    .csv, .tsv, .parquet     the text is the column "text", the only column, or --column

Blank texts are skipped unless they are requested. Each format may be compressed (.gz, .zst). "-" is
standard input, read as .txt. Bad records go to an `ErrorPolicy`, which raises an error, or records
it and lets reading continue.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.data.labelled.tables import read_rows
from unmask.data.read.lines import REFUSE, ErrorPolicy, file_format, read_lines
from unmask.system.errors import DataError, unknown_name

TEXT = "text"  # the usual name of the column


@dataclass(frozen=True, slots=True)
class Record:
    """One text and its place, `path:line` or `path: row N`."""

    text: str
    where: str


def read_texts(
    path: str | Path,
    *,
    column: str | None = None,
    watcher: ErrorPolicy = REFUSE,
    blanks: bool = False,
) -> Iterator[Record]:
    """Yield the texts of a file in order.

    With `blanks`, yield blank texts too: one for every line of plain text and every record of a
    table. The watcher counts blank records of tables, and all blank texts that are yielded.

    Errors of the path itself are raised at once, not when the first text is requested.
    """
    ending = file_format(path)
    if ending != ".txt":
        return _read_column(path, column, ending, watcher, blanks)
    if column:
        raise DataError(
            f"{path}: plain text has no column '{column}'. Omit --column, or give a table."
        )
    return _read_plain_text(path, watcher, blanks)


def refuse_empty(path: str | Path, records: Iterator[Record]) -> Iterator[Record]:
    """Pass records on, and raise an error at the end if there was none."""
    count = 0
    for count, record in enumerate(records, start=1):  # noqa: B007
        yield record
    if not count:
        raise DataError(f"{path}: contains no text; need at least one. Is this the right file?")


def _read_plain_text(path: str | Path, watcher: ErrorPolicy, blanks: bool) -> Iterator[Record]:
    for line, text in read_lines(path, watcher):
        if blanks and not text.strip():
            watcher.blank()
        if blanks or text.strip():
            yield Record(text, f"{path}:{line}")


def _read_column(
    path: str | Path, column: str | None, ending: str, watcher: ErrorPolicy, blanks: bool
) -> Iterator[Record]:
    """Yield the texts of one column of a table."""

    def choose(names: Sequence[str]) -> list[str]:
        if column is None and len(names) == 1 and ending != ".jsonl":
            return [names[0]]
        if (column or TEXT) in names:
            return [column or TEXT]
        raise DataError(
            f"{unknown_name('column', column or TEXT, names)} Choose one with --column."
        )

    for row in read_rows(path, choose, watcher=watcher):
        try:
            text = row.text(*row.cells)
        except DataError as error:
            watcher.bad(error, row.raw)
            continue
        if not text.strip():
            watcher.blank()
        if blanks or text.strip():
            yield Record(text, row.where)
