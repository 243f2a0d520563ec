"""Names -> classes: those that come with unmask, and those that a user's plugin registers.

A plugin is a Python file that the user names, with `--plugin FILE.py` or by importing it before it
calls `unmask.register`. Recipes, model folders and requests cannot name one, because loading a
plugin runs its code. What a plugin registers is added to the built-in names and never replaces one.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from unmask.system.errors import SettingsError, UserError, one_line, unknown_name

Kind = Literal["objective", "task", "metric", "callback"]
# Modules as strings, imported on use: they belong to packages above this one.
CLASSES = {"objective": "unmask.objectives.base:Objective", "task": "unmask.tasks.base:Task"}
BUILT_IN = {"objective": "unmask.objectives:OBJECTIVES", "task": "unmask.tasks:TASKS"}
KINDS: tuple[Kind, ...] = get_args(Kind)
_registered: dict[Kind, dict[str, object]] = {kind: {} for kind in KINDS}
_loaded: dict[str, str] = {}  # names of plugin files -> sha256


def register(kind: Kind, name: str, thing: object) -> None:
    """Register an objective, a task, a metric or a callback under a name.

    An objective is a subclass of `unmask.objectives.base.Objective`, a task one of
    `unmask.tasks.base.Task`. A metric is a function of records and answers that returns a number. A
    callback is a function that receives each entry of a run's metrics, read-only.
    """
    if kind not in _registered:
        raise SettingsError(f"register: {unknown_name('kind', kind, _registered)}")
    if not name.isidentifier():
        raise SettingsError(
            f"register: the name {name!r:.60} is not an identifier; need letters, digits and _."
        )
    if name in _registered[kind] or name in _built_in(kind):
        raise SettingsError(
            f"register: the {kind} '{name}' already exists and cannot be replaced. Use another "
            "name."
        )
    _refuse_wrong_kind(kind, name, thing)
    _registered[kind][name] = thing


def _refuse_wrong_kind(kind: Kind, name: str, thing: object) -> None:
    """Raise an error if `thing` is not of the kind that it is registered as."""
    if kind in CLASSES:
        base_class: type = _import(CLASSES[kind])
        if not (isinstance(thing, type) and issubclass(thing, base_class)):
            base_name = CLASSES[kind].replace(":", ".")
            raise SettingsError(f"register: {kind} '{name}' is not a subclass of {base_name}.")
    elif not callable(thing):
        raise SettingsError(f"register: {kind} '{name}' is {thing!r:.60}; need a function.")


def load_plugin(path: str | Path) -> None:
    """Run a user's Python file, which registers what it defines."""
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise SettingsError(f"--plugin {path}: need a Python file (.py) that exists.")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    # The same file may be named twice; running it again would register its names again.
    if _loaded.get(file.name) == digest:
        return
    if file.name in _loaded:
        raise SettingsError(
            f"--plugin {path}: another plugin is also called {file.name}. Rename one."
        )
    name = f"unmask_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module here
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise SettingsError(
            f"--plugin {path}: running it failed: {one_line(error)}. --trace shows where."
        ) from error
    _loaded[file.name] = digest


def loaded_plugins() -> dict[str, str]:
    """Return the names of the loaded plugin files, with the sha256 of each."""
    return dict(_loaded)


def registered(kind: Kind) -> dict[str, Any]:
    """Return what plugins have registered of one kind, by name."""
    return dict(_registered[kind])


def known_names(kind: Kind, table: Mapping[str, str]) -> list[str]:
    """List all names of a kind: the built-in ones in `table`, then those of plugins."""
    return [*table, *_registered[kind]]


def find_class(kind: Kind, table: Mapping[str, str], name: str) -> Any:
    """Resolve a name to a class, registered by a plugin or named as `module:name` in `table`."""
    if name in _registered[kind]:
        return _registered[kind][name]
    if name not in table:
        hint = "" if _loaded else " To use your own, load it with --plugin FILE.py."
        raise SettingsError(f"{unknown_name(kind, name, known_names(kind, table))}{hint}")
    return _import(table[name])


def _built_in(kind: Kind) -> Mapping[str, str]:
    """Return the built-in names of a kind."""
    table: Mapping[str, str] = _import(BUILT_IN[kind]) if kind in BUILT_IN else {}
    return table


def _import(path: str) -> Any:
    """Import `module:name`, late: the module belongs to a package above this one."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
