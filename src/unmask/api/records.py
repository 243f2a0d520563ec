"""Python objects or files -> records of a task, and paths that jobs read.

The values of a tuple are in the order of the task's fields, with the label last. Dictionaries and
the rows of tables name their fields, and are read as the lines of a JSONL file are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from unmask.data.labelled.columns import Columns
from unmask.data.read.lines import REFUSE, ErrorPolicy, require_unicode
from unmask.data.read.objects import by_row, described, files_in, rows_as_file, rows_of
from unmask.infer.predict import read_records
from unmask.system.errors import DataError
from unmask.tasks.asks import Ask
from unmask.tasks.base import Task

TAGGED = ("tokens", "tags")  # two lists, for tasks that label the words of a text


def records_of(
    task: Task[Any, Any],
    data: object,
    columns: Columns = Columns(),
    watcher: ErrorPolicy = REFUSE,
    name: str = "data",
) -> Iterator[Any]:
    """Yield the records of Python objects, without labels.

    Texts are read one by one. Other rows go through a temporary file, so that their columns are
    inferred and checked exactly as in a file.
    """
    rows = rows_of(data, name)
    first = next(rows, None)
    if first is None:
        return
    rows = chain([first], rows)
    if isinstance(first, str):
        yield from _of_texts(task, rows, name)
        return
    with ExitStack() as files:
        named = named_rows(task.Ask, rows, name, labelled=False)
        path = files.enter_context(rows_as_file(named, name))
        yield from read_records(task, path, columns, watcher)


def _of_texts(task: Task[Any, Any], texts: Iterable[object], name: str) -> Iterator[Any]:
    """Yield one record per text, also for an empty one: answer N belongs to text N."""
    needed = task.Ask.needed()
    if len(needed) != 1:
        raise DataError(
            f"{name}[0] is a string; {task.name} needs {' and '.join(needed)}. Give tuples with "
            "both, or dictionaries."
        )
    for index, text in enumerate(texts):
        where = f"{name}[{index}]"
        if not isinstance(text, str):
            raise DataError(f"{where} is {described(text)}; need a string, as before it.")
        ask = task.Ask.model_validate({needed[0]: require_unicode(text, where)})
        yield task.record(ask, where, index + 1)


def named_rows(
    ask: type[Ask], rows: Iterable[object], name: str, *, labelled: bool
) -> Iterator[dict[str, object]]:
    """Yield rows as dictionaries; the values of a tuple get the names of the task's fields."""
    for index, row in enumerate(rows):
        if isinstance(row, Mapping):
            yield {str(key): value for key, value in row.items()}
        elif isinstance(row, tuple | list):
            yield _named(ask, row, f"{name}[{index}]", labelled=labelled)
        else:
            raise DataError(f"{name}[{index}] is {described(row)}; need {_need(ask, labelled)}.")


def _named(
    ask: type[Ask], row: Sequence[object], where: str, *, labelled: bool
) -> dict[str, object]:
    """Name the values of a tuple by their number: with or without the second text of a pair."""
    for names in _layouts(ask, labelled=labelled):
        # ((text, second), label) is (text, second, label)
        flat = [*_pair_in(row), *row[1:]] if len(names) == 3 else row
        if len(flat) == len(names) and _fits(flat[0], names[0]):
            return dict(zip(names, flat, strict=True))
    raise DataError(f"{where} is {described(row)}; need {_need(ask, labelled)}.")


def _pair_in(row: Sequence[object]) -> Sequence[object]:
    """Return the two texts of a pair that is the first value of a row, or else this value."""
    first = row[0] if row else None
    return first if isinstance(first, tuple | list) and len(first) == 2 else row[:1]


def _fits(value: object, name: str) -> bool:
    """Whether a value can be the first field: a list of words for tokens, a string for others."""
    return isinstance(value, str) != (name == TAGGED[0])


def _layouts(ask: type[Ask], *, labelled: bool) -> list[tuple[str, ...]]:
    """Return the orders of fields that a tuple may have, the shortest first."""
    needed = ask.needed()
    second = [name for name in ("second",) if name in ask.model_fields]
    if not labelled:
        return [tuple(needed), (*needed, *second)]
    if set(TAGGED) <= {*ask.truths}:
        return [TAGGED, (*needed, ask.truths[-1])]
    truth = ask.truths[0]
    return [(*needed, truth), (*needed, *second, truth)]


def _need(ask: type[Ask], labelled: bool) -> str:
    """Describe the rows that a task takes."""
    layouts = [names for names in _layouts(ask, labelled=labelled) if len(names) > 1]
    tuples = " or ".join(f"({', '.join(names)})" for names in dict.fromkeys(layouts))
    kinds = ["a string"] if not labelled and len(ask.needed()) == 1 else []
    return ", ".join([*kinds, "a dictionary"]) + (f", or a tuple {tuples}" if tuples else "")


@dataclass(frozen=True)
class DataFiles:
    """Paths of labelled data, and the name of the argument if they hold its rows."""

    paths: list[Path]
    rows: str | None = None

    def by_row(self, where: str) -> str:
        """Return the place of a record: a line of the user's file, or a row of the argument."""
        return where if self.rows is None else by_row(where, self.paths[0], self.rows)


@contextmanager
def as_files(data: object, ask: type[Ask], name: str) -> Iterator[DataFiles]:
    """Yield the paths of labelled data; rows are written to a temporary file.

    `ask` is the question of the task, whose fields name the values of tuples.
    """
    paths = files_in(data)
    if paths is not None:
        yield DataFiles(paths)
        return
    with rows_as_file(named_rows(ask, rows_of(data, name), name, labelled=True), name) as path:
        yield DataFiles([path], name)
