"""Tables -> rows: the requested columns, with the place of each row.

    .jsonl            an object per line
    .csv              quoted where needed; the first row names the columns
    .tsv              cells as they are (quotes are literal, as in GLUE)
    .parquet          typed columns

Each may be compressed (.gz, .zst). A table of text has no types: "NA" and "1" are texts.
"""

import csv
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from unmask.data.read.json_lines import read_objects
from unmask.data.read.lines import (
    COMPRESSED,
    REFUSE,
    ErrorPolicy,
    file_format,
    first_line,
    open_bytes,
    read_lines,
)
from unmask.system.errors import DataError

TABLES = (".jsonl", ".csv", ".tsv", ".parquet")
# The names of all columns -> the requested ones. May raise a DataError without a place.
ChooseColumns = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class TableRow:
    """Requested cells of a row, by column name, and the place of the row."""

    cells: dict[str, object]
    where: str  # `path:line` or `path: row N`
    raw: str  # the row as it stands in the file
    typed: bool = False  # columns have types; then a cell may be missing

    def text(self, name: str) -> str:
        """Return a cell that must be a text; a missing cell of a typed column is an empty text."""
        value = self.cells[name]
        if value is None and self.typed:
            return ""
        if not isinstance(value, str):
            need = "text" if self.typed else "a string in quotes"
            raise DataError(f"{self.where}: '{name}' is {value!r:.60}; need {need}.")
        return value


def read_rows(
    path: str | Path, choose: ChooseColumns, *, header: bool = True, watcher: ErrorPolicy = REFUSE
) -> Iterator[TableRow]:
    """Yield the rows of a table in order.

    Without a header, the columns are named 1, 2, 3, ...
    """
    ending = file_format(path, TABLES)
    if ending == ".jsonl":
        return _read_json_lines(path, choose, watcher)
    if ending == ".parquet":
        return _read_parquet(Path(path), choose, watcher)
    return _read_text_table(Path(path), ending, choose, header, watcher)


def _read_json_lines(
    path: str | Path, choose: ChooseColumns, watcher: ErrorPolicy
) -> Iterator[TableRow]:
    def row(record: dict[str, object], where: str, text: str) -> TableRow:
        names = _choose_with_place(choose, list(record), where)
        return TableRow({name: record[name] for name in names}, where, text)

    return read_objects(path, watcher, row)


def _read_text_table(
    path: Path, ending: str, choose: ChooseColumns, header: bool, watcher: ErrorPolicy
) -> Iterator[TableRow]:
    """Yield the rows of a table of text: every cell is a text, whatever it looks like."""
    lines = _NumberedRows(path, ending, watcher)
    try:
        rows = iter(lines)
        first = next(rows, [])
        if not first:
            needed = "a header and a row" if header else "a row"
            error = DataError(f"{path}: the file is empty; need {needed}. Is this the right file?")
            return watcher.bad(error, "")
        names = first if header else [str(i + 1) for i in range(len(first))]
        chosen = {name: names.index(name) for name in _choose_from_header(choose, names, path)}
        for cells in rows if header else chain([first], rows):
            where = f"{path}:{lines.line}"
            if len(cells) != len(names):
                header_has = "the header has" if header else "the first row has"
                error = DataError(
                    f"{where}: {header_has} {len(names)} columns and this row {len(cells)}; "
                    "need equally many. Fix the row; a cell with the separator in it needs quotes."
                )
                watcher.bad(error, "\t".join(cells))
            else:
                values: dict[str, object] = {name: cells[i] for name, i in chosen.items()}
                yield TableRow(values, where, "\t".join(cells))
    except csv.Error as cause:  # the start of the next row is unknown
        error = DataError(
            f"{path}:{lines.line}: a quotation mark is unmatched or misplaced ({cause}); need a "
            "pair around a cell. Fix it: the file cannot be read beyond this line."
        )
        watcher.bad(error, "")


class _NumberedRows:
    """Rows of a file as lists of cells; `line` is the line on which the last row ended."""

    def __init__(self, path: Path, ending: str, watcher: ErrorPolicy) -> None:
        # Python's own limit is 131,072 characters for a cell, less than a long document.
        csv.field_size_limit(2**31 - 1)
        self.line = 1
        # Line ends are kept for .csv, whose quoted cells may contain line breaks.
        lines = self._track_line(read_lines(path, watcher, ends=ending == ".csv"))
        split_at_tabs = (line.split("\t") if line else [] for line in lines)
        self.rows = split_at_tabs if ending == ".tsv" else csv.reader(lines, strict=True)

    def _track_line(self, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
        for self.line, text in lines:
            yield text

    def __iter__(self) -> Iterator[list[str]]:
        """Skip blank lines, except in a table of one column: there they are empty cells."""
        width = 0
        for cells in self.rows:
            width = width or len(cells)
            if cells or width == 1:
                yield cells or [""]


def _read_parquet(path: Path, choose: ChooseColumns, watcher: ErrorPolicy) -> Iterator[TableRow]:
    import pyarrow as pa
    import pyarrow.parquet

    row = 0
    try:
        with open_bytes(path, watcher) as file:
            # Parquet begins at its end, and a compressed stream cannot seek: it is decompressed
            # first.
            source = path if path.suffix.lower() not in COMPRESSED else pa.BufferReader(file.read())
            table = pyarrow.parquet.ParquetFile(source)
            names = _choose_from_header(choose, table.schema_arrow.names, path)
            for batch in table.iter_batches(columns=list(names), batch_size=4096):
                rows: list[dict[str, object]] = batch.to_pylist()
                for cells in rows:
                    row += 1
                    yield TableRow(cells, f"{path}: row {row}", repr(cells), typed=True)
    except (pa.ArrowException, OSError, EOFError, zlib.error) as cause:
        error = DataError(
            f"{path}: not a readable parquet file: {first_line(cause)} Download it again."
        )
        watcher.bad(error, "")


def _choose_from_header(choose: ChooseColumns, names: list[str], path: Path) -> Sequence[str]:
    """Let `choose` choose among the columns of a header, which must have names, each its own."""
    if not names:
        raise DataError(
            f"{path}: the file is empty; need a header and a row. Is this the right file?"
        )
    refuse_repeated(names, path)
    return _choose_with_place(choose, names, str(path))


def refuse_repeated(names: Sequence[str], path: str | Path) -> None:
    """Raise an error if two columns have the same name."""
    repeated = next((name for name in names if list(names).count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{path}:1: the column '{repeated}' occurs twice. Rename one of them.")


def _choose_with_place(choose: ChooseColumns, names: Sequence[str], where: str) -> Sequence[str]:
    """Let `choose` choose among columns, and add the place to its error."""
    try:
        return choose(names)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
