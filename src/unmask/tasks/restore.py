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
    own = dict(table or {})
    # "length" is the window length of training. The loaded model applies it; it is no task setting.
    named, _ = own.pop("name", None), own.pop("length", None)
    if named is not None and named not in known_names("task", TASKS):
        raise SettingsError(
            f"{where}: the model was trained for the task {str(named)!r:.60}, which is not known "
            "here. If it is one of your own, give its file: --plugin FILE.py."
        )
    # The named task comes first. If it does not fit the heads, another built-in task may, with its
    # default settings: the saved ones belong to the named task.
    for name in dict.fromkeys([*([named] if named else []), *TASKS]):
        kind: type[Task[Any, Any]] = find_class("task", TASKS, name)
        config = validate(kind.Config, own if name == named else {}, where=f"{where} [task]")
        if found := kind.restore(shape, config):
            return found
    if several := shape.several():
        names = ", ".join(several)
        raise SettingsError(
            f"{where}: the model has heads for several tasks ({names}). Give the model of one of "
            "them, in the folder `models` of the same run."
        )
    raise SettingsError(
        f"{where}: the model has no head of a task; it was not fine-tuned. Train one with "
        "`unmask finetune`."
    )
