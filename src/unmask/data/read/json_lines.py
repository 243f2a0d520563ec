"""JSON lines -> records: an object per line, and checks for the fields that it must have."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from unmask.data.read.lines import ErrorPolicy, read_lines, require_unicode
from unmask.system.errors import DataError
from unmask.system.settings import parse_json

T = TypeVar("T")


def read_objects(
    path: str | Path, watcher: ErrorPolicy, make: Callable[[dict[str, object], str, str], T]
) -> Iterator[T]:
    """Yield `make(object, place, line)` for the object on each line; bad lines go to `watcher`."""
    for line, text in read_lines(path, watcher):
        if not text.strip():
            continue
        where = f"{path}:{line}"
        try:
            yield make(parse_json(text, where=where, kind=DataError), where, text)
        except DataError as error:
            watcher.bad(error, text)


def object_with(name: str, value: object, where: str) -> dict[str, object]:
    """Return a value that must be a JSON object with this field."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: {value!r:.60} is not an object; need one with '{name}'.")
    if name not in value:
        raise DataError(f"{where}: '{name}' is missing. Add it.")
    return value


def field_of(table: object, name: str, where: str) -> object:
    """Return a field that a JSON object must have."""
    return object_with(name, table, where)[name]


def text_of(table: object, name: str, where: str) -> str:
    """Return a field that must be a text with something in it."""
    value = field_of(table, name, where)
    if not isinstance(value, str):
        raise DataError(f"{where}: '{name}' is {value!r:.60}; need a string in quotes.")
    if not value.strip():
        raise DataError(f"{where}: '{name}' is empty; need some text. Fill it in or remove it.")
    return require_unicode(value, where)


def list_of(table: object, name: str, where: str) -> list[object]:
    """Return a field that must be a list."""
    value = field_of(table, name, where)
    if not isinstance(value, list):
        raise DataError(f"{where}: '{name}' is {value!r:.60}; need a list.")
    return value
