"""What a user can mend, said in one line: `where: what we got; what we need. What to do.`

UserError is the base; its kinds say which part of the user's world is meant. Everything a user
cannot mend is an ordinary exception, and a fault of ours.
"""

import signal
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module


class UserError(ValueError):
    """Something the user can mend; the command line prints it without a traceback, exit code 2."""


class SettingsError(UserError):
    """A setting, a flag or a name that is unknown or impossible."""


class DataError(UserError):
    """A text or data file that cannot be read as it stands."""


class TextTooLong(DataError):
    """A text that does not fit, where nothing may be cut; `number` counts texts from 1."""

    def __init__(self, number: int, tokens: int, limit: int, where: str | None = None) -> None:
        self.number, self.tokens, self.limit = number, tokens, limit
        super().__init__(
            f"{where or f'text {number}'}: {tokens:,} tokens; the model holds {limit}. Shorten the "
            "text, or let its end be cut (truncate=True; without --no-truncate)."
        )


class FolderError(UserError):
    """A model folder that is missing, damaged, hostile or of another kind."""


class FetchError(UserError):
    """Something that could not be brought from a package index or a hub."""


class Stopped(Exception):
    """A run was asked to stop by a signal, has saved its state, and did."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def require(what: str, *packages: str, extra: str) -> None:
    """Refuse what needs packages that are not installed; `extra` of unmask installs them."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise SettingsError(
                f"{what} needs {package}, which is not installed. "
                f"Run: pip install 'unmask[{extra}]'"
            ) from None


def one_line(error: Exception) -> str:
    """What went wrong in somebody else's code: the kind of error, and what it says.

    >>> one_line(ValueError("two\\nlines")), one_line(KeyError())
    ('ValueError: two lines', 'KeyError')
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def unknown_name(what: str, got: str, allowed: Iterable[str]) -> str:
    """Say that a name is unknown, and offer the nearest right one.

    >>> unknown_name("size", "minni", ["tiny", "mini"])
    "unknown size 'minni'; did you mean 'mini'? The sizes are mini, tiny."
    """
    names = sorted(allowed)
    near = get_close_matches(got[:60], names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else "there is none of that name."
    return f"unknown {what} {got[:60]!r}; {hint} The {plural(what)} are {', '.join(names)}."


IRREGULAR = {"criterion": "criteria"}


def plural(noun: str, count: int = 2) -> str:
    """Give the form of an English noun that goes with a count.

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
