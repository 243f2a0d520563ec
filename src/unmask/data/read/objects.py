"""Python objects -> texts and rows: strings, lists, generators, pandas, numpy, `datasets`, pyarrow.

No library is imported here. An object of a library is recognised by the module of its type, so that
a program pays only for what it uses.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unmask.system.errors import DataError

MISSING = ("NAType", "NaTType")  # types of pandas' missing values
ACCEPTED = "a string, a list, a generator, a pandas Series or a numpy array"
TEXT_COLUMN = "text"
FILE_NAME = re.compile(r"\S+\.(txt|jsonl?|csv|tsv|parquet)(\.gz|\.zst)?")


def comes_from(value: object, library: str) -> bool:
    """Whether the type of a value, or one of its bases, belongs to a library."""
    return any(kind.__module__.partition(".")[0] == library for kind in type(value).__mro__)


def is_table(data: object) -> bool:
    """Whether an object is a table: a DataFrame, a `datasets.Dataset` or a pyarrow Table."""
    if comes_from(data, "pandas"):
        return hasattr(data, "columns")
    if comes_from(data, "pyarrow"):
        return hasattr(data, "column_names")
    return comes_from(data, "datasets") and hasattr(data, "column_names")


def described(value: object) -> str:
    """Describe a value of the wrong type: its beginning, and the name of its type.

    >>> described(None), described(3.5)
    ('None', '3.5 (float)')
    """
    return "None" if value is None else f"{value!r:.40} ({type(value).__name__})"


def items_of(values: object, name: str = "texts") -> Iterator[Any]:
    """Yield the items of a list, generator, Series or array; refuse anything else."""
    if isinstance(values, Mapping | bytes) or not isinstance(values, Iterable):
        raise DataError(f"{name} is {described(values)}; need {ACCEPTED}.")
    listed: Any = values
    if comes_from(values, "numpy") or comes_from(values, "pandas"):
        listed = listed.tolist()  # Python's own strings and numbers instead of numpy's
    return iter([listed] if isinstance(listed, str) else listed)  # an array without dimensions


def texts_of(values: object, name: str = "texts") -> Iterator[str]:
    """Yield texts; an item that is not a string is refused, with its index.

    A table must have a single column, or a column "text".
    """
    items = _text_column(values, name) if is_table(values) else items_of(values, name)
    return (_text(item, f"{name}[{index}]") for index, item in enumerate(items))


def pairs_of(values: object, name: str = "texts") -> Iterator[tuple[str, str | None]]:
    """Yield texts and pairs of texts as two values; the second is None for a single text."""
    if is_table(values):
        for text in texts_of(values, name):
            yield text, None
        return
    for index, item in enumerate(items_of(values, name)):
        where = f"{name}[{index}]"
        if isinstance(item, str):
            yield item, None
        elif isinstance(item, tuple | list) and len(item) == 2:
            yield _text(item[0], f"{where}[0]"), _text(item[1], f"{where}[1]")
        else:
            raise DataError(f"{where} is {described(item)}; need a string or a pair of strings.")


def _text(item: object, where: str) -> str:
    if not isinstance(item, str):
        raise DataError(f"{where} is {described(item)}; need a string.")
    return item


def _text_column(table: Any, name: str) -> list[object]:
    """Return the values of a table's only column, or of its column "text"."""
    columns = [str(column) for column in _column_names(table)]
    chosen = columns[0] if len(columns) == 1 else TEXT_COLUMN
    if chosen not in columns:
        raise DataError(
            f"{name} is a table with the columns {', '.join(columns)}; need one column of texts, "
            f"as in {name}[{columns[0]!r}]."
            if columns
            else f"{name} is a table without columns."
        )
    return [row[chosen] for row in rows_of(table, name)]


def _column_names(table: Any) -> Iterable[object]:
    names: Iterable[object] = table.columns if comes_from(table, "pandas") else table.column_names
    return names


def rows_of(data: object, name: str = "data") -> Iterator[Any]:
    """Yield the rows of a table or the items of a list: dictionaries, strings or tuples."""
    if isinstance(data, Mapping):
        parts = ", ".join(map(str, list(data)[:5]))
        raise DataError(
            f"{name} is a {type(data).__name__} with {parts}; need rows. Give one part of it, "
            "or a list of dictionaries."
        )
    table: Any = data
    if not is_table(data):
        return items_of(data, name)
    if comes_from(data, "pandas"):
        return iter(table.to_dict("records"))
    if comes_from(data, "pyarrow"):
        return (row for batch in table.to_batches() for row in batch.to_pylist())
    names = {column: _class_names(kind) for column, kind in dict(table.features).items()}
    return ({key: _named(value, names[key]) for key, value in row.items()} for row in table)


def _class_names(feature: Any) -> Sequence[str] | None:
    """Return the names of the classes of a `datasets` feature, also of a list of such classes."""
    names: Sequence[str] | None = getattr(feature, "names", None)
    inner = getattr(feature, "feature", None)
    return names if names is not None or inner is None else _class_names(inner)


def _named(value: Any, names: Sequence[str] | None) -> Any:
    """Replace class numbers, which `datasets` stores, by their names."""
    if names is None:
        return value
    if isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None  # -1 stands for an unknown class
    return [_named(part, names) for part in value] if isinstance(value, list) else value


def cell_of(value: Any, where: str) -> Any:
    """Turn a cell into a value of JSON; missing values of numpy and pandas become None."""
    if type(value).__name__ in MISSING or (isinstance(value, float) and value != value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if comes_from(value, "numpy"):
        return cell_of(value.tolist(), where)
    if isinstance(value, list | tuple):
        return [cell_of(part, f"{where}[{i}]") for i, part in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): cell_of(part, f"{where}[{key!r}]") for key, part in value.items()}
    raise DataError(f"{where} is {described(value)}; need a string, a number or a list.")


def files_in(data: object) -> list[Path] | None:
    """Return the paths if data is a file or a list of files; None if it is rows.

    Labelled rows are never plain strings, so a string is the name of a file.
    """
    if isinstance(data, str | Path):
        return [Path(data)]
    if isinstance(data, list | tuple) and data and all(isinstance(x, str | Path) for x in data):
        return [Path(path) for path in data]
    return None


def refuse_file_name(text: str, name: str) -> None:
    """Refuse a string that looks like the name of a data file where a string is a text.

    Reading the file instead would let the author of a text read files of this machine.
    """
    if FILE_NAME.fullmatch(text):
        raise DataError(
            f"{name} is {text!r:.60}, which looks like a file. Give pathlib.Path({text!r:.60}) for "
            f"the file, or [{text!r:.60}] for the text."
        )


@contextmanager
def rows_as_file(rows: Iterable[Mapping[str, object]], name: str) -> Iterator[Path]:
    """Write rows to a temporary JSONL file, so that they are read and checked as a file is.

    Errors name the row, as in `train[3]`, instead of a line of the temporary file.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for index, row in enumerate(rows):
                cells = {str(k): cell_of(v, f"{name}[{index}][{k!r}]") for k, v in row.items()}
                file.write(json.dumps(cells) + "\n")
        try:
            yield path
        except DataError as error:
            error.args = (by_row(str(error), path, name),)
            raise


def by_row(message: str, path: Path, name: str) -> str:
    """Replace the lines of a temporary file in a message by rows counted from 0.

    >>> by_row("/tmp/a/train.jsonl:4: the text is empty", Path("/tmp/a/train.jsonl"), "train")
    'train[3]: the text is empty'
    """
    place = re.compile(re.escape(str(path)) + r"(?::(\d+))?")
    return place.sub(lambda match: f"{name}[{int(match[1]) - 1}]" if match[1] else name, message)
