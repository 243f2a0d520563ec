"""Files of JSON, an object a line -> what is made of each, and the fields that it must have."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from unmask.data.read.lines import ErrorPolicy, read_lines, require_unicode
from unmask.system.errors import DataError
from unmask.system.settings import parse_json

Made = TypeVar("Made")


def read_objects(
    path: str | Path, watcher: ErrorPolicy, make: Callable[[dict[str, object], str, str], Made]
) -> Iterator[Made]:
    """Yield what `make` makes of the object in each line, of its place and of the line itself."""
    for line, text in read_lines(path, watcher):
        if not text.strip():
            continue
        where = f"{path}:{line}"
        try:
            yield make(parse_json(text, where=where, kind=DataError), where, text)
        except DataError as error:
            watcher.bad(error, text)


def object_with(name: str, value: object, where: str) -> dict[str, object]:
    """A value that must be an object of JSON with this field."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: {value!r:.60}; need an object with '{name}'. Mend it.")
    if name not in value:
        raise DataError(f"{where}: '{name}' is missing. Add it.")
    return value


def field_of(table: object, name: str, where: str) -> object:
    """A field that an object of JSON must have."""
    return object_with(name, table, where)[name]


def text_of(table: object, name: str, where: str) -> str:
    """A field that must be a text that is not blank."""
    value = field_of(table, name, where)
    if not isinstance(value, str):
        raise DataError(f"{where}: '{name}' is {value!r:.60}; need a text in quotes. Mend it.")
    if not value.strip():
        raise DataError(f"{where}: '{name}' is empty; need some text. Fill it, or remove it.")
    return require_unicode(value, where)


def list_of(table: object, name: str, where: str) -> list[object]:
    """A field that must be a list."""
    value = field_of(table, name, where)
    if not isinstance(value, list):
        raise DataError(f"{where}: '{name}' is {value!r:.60}; need a list. Mend it.")
    return value
