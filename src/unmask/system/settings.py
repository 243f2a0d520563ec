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
MAX_DEPTH = 50  # levels of nesting; code that reads settings is recursive
EXPECTED = {  # where pydantic names Python's types instead of TOML's and JSON's
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
        raise SettingsError(_first_error(error, present, where)) from None


def old_names_within(kind: type[Settings]) -> dict[str, str]:
    """Return the former names of settings and of those in nested tables, as `table.name`."""
    names = dict(kind.old_names)
    for key, field in kind.model_fields.items():
        for inner in filter(_has_tables, _types_in(field.annotation)):
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
        annotation = kind.model_fields[key].annotation
        tables: list[object] = value if isinstance(value, list) else [value]  # a list of tables
        if get_origin(annotation) is dict and isinstance(value, Mapping):
            tables = list(value.values())
        kinds = [candidate for candidate in _types_in(annotation) if _has_tables(candidate)]
        for nested in tables:
            if isinstance(nested, Mapping) and (declaration := _kind_of(nested, kinds)):
                refuse_unknown(declaration, nested, f"{where} [{key}]")


def _types_in(annotation: object) -> list[object]:
    """Return a type annotation and, recursively, all of its arguments."""
    return [annotation, *chain.from_iterable(map(_types_in, get_args(annotation)))]


def _kind_of(table: Mapping[str, object], kinds: list[type[Settings]]) -> type[Settings] | None:
    """Choose the declaration of a nested table; among several, its `kind` decides."""
    tagged = [kind for kind in kinds if "kind" in kind.model_fields]
    if len(tagged) > 1:
        kinds = [kind for kind in tagged if kind.model_fields["kind"].default == table.get("kind")]
    return next(iter(kinds), None)


def _has_tables(kind: object) -> TypeGuard[type[Settings]]:
    """Whether a type is `Settings` whose keys are to be checked here."""
    is_settings = isinstance(kind, type) and issubclass(kind, Settings)
    return is_settings and not getattr(kind, "checks_itself", False)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a recipe."""
    try:
        return _parse_toml(path.read_text("utf-8"), str(path))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}. Fix it.") from None


def _parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML, refusing what is nested too deep for a recipe."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(where) from None
    # Level by level, because a recursive check would fail on the depth that it looks for.
    level: list[object] = [table]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for value in level for inner in _children(value)]
    if level:
        raise _too_deep(where)
    return table


def _children(value: object) -> Iterable[object]:
    """Return the values of a table or list; nothing for other values."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep(where: str) -> SettingsError:
    return SettingsError(
        f"{where}: nested more than {MAX_DEPTH} levels deep; no setting is. Flatten it."
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
    values: list[object] = value if isinstance(value, list) else [value]
    tables = [item for item in values if isinstance(item, Mapping)]
    return tables if len(tables) == len(values) else []


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
        if len(path) > MAX_DEPTH:
            raise _too_deep(f"--set {name:.60}")
        container: Any = result
        for key in path:
            if isinstance(container, dict):
                container.setdefault(key, {})
            container = container[_resolve_key(container, key, assignment)]
        container[_resolve_key(container, last, assignment)] = _parse_value(
            name.strip(), value.strip()
        )
    return result


def _resolve_key(container: object, key: str, assignment: str) -> Any:
    """Resolve one part of a dotted name: a key of a table, or an index into a list of tables."""
    if isinstance(container, dict):
        return key
    if not isinstance(container, list):
        raise SettingsError(
            f"--set {assignment}: '{key}' is inside a value that is not a table; need "
            "name=value, as in model.size=mini."
        )
    if not key.isdecimal() or int(key) >= len(container):
        raise SettingsError(
            f"--set {assignment}: '{key}' indexes a list of {len(container)}; need 0 to "
            f"{len(container) - 1}, as in phases.0.length=128."
        )
    return int(key)


def _parse_value(name: str, text: str) -> object:
    """Parse a value as TOML; anything that is not TOML is a string, so words need no quotes."""
    try:
        table: dict[str, object] = _parse_toml(f"value = {text}", f"--set {name:.60}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"]


def _first_error(error: ValidationError, table: Mapping[str, object], where: str) -> str:
    """Format the first validation error as one line."""
    errors = [(_keys_of_error(detail, table), detail) for detail in error.errors(include_url=False)]
    shortest = errors[0][0]
    # Each member of a union reports its own error; the deepest one has matched most of the value.
    candidates = [candidate for candidate in errors if candidate[0][: len(shortest)] == shortest]
    location, detail = max(candidates, key=lambda candidate: len(candidate[0]))
    needs = dict.fromkeys(_expected(other) for keys, other in candidates if keys == location)
    key = ".".join(location)
    if detail["type"] == "missing":
        return f"{where}: '{key}' is missing. Give it a value."
    if not key or (detail["type"] == "value_error" and isinstance(detail["input"], Mapping)):
        # A rule about several keys of a table, whose message names them itself.
        return f"{where}{f' [{key}]' if key else ''}: {_expected(detail)}"
    value = repr(detail.get("input"))
    need = "; or ".join(alternative.removesuffix(".") for alternative in needs)
    return f"{where}: '{key}' is {value[:60]}; {need}."


def _expected(detail: ErrorDetails) -> str:
    """Say what was expected instead."""
    if detail["type"] == "union_tag_invalid":  # pydantic's message repeats the whole input
        return f"need a kind of {detail['ctx']['expected_tags']}"
    expected = EXPECTED.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    return expected[0].lower() + expected[1:]


def _by_index(value: object) -> dict[str | int, object]:
    """Return the items of a list by index; nothing for other values."""
    return dict(enumerate(value)) if isinstance(value, list | tuple) else {}


def _keys_of_error(detail: ErrorDetails, table: object) -> tuple[str, ...]:
    """Return the keys that lead to a value, without the names of types that pydantic tried."""
    keys: list[str] = []
    for name in detail["loc"]:
        children = table if isinstance(table, Mapping) else _by_index(table)
        if name in children:
            table = children[name]
            keys.append(str(name))
    return (*keys, str(detail["loc"][-1])) if detail["type"] == "missing" else tuple(keys)


def read_json(path: Path, *, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Read a JSON object from an untrusted file: bounded, without repeated keys or NaN."""
    if path.exists() and not path.is_file():  # a pipe would block, a device has no end
        raise FolderError(f"{path}: cannot be read (not a regular file).")
    try:
        with path.open("rb") as file:
            # One byte more than the limit shows that a file is too long, without reading the rest.
            raw = file.read(limit + 1)
    except OSError as error:
        raise FolderError(f"{path}: cannot be read ({error.strerror}).") from None
    if len(raw) > limit:
        raise FolderError(f"{path}: larger than {limit:,} bytes, the limit for such a file.")
    return parse_json(raw, where=str(path))


def parse_json(
    raw: bytes | str, *, where: str, kind: type[UserError] = FolderError
) -> dict[str, Any]:
    """Parse a JSON object, refusing repeated keys and NaN, which Python's parser accepts."""

    def refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise ValueError(f"the key {repeated[:60]!r} is given twice")
        return table

    def refuse_constant(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
        table: object = json.loads(
            text, object_pairs_hook=refuse_repeated_keys, parse_constant=refuse_constant
        )
    except RecursionError:
        reason = "nested too deeply"
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, " if isinstance(raw, bytes) else ""
        reason = f"{error.msg} ({position}column {error.colno})"
    except ValueError as error:  # not UTF-8, a repeated key, or a huge integer
        # For huge integers, Python's message continues with advice for programmers.
        reason = str(error).partition(";")[0]
    else:
        if isinstance(table, dict):
            return table
        raise kind(f"{where}: a {type(table).__name__}; need a JSON object {{...}}.")
    raise kind(f"{where}: not valid JSON: {reason}. Fix it.")
