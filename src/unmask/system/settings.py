"""Tables -> validated settings: strict pydantic models, TOML recipes, and untrusted JSON.

This module knows no component. Each component declares its own `Settings` beside the code that they
configure. `validate` turns a plain table into settings, and its errors say which key is wrong
and which valid name is closest.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeGuard, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from unmask.system.errors import FolderError, SettingsError, UserError, unknown_name

JSON_LIMIT = 2**20  # bytes: a config has a few thousand
DEEPEST = 50  # levels of nesting; code that reads settings is recursive
NEEDED = {  # where pydantic names Python's types instead of TOML's and JSON's
    "model_type": "need a table",
    "dict_type": "need a table",
    "tuple_type": "need a list",
    "union_tag_not_found": "need a kind",
}


class Settings(BaseModel):
    """Frozen settings that refuse unknown keys and silent type conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # Former name of a setting -> its present name. Recipes, stored models and Python callers may
    # still use former names.
    old_names: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _to_present_names(cls, table: object) -> object:
        if not isinstance(table, Mapping):
            return table
        for old, new in cls.old_names.items():
            if old in table and new in table:
                raise ValueError(f"{old} and {new} are two names of one setting. Remove {old}.")
        return {cls.old_names.get(name, name): value for name, value in table.items()}


S = TypeVar("S", bound=Settings)


def validate(kind: type[S], table: Mapping[str, object], *, where: str) -> S:
    """Validate a table against its declaration; `where` starts every error message."""
    refuse_unknown(kind, table, where)
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        inner: object = error.errors(include_url=False)[0].get("ctx", {}).get("error")
        if isinstance(inner, SettingsError):  # raised by a nested table; complete
            raise inner from None
        present = {kind.old_names.get(name, name): value for name, value in table.items()}
        raise SettingsError(_first(error, present, where)) from None


def old_names_within(kind: type[Settings]) -> dict[str, str]:
    """Return the former names of settings and of those in nested tables, as `table.name`."""
    names = dict(kind.old_names)
    for key, field in kind.model_fields.items():
        for inner in filter(_has_tables, _within(field.annotation)):
            nested = old_names_within(inner).items()
            names |= {f"{key}.{old}": f"{key}.{new}" for old, new in nested}
    return names


def refuse_unknown(kind: type[Settings], table: Mapping[str, object], where: str) -> None:
    """Raise an error for a key that is not declared, in this table or in a nested one."""
    for given, value in table.items():
        key = kind.old_names.get(given, given)
        # Checked before pydantic, whose message for an unknown key names no similar one.
        if key not in kind.model_fields:
            raise SettingsError(f"{where}: {unknown_name('key', key, kind.model_fields)}")
        inner = kind.model_fields[key].annotation
        tables: list[object] = value if isinstance(value, list) else [value]  # a list of tables
        if get_origin(inner) is dict and isinstance(value, Mapping):
            tables = list(value.values())
        kinds = [own for own in _within(inner) if _has_tables(own)]
        for part in tables:
            if isinstance(part, Mapping) and (inside := _kind_of(part, kinds)):
                refuse_unknown(inside, part, f"{where} [{key}]")


def _within(annotation: object) -> list[object]:
    """Return a type annotation and, recursively, all of its arguments."""
    return [annotation, *chain.from_iterable(map(_within, get_args(annotation)))]


def _kind_of(table: Mapping[str, object], kinds: list[type[Settings]]) -> type[Settings] | None:
    """Choose the declaration of a nested table; among several, its `kind` decides."""
    tagged = [own for own in kinds if "kind" in own.model_fields]
    if len(tagged) > 1:
        kinds = [own for own in tagged if own.model_fields["kind"].default == table.get("kind")]
    return next(iter(kinds), None)


def _has_tables(kind: object) -> TypeGuard[type[Settings]]:
    """Whether a type is `Settings` whose keys are to be checked here."""
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
    """Parse TOML, refusing what is nested too deep for a recipe."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(where) from None
    # Level by level, because a recursive check would fail on the depth that it looks for.
    level: list[object] = [table]
    for _ in range(DEEPEST + 1):
        level = [inner for part in level for inner in _inside(part)]
    if level:
        raise _too_deep(where)
    return table


def _inside(value: object) -> Iterable[object]:
    """Return the values of a table or list; nothing for other values."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep(where: str) -> SettingsError:
    return SettingsError(
        f"{where}: nested more than {DEEPEST} levels deep; no setting is. Remove the levels."
    )


def write_toml(table: Mapping[str, object], inside: str = "") -> str:
    """Format settings, with nested tables, as TOML; a value of None is omitted.

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
    # JSON's strings are TOML's, except that TOML has no surrogate pairs and no literal DEL.
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
    """Return the tables in a value: itself, or the items of a list of tables; else none."""
    parts: list[object] = value if isinstance(value, list) else [value]
    tables = [part for part in parts if isinstance(part, Mapping)]
    return tables if len(tables) == len(parts) else []


def apply_overrides(table: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Return a table with some values replaced, each given as `name.name=value`.

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
    """Resolve one part of a dotted name: a key of a table, or an index into a list of tables."""
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
    """Parse a value as TOML; anything that is not TOML is a string, so words need no quotes."""
    try:
        table: dict[str, object] = _toml(f"value = {text}", f"--set {name:.60}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"]


def _first(error: ValidationError, table: Mapping[str, object], where: str) -> str:
    """Format the first validation error as one line."""
    found = [(_place(own, table), own) for own in error.errors(include_url=False)]
    first = found[0][0]
    # Each member of a union reports its own error; the deepest one has matched most of the value.
    inside = [one for one in found if one[0][: len(first)] == first]
    place, detail = max(inside, key=lambda one: len(one[0]))
    needs = dict.fromkeys(_need(own) for at, own in inside if at == place)
    key = ".".join(place)
    if detail["type"] == "missing":
        return f"{where}: '{key}' is missing; give it a value."
    if not key or (detail["type"] == "value_error" and isinstance(detail["input"], Mapping)):
        # A rule about several keys of a table, whose message names them itself.
        return f"{where}{f' [{key}]' if key else ''}: {_need(detail)}"
    got, need = repr(detail.get("input")), "; or ".join(one.removesuffix(".") for one in needs)
    return f"{where}: '{key}' is {got[:60]}; {need}."


def _need(detail: ErrorDetails) -> str:
    """Say what was expected instead."""
    if detail["type"] == "union_tag_invalid":  # pydantic's message repeats the whole input
        return f"need a kind of {detail['ctx']['expected_tags']}"
    need = NEEDED.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    return need[0].lower() + need[1:]


def _numbered(value: object) -> dict[str | int, object]:
    """Return the items of a list by index; nothing for other values."""
    return dict(enumerate(value)) if isinstance(value, list | tuple) else {}


def _place(detail: ErrorDetails, table: object) -> tuple[str, ...]:
    """Return the keys that lead to a value, without the names of types that pydantic tried."""
    found: list[str] = []
    for part in detail["loc"]:
        rows = table if isinstance(table, Mapping) else _numbered(table)
        if part in rows:
            table = rows[part]
            found.append(str(part))
    return (*found, str(detail["loc"][-1])) if detail["type"] == "missing" else tuple(found)


def read_json(path: Path, *, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Read a JSON object from an untrusted file: bounded, without repeated keys or NaN."""
    if path.exists() and not path.is_file():  # a pipe would block, a device has no end
        raise FolderError(f"{path}: cannot be read (it is no ordinary file).")
    try:
        with path.open("rb") as file:
            # One byte more than the limit shows that a file is too long, without reading the rest.
            raw = file.read(limit + 1)
    except OSError as error:
        raise FolderError(f"{path}: cannot be read ({error.strerror}).") from None
    if len(raw) > limit:
        raise FolderError(f"{path}: over {limit:,} bytes, the most that such a file may have.")
    return parse_json(raw, where=str(path))


def parse_json(
    raw: bytes | str, *, where: str, kind: type[UserError] = FolderError
) -> dict[str, Any]:
    """Parse a JSON object, refusing repeated keys and NaN, which Python's parser accepts."""

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
    except ValueError as error:  # not UTF-8, a repeated key, or a huge integer
        # On huge integers, Python's message goes on with advice for programmers.
        why = str(error).partition(";")[0]
    else:
        if isinstance(table, dict):
            return table
        raise kind(f"{where}: a {type(table).__name__}; need a JSON object {{...}}.")
    raise kind(f"{where}: not valid JSON: {why}. Mend it.")
