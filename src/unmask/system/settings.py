"""Tables -> checked settings: strict pydantic models, TOML recipes, and JSON from strangers.

It knows no component. Each component declares its own `Settings` beside what it configures, and
`build` turns a plain table into one, saying in our words which key is wrong and what is near it.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from unmask.system.errors import FolderError, SettingsError, UserError, unknown_name

JSON_LIMIT = 2**20  # bytes: a config has a few thousand
DEEPEST = 50  # levels of tables and lists; code that reads settings is recursive
NEEDED = {  # where pydantic says what the value is in Python, and not in TOML and JSON
    "model_type": "need a table",
    "dict_type": "need a table",
    "tuple_type": "need a list",
    "union_tag_not_found": "need a kind",
}


class Settings(BaseModel):
    """A frozen table of settings that refuses unknown keys and silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


S = TypeVar("S", bound=Settings)


def validate(kind: type[S], table: Mapping[str, object], *, where: str) -> S:
    """Check a table against its declaration; `where` opens the message of an error."""
    refuse_unknown(kind, table, where)
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        inner: object = error.errors(include_url=False)[0].get("ctx", {}).get("error")
        if isinstance(inner, SettingsError):  # a table inside has found the words already
            raise inner from None
        raise SettingsError(_first(error, table, where)) from None


def refuse_unknown(kind: type[Settings], table: Mapping[str, object], where: str) -> None:
    """Name a key that is not declared, in this table or in one inside it."""
    for key, value in table.items():
        if key not in kind.model_fields:
            raise SettingsError(f"{where}: {unknown_name('key', key, kind.model_fields)}")
        inner = kind.model_fields[key].annotation
        tables: list[object] = value if isinstance(value, list) else [value]
        if get_origin(inner) is dict and isinstance(value, Mapping):
            tables = list(value.values())
        kinds = [own for own in _within(inner) if _has_tables(own)]
        for part in tables:
            if isinstance(part, Mapping) and (inside := _kind_of(part, kinds)):
                refuse_unknown(inside, part, f"{where} [{key}]")


def _within(annotation: object) -> list[object]:
    """A type and all types that it is made of."""
    return [annotation, *chain.from_iterable(map(_within, get_args(annotation)))]


def _kind_of(table: Mapping[str, object], kinds: list[type[Settings]]) -> type[Settings] | None:
    """What a table declares, where there are several kinds, and it says which it is."""
    tagged = [own for own in kinds if "kind" in own.model_fields]
    if len(tagged) > 1:
        kinds = [own for own in tagged if own.model_fields["kind"].default == table.get("kind")]
    return next(iter(kinds), None)


def _has_tables(kind: object) -> TypeGuard[type[Settings]]:
    """Is it a kind of settings, whose keys are not checked elsewhere?"""
    own = isinstance(kind, type) and issubclass(kind, Settings)
    return own and not getattr(kind, "checks_itself", False)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a recipe."""
    try:
        return _toml(path.read_text("utf-8"), str(path))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}. Mend it.") from None


def _toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML; what is nested too deep for a recipe is refused."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(where) from None
    level: list[object] = [table]
    for _ in range(DEEPEST + 1):
        level = [inner for part in level for inner in _inside(part)]
    if level:
        raise _too_deep(where)
    return table


def _inside(value: object) -> Iterable[object]:
    """The values of a table or a list."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep(where: str) -> SettingsError:
    return SettingsError(
        f"{where}: nested more than {DEEPEST} levels deep; no setting is. Remove the levels."
    )


def write_toml(table: Mapping[str, object], inside: str = "") -> str:
    """A table of settings, and tables inside it, as TOML; what is None is left out.

    >>> print(write_toml({"seed": 1, "model": {"size": "mini"}, "phases": [{"length": 128}]}))
    seed = 1
    <BLANKLINE>
    [model]
    size = "mini"
    <BLANKLINE>
    [[phases]]
    length = 128
    <BLANKLINE>
    """
    plain = {k: v for k, v in table.items() if not _tables(v) and v is not None}
    # TOML has JSON's strings, but no pairs of surrogates: characters stand for themselves; not DEL.
    text = "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in plain.items()
    ).replace("\x7f", "\\u007f")
    for key, value in table.items():
        name = inside + key
        head = f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
        for part in _tables(value):
            text += f"\n{head}\n{write_toml(part, f'{name}.')}"
    return text


def _tables(value: object) -> list[Mapping[str, object]]:
    """The tables that a value is: itself, or a list of nothing else; none where it is no table."""
    parts: list[object] = value if isinstance(value, list) else [value]
    tables = [part for part in parts if isinstance(part, Mapping)]
    return tables if len(tables) == len(parts) else []


def apply_overrides(table: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A table with some values replaced, each given as `name.name=value`.

    >>> apply_overrides({"model": {"size": "base"}}, ["model.size=mini", "seed=3"])
    {'model': {'size': 'mini'}, 'seed': 3}
    """
    result = deepcopy(table)
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"--set {assignment}: need name=value, as in model.size=mini.")
        *path, last = name.strip().split(".")
        if len(path) > DEEPEST:
            raise _too_deep(f"--set {name:.60}")
        place: Any = result
        for key in path:
            if isinstance(place, dict):
                place.setdefault(key, {})
            place = place[_key(place, key, assignment)]
        place[_key(place, last, assignment)] = _value(name.strip(), value.strip())
    return result


def _key(place: object, key: str, assignment: str) -> Any:
    """What a name means inside a table, or a number inside a list of tables."""
    if isinstance(place, dict):
        return key
    if not isinstance(place, list):
        raise SettingsError(f"--set {assignment}: there is no table for '{key}' to be in.")
    if not key.isdecimal() or int(key) >= len(place):
        raise SettingsError(
            f"--set {assignment}: '{key}' in a list of {len(place)}; need a number from 0 to "
            f"{len(place) - 1}, as in phases.0.length=128."
        )
    return int(key)


def _value(name: str, text: str) -> object:
    """The value of a setting, as TOML writes it; a bare word is a string."""
    try:
        table: dict[str, object] = _toml(f"value = {text}", f"--set {name:.60}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"]


def _first(error: ValidationError, table: Mapping[str, object], where: str) -> str:
    """One line for the first thing that is wrong."""
    found = [(_place(own, table), own) for own in error.errors(include_url=False)]
    first = found[0][0]
    # A value that may be of several types is refused by each; the deepest has read most of it.
    inside = [one for one in found if one[0][: len(first)] == first]
    place, detail = max(inside, key=lambda one: len(one[0]))
    needs = dict.fromkeys(_need(own) for at, own in inside if at == place)
    key = ".".join(place)
    if detail["type"] == "missing":
        return f"{where}: '{key}' is missing; give it a value."
    if not key or (detail["type"] == "value_error" and isinstance(detail["input"], Mapping)):
        # A rule between several keys of a table, which names them itself.
        return f"{where}{f' [{key}]' if key else ''}: {_need(detail)}"
    got, need = repr(detail.get("input")), "; or ".join(one.removesuffix(".") for one in needs)
    return f"{where}: '{key}' is {got[:60]}; {need}."


def _need(detail: ErrorDetails) -> str:
    """What is needed instead."""
    if detail["type"] == "union_tag_invalid":  # whose message has all of what was given
        return f"need a kind of {detail['ctx']['expected_tags']}"
    need = NEEDED.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    return need[0].lower() + need[1:]


def _numbered(value: object) -> dict[str | int, object]:
    """The elements of a list, by their numbers."""
    return dict(enumerate(value)) if isinstance(value, list | tuple) else {}


def _place(detail: ErrorDetails, table: object) -> tuple[str, ...]:
    """The names that lead to a value, without the types that pydantic tried on the way."""
    found: list[str] = []
    for part in detail["loc"]:
        rows = table if isinstance(table, Mapping) else _numbered(table)
        if part in rows:
            table = rows[part]
            found.append(str(part))
    return (*found, str(detail["loc"][-1])) if detail["type"] == "missing" else tuple(found)


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

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise ValueError(f"the key {repeated[:60]!r} is given twice")
        return table

    def never(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
        table: object = json.loads(text, object_pairs_hook=once, parse_constant=never)
    except RecursionError:
        why = "nested too deep to be read"
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if isinstance(raw, bytes) else ""
        why = f"{error.msg} ({place}column {error.colno})"
    except ValueError as error:  # not UTF-8, or an integer of thousands of digits
        why = str(error).partition(";")[0]
    else:
        if isinstance(table, dict):
            return table
        raise kind(f"{where}: a {type(table).__name__}; need a JSON object {{...}}.")
    raise kind(f"{where}: not valid JSON: {why}. Mend it.")
