"""A model's shape and saved task table -> the task that it was trained for."""

from collections.abc import Mapping
from typing import Any

from unmask.model.shape import Shape
from unmask.system.errors import SettingsError
from unmask.system.plugins import find_class, known_names
from unmask.system.settings import validate
from unmask.tasks import TASKS
from unmask.tasks.base import Task


def task_of(shape: Shape, table: Mapping[str, object] | None, where: str) -> Task[Any, Any]:
    """Return the task of a model: by its saved name, or else by its heads.

    `table` is the `[task]` table of the model folder, if it has one.
    """
    settings = dict(table or {})
    # "length" is the window length of training. The loaded model applies it; it is no task setting.
    saved_name, _ = settings.pop("name", None), settings.pop("length", None)
    if saved_name is not None and saved_name not in known_names("task", TASKS):
        raise SettingsError(
            f"{where}: the model was trained for an unknown task, {str(saved_name)!r:.60}. If a "
            "plugin defines the task, load it with --plugin FILE.py."
        )
    # The named task comes first. If it does not fit the heads, another built-in task may, with its
    # default settings: the saved ones belong to the named task.
    for name in dict.fromkeys([*([saved_name] if saved_name else []), *TASKS]):
        task_class: type[Task[Any, Any]] = find_class("task", TASKS, name)
        config = validate(
            task_class.Config, settings if name == saved_name else {}, where=f"{where} [task]"
        )
        if task := task_class.restore(shape, config):
            return task
    if head_names := shape.several():
        names = ", ".join(head_names)
        raise SettingsError(
            f"{where}: the model has heads for several tasks ({names}). Use the model of a single "
            "task, from the folder `models` of the same run."
        )
    raise SettingsError(
        f"{where}: the model has no task head: it is not fine-tuned. Fine-tune it with "
        "`unmask finetune`."
    )
