"""A name or a file, flags and `--set a.b=c` -> one `Recipe`: everything that decides a run.

A recipe is composed once and typed from then on. A job says in its `Scope` what it reads: a setting
that it does not read is refused in what a user gives. Settings of the first version have other
names now; they are accepted, with a notice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.console import Console
from unmask.errors import SettingsError, unknown
from unmask.settings import build, override, read_toml, refuse_unknown
from unmask.train.recipe import Recipe
from unmask.train.schedule import LENGTHS

# What may be changed when a run is resumed: it decides nothing that is learned.
FREE = ("save_minutes", "save_steps", "keep", "log_steps", "bad_steps", "ahead", "micro_batches")
# Settings of the first version -> what they are called now; the longest name that fits counts.
MOVED = {
    "examples": "data",
    "vocabulary": "tokenizer",
    "decoder": "model.decoder",
    "phases": "schedule.phases",
    "temperature": "data.temperature",
    "train": "loop",
    "train.evaluations": "evaluate.times",
    "train.eval_tokens": "evaluate.tokens",
    "tune.batch": "loop.batch_size",
    "tune.epochs": "schedule.epochs",
    "tune.length": "tokenizer.max_length",
    "tune.frozen": "model.frozen",
    "tune.layers": "model.head_layers",
    "tune.layer_decay": "optimizer.layer_decay",
    "tune.head_factor": "optimizer.head_factor",
    "tune.patience": "evaluate.patience",
}


@dataclass(frozen=True)
class Scope:
    """What a job reads of a recipe, and what it takes where nothing is given."""

    job: str
    reads: Sequence[str]  # settings, or whole tables
    defaults: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""  # of its recipes, among those that come with unmask
    called: str = "recipe"  # what users know these recipes as

    def table(self, recipe: Recipe) -> dict[str, Any]:
        """What is written beside a result: all that this job reads."""
        dumped = recipe.model_dump(exclude_none=True)
        unread = self.unread(dumped)
        return {key: value for key, value in _without(dumped, unread).items() if value != {}}

    def unread(self, table: Mapping[str, Any]) -> list[str]:
        """Settings of a table that this job does not read."""
        optimizer = table.get("optimizer")
        muon = isinstance(optimizer, Mapping) and optimizer.get("kind") == "muon"
        only = () if muon else ("optimizer.momentum", "optimizer.factor")
        return [n for n in _flat(table) if n in only or not self._reads(n)]

    def _reads(self, name: str) -> bool:
        """Is it read, or inside of what is read, or a table of which something is read?"""
        inside = (f"{name}.".startswith(f"{read}.") for read in self.reads)
        return any(inside) or any(read.startswith(f"{name}.") for read in self.reads)


def compose(
    scope: Scope,
    source: str | Path | Mapping[str, Any],
    changes: Iterable[str] = (),
    *,
    console: Console | None = None,
    stored: bool = False,
) -> Recipe:
    """Compose the recipe of a job from a name, a path or a table, with some settings replaced.

    `stored` is for recipes that a run has written: settings of older versions that this job does
    not read are dropped from them with a notice, instead of refused.
    """
    table = compose_table(scope, source, changes, console=console, stored=stored)
    without_choices(table)  # what is wrong is reported before torch is imported, where it can be
    recipe = build(Recipe, table, where="recipe")
    if "task" in scope.reads and recipe.task is None:
        raise SettingsError("recipe [task]: 'name' is missing; need the name of a task.")
    return recipe


def compose_table(
    scope: Scope,
    source: str | Path | Mapping[str, Any],
    changes: Iterable[str] = (),
    *,
    console: Console | None = None,
    stored: bool = False,
) -> dict[str, Any]:
    """The same as a table: all names are known and read by the job, values are not checked yet."""
    console = console or Console()
    where = "recipe" if isinstance(source, Mapping) else str(source)
    given, notes = modernised(
        source
        if isinstance(source, Mapping)
        else read_toml(recipe_path(scope.folder, where, called=scope.called))
    )
    assignments = []
    for change in changes:
        name, equals, value = change.partition("=")
        new = _renamed(name.strip())
        notes |= {name.strip(): new} if new != name.strip() else {}
        assignments.append(f"{new}{equals}{value}")
    for before, after in {} if stored else notes.items():
        console.say(f"notice: the setting {before} is now called {after}")
    lengths = {a.partition("=")[0] for a in assignments} & {f"schedule.{n}" for n in LENGTHS}
    if lengths:
        given = _without(given, [f"schedule.{name}" for name in LENGTHS])
    given = override(given, assignments)
    if not stored:
        refuse_unknown(Recipe, given, "recipe")
    unread = scope.unread(given)
    if unread and not stored:
        raise SettingsError(
            f"{where}: {unread[0]} is set, but {scope.job} does not read it. Leave it out."
        )
    if unread:
        console.say(f"notice: settings that {scope.job} does not read: {', '.join(unread)}")
    return merged(scope.defaults, _without(given, unread))


def without_choices(table: Mapping[str, Any]) -> Recipe:
    """A recipe without its objective and tasks, whose settings cannot be checked without torch."""
    plain = {k: v for k, v in table.items() if k not in ("objective", "task", "tasks")}
    return build(Recipe, plain, where="recipe")


def merged(defaults: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """A table over its defaults; a length that is given replaces any other."""
    result = dict(defaults)
    for key, value in table.items():
        known = result.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            if any(value.get(name) is not None for name in LENGTHS):
                known = {k: v for k, v in known.items() if k not in LENGTHS}
            result[key] = merged(known, value)
        elif value is not None:
            result[key] = value
    return result


def modernised(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A table with the names of today, and which of them were others."""
    result: dict[str, Any] = {}
    notes: dict[str, str] = {}

    def put(place: dict[str, Any], path: Sequence[str], value: Any) -> None:
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value

    for key, value in table.items():
        inner = value.items() if key in ("train", "tune") and isinstance(value, Mapping) else None
        for name, own in [(key, value)] if inner is None else [(f"{key}.{k}", v) for k, v in inner]:
            new = _renamed(name)
            notes |= {name: new} if new != name else {}
            if isinstance(own, Mapping):
                for last, part in own.items():
                    put(result, [*new.split("."), last], part)
            else:
                put(result, new.split("."), own)
    return result, notes


def _renamed(name: str) -> str:
    for old in sorted(MOVED, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return MOVED[old] + name.removeprefix(old)
    return name


def recipe_path(folder: str, name: str, *, called: str = "recipe") -> Path:
    """Where a recipe is: a path, or the name of one in a folder of those that come with unmask."""
    known = known_recipes(folder)
    if not name.endswith(".toml") and name not in known:
        raise SettingsError(unknown(called, name, known))
    return known.get(name, Path(name))


def known_recipes(folder: str = "") -> dict[str, Path]:
    """The recipes that come with unmask."""
    return {path.stem: path for path in sorted((recipes_folder() / folder).glob("*.toml"))}


def recipes_folder() -> Path:
    """Where they are: in an installed package, or in a checkout beside it."""
    package = Path(__file__).parents[1]
    inside, checkout = package / "recipes", package.parents[1] / "recipes"
    return inside if inside.is_dir() else checkout


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting that differs and may not, as `name (then, now)`; None if none does."""
    old, new = _values(before), _values(now)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name) and name.rpartition(".")[2] not in FREE:
            return f"{name} ({old.get(name)!r} then, {new.get(name)!r} now)"
    return None


def _values(table: Any, name: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; what is None is skipped, as in a TOML file."""
    if not isinstance(table, Mapping | list):
        return {} if table is None else {name: table}
    items = table.items() if isinstance(table, Mapping) else enumerate(table)
    flat: dict[str, Any] = {}
    for key, value in items:
        flat |= _values(value, f"{name}.{key}" if name else str(key))
    return flat


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The names of all settings of a table; a list is one setting."""
    names = []
    for key, value in table.items():
        inner = isinstance(value, Mapping) and key not in ("task", "objective")
        names += _flat(value, f"{prefix}{key}.") if inner else [f"{prefix}{key}"]
    return names


def _without(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A table without some of its settings, given by their whole names."""
    result = {}
    for key, value in table.items():
        if key in names:
            continue
        below = [name.partition(".")[2] for name in names if name.startswith(f"{key}.")]
        result[key] = _without(value, below) if isinstance(value, Mapping) and below else value
    return result
