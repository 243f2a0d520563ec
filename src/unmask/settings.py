"""Tables -> checked settings: strict pydantic models, and JSON from strangers.

It knows no component. Each component declares its own `Settings` beside what it configures, and
`build` turns a plain table into one, saying in our words which key is wrong and what is near it.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import FolderError, SettingsError, UserError, unknown

JSON_LIMIT = 2**20  # bytes: a config has a few thousand


class Settings(BaseModel):
    """A frozen table of settings that refuses unknown keys and silent conversions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


S = TypeVar("S", bound=Settings)


def build(kind: type[S], table: Mapping[str, Any], *, where: str) -> S:
    """Check a table against its declaration; `where` opens the message of an error."""
    for key in table:
        if key not in kind.model_fields:
            raise SettingsError(f"{where}: {unknown('key', key, kind.model_fields)}")
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        raise SettingsError(f"{where}: {_first(error, table)}") from None


def _first(error: ValidationError, table: Mapping[str, Any]) -> str:
    """One line for the first thing that is wrong."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"])
    need = detail["msg"].removeprefix("Value error, ")
    need = need[0].lower() + need[1:]
    if detail["type"] == "missing":
        return f"'{key}' is missing; give it a value."
    if not key:  # a rule between several keys, which names them itself
        return need
    got = repr(table.get(key))
    return f"'{key}' is {got[:60]}; {need}."


def read_json(path: Path, *, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Read a JSON object from a file that may be hostile: bounded, no repeated keys, no NaN."""
    if path.exists() and not path.is_file():  # a pipe would be waited for, a device has no end
        raise FolderError(f"{path}: cannot be read (it is no ordinary file).")
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise FolderError(f"{path}: cannot be read ({error.strerror}).") from None
    if len(raw) > limit:
        raise FolderError(f"{path}: over {limit:,} bytes, the most that such a file may have.")
    return parse_json(raw, where=str(path))


def parse_json(
    raw: bytes | str, *, where: str, kind: type[UserError] = FolderError
) -> dict[str, Any]:
    """Text -> a JSON object, refusing what Python's parser lets pass."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise ValueError(f"the key {repeated[:60]!r} is given twice")
        return table

    def never(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
        table = json.loads(text, object_pairs_hook=once, parse_constant=never)
    except RecursionError:
        raise kind(f"{where}: not valid JSON: nested too deep to be read. Mend it.") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if isinstance(raw, bytes) else ""
        raise kind(
            f"{where}: not valid JSON: {error.msg} ({place}column {error.colno}). Mend it."
        ) from None
    except ValueError as error:  # not UTF-8, or an integer of thousands of digits
        raise kind(f"{where}: not valid JSON: {str(error).partition(';')[0]}. Mend it.") from None
    if not isinstance(table, dict):
        raise kind(f"{where}: a {type(table).__name__}; need a JSON object {{...}}.")
    return table
