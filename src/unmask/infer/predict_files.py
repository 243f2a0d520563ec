"""File of records -> a table with the columns of the input and, beside them, those of the answers.

Answers are first collected in a temporary folder beside the output. The table is written from them
and from a second reading of the input, so that the memory is constant and a killed job leaves no
output. A record is recognised by its place in the input, because bad records may be skipped.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from glob import escape
from itertools import chain, count
from pathlib import Path
from typing import Any

from unmask.data.labelled.columns import Columns
from unmask.data.labelled.table_files import Row, check_table_file, write_table
from unmask.data.labelled.tables import read_rows
from unmask.data.read.lines import IGNORE, REFUSE, ErrorPolicy, file_format
from unmask.infer.model import Model
from unmask.infer.predict import Say, resolve_columns, text_records
from unmask.system.console import Console
from unmask.system.disk import disk_error, fsync, remove_leftovers, temporary_folder
from unmask.system.errors import DataError
from unmask.system.settings import parse_json
from unmask.tasks.base import Task

PREFIX = "predicted_"  # of an answer's column whose name the input has already


def predict_file(
    model: Model,
    source: str,
    out: Path,
    columns: Columns,
    watcher: ErrorPolicy = REFUSE,
    *,
    say: Say = Console().say,
    progress: Callable[[int], None] = lambda answers: None,
    overwrite: bool = False,
) -> int:
    """Answer a file, or standard input ("-"), in a .csv, .tsv, .jsonl or .parquet file.

    Returns the number of answers.
    """
    check_table_file(out, source, overwrite=overwrite)
    columns = resolve_columns(model.task, source, columns, say)
    before = _version(source)
    remove_leftovers(out.parent, f".{escape(out.name)}.tmp-*")
    try:
        with temporary_folder(out) as folder:
            answered = AnsweredTable(folder / "answers.jsonl", source, columns)
            written = answered.collect(model, watcher, progress)
            if not written:
                place = "standard input" if source == "-" else source
                raise DataError(f"{place}: no record to answer in it. Is it the right file?")
            (columns_of_table, names), table = answered.survey(say), folder / "table"
            rows = partial(answered.rows, names)
            write_table(table, out.suffix.lower(), columns_of_table, rows, source)
            if before != _version(source):
                raise _changed(source)
            fsync(table)
            check_table_file(out, source, overwrite=overwrite)  # again: the work has taken a while
            table.replace(out)
            fsync(out.parent)
    except OSError as error:
        raise disk_error(out, error) from error
    return written


@dataclass(frozen=True)
class AnsweredTable:
    """The answers to a file, on disk, to be read back beside the records that they belong to."""

    path: Path  # a line for each answer: [place of the record, its columns or null, the answer]
    source: str
    columns: Columns

    def collect(self, model: Model, watcher: ErrorPolicy, progress: Callable[[int], None]) -> int:
        """Answer all records; return how many there are."""
        task, written = model.task, 0
        waiting: deque[tuple[str, Row | None]] = deque()  # records that are not answered yet

        def records() -> Iterator[Any]:
            for record, cells in self._records(task, watcher):
                waiting.append((record.where, cells))
                yield record

        with self.path.open("w", encoding="utf-8", newline="\n") as file:
            for answer in model.predict(records()):
                place, cells = waiting.popleft()
                file.write(json.dumps([place, cells, task.row(answer)]) + "\n")
                written += 1
                progress(1)
        return written

    def _records(
        self, task: Task[Any, Any], watcher: ErrorPolicy
    ) -> Iterator[tuple[Any, Row | None]]:
        """Yield the records with their columns; None for rows of a table, which are read again."""
        if file_format(self.source, None) == ".txt":  # standard input, too
            for record, line in text_records(task, self.source, self.columns, watcher):
                yield record, _cells_of_line(task, line)
            return
        rows = task.reads_rows(self.source, self.columns)
        for record in task.questions(self.source, self.columns, watcher):
            yield record, None if rows else _cells_of_record(task, record)

    def read(self) -> Iterator[tuple[Row, Row]]:
        """Yield the columns of each answered record, and those of its answer."""
        table = None
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                place, cells, answer = json.loads(line)
                if cells is None:
                    if table is None:
                        header = self.columns.header is not False
                        table = read_rows(self.source, list, header=header, watcher=IGNORE)
                    # Rows in between have no answer: they were skipped.
                    cells = next((row.cells for row in table if row.where == place), None)
                    if cells is None:
                        raise _changed(self.source)
                yield cells, answer

    def survey(self, say: Say) -> tuple[list[str], dict[str, str]]:
        """Return all columns of the table, and the names that the answers' columns have in it.

        An answer's column that has the name of a column of the input gets another name, which is
        reported.
        """
        inputs: dict[str, None] = {}
        answers: dict[str, None] = {}
        for cells, answer in self.read():
            inputs |= dict.fromkeys(cells)
            answers |= dict.fromkeys(answer)
        names = {name: name if name not in inputs else "" for name in answers}
        for name in (clashing for clashing in answers if clashing in inputs):
            taken = {*inputs, *names.values()}
            tries = (f"{PREFIX}{name}{number}" for number in chain([""], map(str, count(2))))
            names[name] = next(new for new in tries if new not in taken)
            say(f"the input has a column '{name}' already; the answer is in '{names[name]}'")
        return [*inputs, *names.values()], names

    def rows(self, names: Mapping[str, str]) -> Iterator[Row]:
        """Yield the rows of the table, with the answers' columns under these names."""
        for cells, answer in self.read():
            yield {**cells, **{names[name]: value for name, value in answer.items()}}


def _cells_of_line(task: Task[Any, Any], line: str) -> Row:
    """Return the columns of a line: the fields of a JSON object, or the text itself."""
    if line.lstrip().startswith("{"):
        return parse_json(line, where="the line", kind=DataError)
    return {task.Ask.needed()[0]: line}


def _cells_of_record(task: Task[Any, Any], record: Any) -> Row:
    """Return the columns of a record whose file is no table, such as a passage with questions."""
    needed = task.Ask.needed()
    cells: dict[str, object] = {
        name: value
        for name in task.Ask.model_fields
        if name not in needed and (value := getattr(record, name, None)) is not None
    }
    return {**cells, **dict(zip(needed, record.key, strict=False))}


def _version(source: str) -> tuple[int, int] | None:
    """Return what changes when a file is written to; None for standard input."""
    if source == "-":
        return None
    file = Path(source).stat()
    return file.st_size, file.st_mtime_ns


def _changed(source: str) -> DataError:
    return DataError(
        f"{source}: was changed while it was read, so that answers would stand beside other "
        "records; nothing was written. Run the command again."
    )
