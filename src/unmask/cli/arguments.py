"""Words of the command line -> the flags that every verb has, and the words for typer.

typer accepts the flags of the program before the verb only. Users put them anywhere, so they are
taken out of the words before typer parses the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from unmask.system.errors import UserError

OLD_FLAGS = {"--rate": "--learning-rate", "--batch": "--batch-size", "--length": "--max-length"}
SWITCHES = {
    "--trace": "trace",
    "--quiet": "quiet",
    "-q": "quiet",
    "--verbose": "verbose",
    "-v": "verbose",
}


@dataclass
class CommonFlags:
    """Flags that every verb has, wherever they stand."""

    trace: bool = False  # print tracebacks
    quiet: bool = False  # print results and errors only
    verbose: bool = False  # print details
    plugins: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Refuse flags that contradict each other."""
        if self.quiet and self.verbose:
            raise UserError("--quiet and --verbose contradict each other. Give one of them.")


def options_and_texts(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words at `--`: what follows it are texts or files, whatever they look like."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end:]


def common_flags(words: list[str]) -> tuple[CommonFlags, list[str]]:
    """Take the flags that every verb has out of the words; return both."""
    options, texts = options_and_texts(words)
    flags, rest = CommonFlags(), list[str]()
    remaining = iter(options)
    for word in remaining:
        if word in SWITCHES:
            setattr(flags, SWITCHES[word], True)
        elif word == "--plugin":
            file = next(remaining, None)
            if file is None:
                raise UserError("--plugin: need the path of a Python file, as in --plugin mine.py.")
            flags.plugins.append(file)
        elif word.startswith("--plugin="):
            flags.plugins.append(word.partition("=")[2])
        else:
            rest.append(word)
    return flags, rest + texts


def current_flags(words: list[str], say: Callable[[str], None]) -> list[str]:
    """Replace flags of earlier versions by their present names, with a notice."""
    options, texts = options_and_texts(words)
    current = []
    for word in options:
        flag, equals, value = word.partition("=")
        if flag in OLD_FLAGS:
            say(f"notice: the flag {flag} is now called {OLD_FLAGS[flag]}")
            word = f"{OLD_FLAGS[flag]}{equals}{value}"
        current.append(word)
    return current + texts
