"""Labelled data -> head -> answer -> score. A task is an objective that can also answer.

A new task is a file here and a line below.
"""

from typing import Any

from unmask.errors import SettingsError
from unmask.model.config import HeadsConfig
from unmask.settings import Settings, build
from unmask.tasks.base import Task
from unmask.tasks.classify import Classify
from unmask.tasks.ner import Ner
from unmask.tasks.qa import Qa
from unmask.tasks.regress import Regress
from unmask.tasks.translate import NAME, TranslateSettings

TASKS: dict[str, type[Task]] = {"classify": Classify, "regress": Regress, "qa": Qa, "ner": Ner}
TASK_SETTINGS: dict[str, type[Settings]] = {
    **{name: kind.settings for name, kind in TASKS.items()},
    NAME: TranslateSettings,
}


def task_of(heads: HeadsConfig, table: dict[str, Any] | None, where: str) -> Task:
    """The task that a model was trained for: told by its heads, set by its own table."""
    own = dict(table or {})
    named, _ = own.pop("name", None), own.pop("length", None)  # the length is for who reads
    for name, kind in TASKS.items():
        settings = own if name == named else {}
        found = kind.restore(heads, build(kind.settings, settings, where=f"{where} [task]"))
        if found is not None:
            return found
    if heads.several:
        names = ", ".join(heads.several)
        raise SettingsError(
            f"{where}: the model has heads for several tasks ({names}). Give the model of one of "
            "them, in the folder `models` of the same run."
        )
    raise SettingsError(
        f"{where}: the model has no label head; it was not fine-tuned. Train one with "
        "`unmask finetune`."
    )
