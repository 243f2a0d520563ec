"""Results -> a short `repr` for a session or notebook, and plain values for JSON.

A result is a frozen dataclass that inherits from `Result`. Its `repr=False` keeps the short form
below, instead of the one that dataclasses generate.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any, cast

SHOWN = 3  # items that a long list or dictionary shows
LONGEST_LIST = 6  # items that are shown in full
LONGEST_TEXT = 60  # characters


class Result:
    """A frozen dataclass with a short `repr` and a form for JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values that `json.dumps` accepts."""
        return {name: plain(value) for name, value in _fields(self)}

    def __repr__(self) -> str:
        parts = (f"{name}={shortened(value)}" for name, value in _fields(self))
        return f"{type(self).__name__}({', '.join(parts)})"


def plain(value: object) -> Any:
    """Turn a value into what JSON knows: tuples and arrays become lists, dataclasses objects."""
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(part) for name, part in _fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, PurePath):
        return str(value)
    # Arrays and numpy's numbers have `tolist`, pydantic's models have `model_dump`. They are not
    # recognised by type, because this module imports neither library.
    for method in ("tolist", "model_dump"):
        convert: Callable[[], Any] | None = getattr(value, method, None)
        if convert is not None:
            return convert()
    return value


def shortened(value: object) -> str:
    """Return a `repr` that stays within a line or two, however large the value is."""
    if isinstance(value, str):
        cut = value if len(value) <= LONGEST_TEXT else f"{value[: LONGEST_TEXT - 3]}..."
        return repr(cut)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return _bracketed(
            "{}", (f"{key!r}: {shortened(part)}" for key, part in value.items()), len(value)
        )
    if isinstance(value, list | tuple):
        brackets = "[]" if isinstance(value, list) else "()"
        return _bracketed(brackets, map(shortened, value), len(value))
    shape = getattr(value, "shape", None)
    if shape:  # an array
        return f"<{'x'.join(map(str, shape))} {getattr(value, 'dtype', 'array')}>"
    return repr(value)


def _bracketed(brackets: str, parts: Iterable[str], count: int) -> str:
    """Join parts in brackets; of a long list, only the first are shown, and their number."""
    shown = [part for part, _ in zip(parts, range(LONGEST_LIST), strict=False)]
    if count > LONGEST_LIST:
        shown = [*shown[:SHOWN], f"... {count:,} items"]
    comma = "," if brackets == "()" and count == 1 else ""
    return f"{brackets[0]}{', '.join(shown)}{comma}{brackets[1]}"


def _fields(value: object) -> list[tuple[str, object]]:
    return [(field.name, getattr(value, field.name)) for field in fields(cast(Any, value))]
