"""The beginning of a word -> the names that complete it in a shell; torch is not imported.

The shell runs `unmask` at every press of the tab key, so each function imports only what lists its
names. typer drops the names that do not start with the word.
"""

from collections.abc import Callable

Complete = Callable[[str], list[str]]


def choices(*names: str) -> Complete:
    """Complete one of a few fixed names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def models(incomplete: str) -> list[str]:
    """Complete the name of a model that can be downloaded, or was."""
    from unmask.checkpoint.fetch import known_models

    return [name for name in known_models() if name.startswith(incomplete)]


def tasks(incomplete: str) -> list[str]:
    """Complete the name of a task."""
    from unmask.system.plugins import known_names
    from unmask.tasks import TASKS

    return choices(*known_names("task", TASKS))(incomplete)


def tasks_or_multi(incomplete: str) -> list[str]:
    """Complete the name of a task, or `multi`."""
    return [*tasks(incomplete), *choices("multi")(incomplete)]


def sizes(incomplete: str) -> list[str]:
    """Complete the size of a new model, from small to large."""
    from unmask.model.config import SIZES

    return choices(*SIZES, "auto")(incomplete)


def pretraining_recipes(incomplete: str) -> list[str]:
    """Complete the name of a built-in recipe for pre-training."""
    return _recipes("", incomplete)


def translation_recipes(incomplete: str) -> list[str]:
    """Complete the name of a built-in recipe for translation."""
    return _recipes("translate", incomplete)


def _recipes(folder: str, incomplete: str) -> list[str]:
    from unmask.train.compose import known_recipes

    return choices(*known_recipes(folder))(incomplete)
