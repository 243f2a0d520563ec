"""A name or a file, flags and `--set a.b=c` -> one validated `Recipe`.

A recipe is composed once and typed from then on. The `Scope` of a job lists the settings that it
reads; any other setting that a user gives is an error, not silently ignored. Setting names of
version 0.1 are still accepted, with a notice.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.system.console import Console
from unmask.system.errors import SettingsError, unknown_name
from unmask.system.settings import apply_overrides, read_toml, refuse_unknown, validate
from unmask.train.optim.schedules import LENGTHS
from unmask.train.recipe import Recipe, old_choice_names

# Settings that may change on resuming, because they do not decide what is learned.
FREE = {"save_minutes", "save_steps", "keep_checkpoints", "log_steps", "max_skipped_steps"}
FREE |= {"prefetch", "micro_batches"}
CHOICES = ("objective", "task", "tasks")  # validated by classes that import torch
CHOSEN = ("objective.name", "task.name")
MUON = ("optimizer.momentum", "optimizer.muon_factor")  # read only if optimizer.kind is muon
LENGTH_NAMES = {f"schedule.{name}" for name in LENGTHS}
# Names in version 0.1 -> present names; the longest name that matches wins.
MOVED = {
    "examples": "data",
    "vocabulary": "tokenizer",
    "decoder": "model.decoder",
    "phases": "schedule.phases",
    "temperature": "data.temperature",
    "train": "loop",
    "train.evaluations": "evaluate.times",
    "train.eval_tokens": "evaluate.tokens",
    "optimizer.rate": "optimizer.learning_rate",
    "optimizer.decay": "optimizer.weight_decay",
    "optimizer.clip": "optimizer.max_grad_norm",
    "optimizer.factor": "optimizer.muon_factor",
    "loop.micro_tokens": "loop.micro_batch_tokens",
    "loop.ahead": "loop.prefetch",
    "loop.average": "loop.weight_average",
    "loop.keep": "loop.keep_checkpoints",
    "loop.bad_steps": "loop.max_skipped_steps",
    "tune.batch": "loop.batch_size",
    "tune.epochs": "schedule.epochs",
    "tune.length": "tokenizer.max_length",
    "tune.frozen": "model.frozen",
    "tune.layers": "model.head_layers",
    "tune.layer_decay": "optimizer.layer_decay",
    "tune.head_factor": "optimizer.head_factor",
    "tune.patience": "evaluate.patience",
}
RENAMED_INSIDE = ("train", "tune", "optimizer", "loop")


@dataclass(frozen=True)
class Scope:
    """The settings that a job reads from a recipe, and its defaults."""

    job: str
    reads: Sequence[str]  # names of settings, or of whole tables
    defaults: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""  # subfolder of `recipes/` with the recipes of this job
    called: str = "recipe"  # what error messages call such a recipe

    def table(self, recipe: Recipe) -> dict[str, Any]:
        """Return the settings that the job reads, as they are stored beside a result."""
        dumped = recipe.model_dump(exclude_none=True)
        return _nest(_without(_flatten(dumped), self.unread(dumped)))

    def unread(self, table: Mapping[str, Any]) -> list[str]:
        """Return the names in a table that the job does not read."""
        flat = _flatten(table)
        muon_only = () if flat.get("optimizer.kind") == "muon" else MUON
        unread = [name for name in flat if name in muon_only or not self._reads(name)]
        return list(dict.fromkeys(map(_table_of_choice, unread)))

    def _reads(self, name: str) -> bool:
        """Whether the setting is read, lies in a table that is, or holds a setting that is."""
        return any(_within(name, read) or _within(read, name) for read in self.reads)


def compose(
    scope: Scope,
    source: str | Path | Mapping[str, Any],
    changes: Iterable[str] = (),
    *,
    console: Console | None = None,
    stored: bool = False,
    check: Callable[[Recipe], None] | None = None,
) -> Recipe:
    """Compose the recipe of a job from a name, a path or a table, with some settings replaced.

    `stored` is for recipes that a run has written: settings that the job does not read, as older
    versions stored them, are dropped with a notice instead of refused. `check` gets the recipe
    without its objective and tasks, and can refuse it before their classes import torch.
    """
    where, table, changes = "recipe", source, [*changes]
    if not isinstance(table, Mapping):
        where = str(source)
        table = read_toml(recipe_path(scope.folder, where, called=scope.called))
    written = table
    user_table, notices = modernised(written, changes)
    unread = scope.unread(user_table)
    if stored:
        names = ", ".join(unread)
        notices = [f"ignoring settings that {scope.job} does not read: {names}"] if unread else []
    for notice in notices:
        (console or Console()).say(f"notice: {notice}")
    if not stored:
        refuse_unknown(Recipe, user_table, "recipe")
        if unread:
            raise SettingsError(
                f"{where}: {unread[0]} is set, but {scope.job} does not read it. Remove it."
            )
    table = _with_defaults(scope, _without(_flatten(user_table), unread))
    # Twice, because validating the whole recipe imports torch: plain mistakes are reported first.
    plain = {key: table[key] for key in table if key not in CHOICES}
    recipe = validate(Recipe, plain, where="recipe")
    if check:
        check(recipe)
    if renamed := old_choice_names(table):
        user_table, later = modernised(written, changes, {**MOVED, **renamed})
        for notice in [] if stored else [line for line in later if line not in notices]:
            (console or Console()).say(f"notice: {notice}")
        table = _with_defaults(scope, _without(_flatten(user_table), unread))
    recipe = validate(Recipe, table, where="recipe")
    if "task" in scope.reads and recipe.task is None:
        raise SettingsError("recipe [task]: 'name' is missing; need the name of a task.")
    return recipe


def modernised(
    table: Mapping[str, Any], changes: Iterable[str], moved: Mapping[str, str] = MOVED
) -> tuple[dict[str, Any], list[str]]:
    """Apply changes to a table under the present names; also return notices about old names.

    `moved` maps former names to present ones.
    """
    mentioned, assignments = [], []
    for name in _flatten(table):
        path = name.split(".")
        # Settings of these tables have names of their own now; other tables moved as a whole.
        inside = name if path[0] in CHOICES else ".".join(path[:2])
        mentioned.append(inside if path[0] in (*RENAMED_INSIDE, *CHOICES) else path[0])
    for change in changes:
        name, equals, value = change.partition("=")
        mentioned.append(name.strip())
        assignments.append(f"{_present_name(name.strip(), moved)}{equals}{value}")
    flat = {_present_name(name, moved): value for name, value in _flatten(table).items()}
    assigned = [assignment.partition("=")[0] for assignment in assignments]
    # Another objective or task must not inherit the settings of the one that it replaces.
    replaced = [name.partition(".")[0] for name in assigned if name in CHOSEN]
    updated = apply_overrides(_nest(_lower_layer(_without(flat, replaced), assigned)), assignments)
    # Lists of tables are single settings above; the keys inside them keep their names here.
    mentioned += [name for name in moved if name.startswith("tasks.")]
    present = {name: _present_name(name, moved) for name in mentioned}
    notices = [
        f"the setting {old} is now called {new}" for old, new in present.items() if new != old
    ]
    return updated, notices


def _lower_layer(table: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    """Flatten a lower layer of settings; drop its run length if the layer above sets any.

    A run has steps, minutes or epochs, so `--minutes` must also replace the `steps` of a file.
    """
    flat = _flatten(table)
    return _without(flat, LENGTH_NAMES) if LENGTH_NAMES & {*names} else flat


def _present_name(name: str, moved: Mapping[str, str]) -> str:
    for old in sorted(moved, key=len, reverse=True):
        if _within(name, old):  # a table may have moved first, and its setting later
            return _present_name(moved[old] + name.removeprefix(old), moved)
    return name


def _with_defaults(scope: Scope, flat: Mapping[str, object]) -> dict[str, Any]:
    """Complete settings with the defaults of a job; return them as nested tables."""
    defaults = _lower_layer(scope.defaults, flat)
    # A table given in place of a default number must hide that number, so that `validate` refuses
    # the table; merged, the two could not be nested.
    hidden = [name for name in defaults if any(_within(setting, name) for setting in flat)]
    defaults = {name: value for name, value in defaults.items() if name not in hidden}
    return _nest(defaults | dict(flat))


def _table_of_choice(name: str) -> str:
    """Reduce a setting of an objective or a task to the name of its table."""
    top = name.partition(".")[0]
    return top if top in CHOICES else name


def recipe_path(folder: str, name: str, *, called: str = "recipe") -> Path:
    """Return the path of a recipe, given a path or the name of a built-in one."""
    known = known_recipes(folder)
    if not name.endswith(".toml") and name not in known:
        raise SettingsError(unknown_name(called, name, known))
    return known.get(name, Path(name))


def known_recipes(folder: str = "") -> dict[str, Path]:
    """Return the built-in recipes of a subfolder by name."""
    return {path.stem: path for path in sorted((recipes_folder() / folder).glob("*.toml"))}


def recipes_folder() -> Path:
    """Return the folder of built-in recipes: inside an installed package, or in the checkout."""
    package = Path(__file__).parents[1]
    inside, checkout = package / "recipes", package.parents[1] / "recipes"
    return inside if inside.is_dir() else checkout


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first difference that forbids resuming, as `name (was x, is y)`, or None."""
    old, new = _flatten(before, lists=True), _flatten(now, lists=True)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name) and name.rpartition(".")[2] not in FREE:
            return f"{name} (was {old.get(name)!r}, is now {new.get(name)!r})"
    return None


def _flatten(table: Mapping[str, object], *, lists: bool = False) -> dict[str, object]:
    """{"a": {"b": 1}} -> {"a.b": 1}; None is skipped, because TOML cannot hold it.

    A list is one setting; with `lists`, each entry is one of its own.
    """
    flat: dict[str, object] = {}
    for key, value in table.items():
        if lists and isinstance(value, list):
            value = {str(number): part for number, part in enumerate(value)}
        if isinstance(value, Mapping):
            parts = _flatten(value, lists=lists)
            flat |= {f"{key}.{name}": part for name, part in parts.items()}
        elif value is not None:
            flat[str(key)] = value
    return flat


def _nest(flat: Mapping[str, object]) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}"""
    table: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        inner = table
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return table


def _without(flat: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    return {
        name: flat[name] for name in flat if not any(_within(name, excluded) for excluded in names)
    }


def _within(name: str, table: str) -> bool:
    """Whether a setting lies in a table, or is the very same name."""
    # The dots keep `task` from matching `tasks`.
    return f"{name}.".startswith(f"{table}.")
