"""Errors that a user can fix, in one line: `where: what we got; what we need. What to do.`

`UserError` is the base class; its subclasses say which part of the user's world is meant. Any
other exception is a bug in unmask.
"""

import signal
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module


class UserError(ValueError):
    """An error that the user can fix; the command line prints no traceback and exits with 2."""


class SettingsError(UserError):
    """A setting, option or name that is unknown or impossible."""


class DataError(UserError):
    """A text or data file that cannot be read as it is."""


class TextTooLong(DataError):
    """A text over the model's limit, where truncation is not allowed; `number` counts from 1."""

    def __init__(self, number: int, tokens: int, limit: int, where: str | None = None) -> None:
        self.number, self.tokens, self.limit = number, tokens, limit
        super().__init__(
            f"{where or f'text {number}'}: {tokens:,} tokens; the model reads at most {limit}. "
            "Shorten the text, or have it truncated (truncate=True; without --no-truncate)."
        )


class FolderError(UserError):
    """A model folder that is missing, damaged, hostile or of another kind."""


class FetchError(UserError):
    """A model that could not be downloaded from a package index or hub."""


class Stopped(Exception):
    """A signal asked the run to stop, and it has stopped; after a first step, it saves before."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number  # as shells report a process that a signal ended


def require(feature: str, *packages: str, extra: str) -> None:
    """Raise an error if a package cannot be imported; optional dependency `extra` installs it."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise SettingsError(
                f"{feature} needs {package}, which is not installed. "
                f"Run: pip install 'unmask[{extra}]'"
            ) from None


def one_line(error: Exception) -> str:
    """Describe an exception of third-party code in one line: its type and message.

    >>> one_line(ValueError("two\\nlines")), one_line(KeyError())
    ('ValueError: two lines', 'KeyError')
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def unknown_name(what: str, name: str, allowed: Iterable[str], *, in_order: bool = False) -> str:
    """Build the message for an unknown name, with the closest valid one.

    The valid names are listed by the alphabet, or as they are given (`in_order`).

    >>> unknown_name("size", "minni", ["tiny", "mini"])
    "unknown size 'minni'; did you mean 'mini'? The sizes are mini, tiny."
    """
    names = list(allowed) if in_order else sorted(allowed)
    # Cut to 60 characters: the name may come from a file, and matching takes quadratic time.
    matches = get_close_matches(name[:60], names, n=1, cutoff=0.5)
    hint = f"did you mean '{matches[0]}'?" if matches else "there is none of that name."
    return f"unknown {what} {name[:60]!r}; {hint} The {plural(what)} are {', '.join(names)}."


IRREGULAR = {"criterion": "criteria"}


def plural(noun: str, count: int = 2) -> str:
    """Inflect an English noun for a count.

    >>> plural("text", 1), plural("text"), plural("key"), plural("vocabulary")
    ('text', 'texts', 'keys', 'vocabularies')
    """
    if count == 1:
        return noun
    if noun in IRREGULAR:
        return IRREGULAR[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"
