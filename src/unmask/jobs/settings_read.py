"""The settings that each job reads from a recipe, and checks that need neither data nor torch.

Each job has its scope as an attribute, too. The command line takes it from here, so that mistakes
are reported before torch is imported.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.system.errors import SettingsError
from unmask.system.plugins import find_class, known_names
from unmask.system.settings import Settings, read_toml
from unmask.tasks import TASKS
from unmask.train.compose import Scope, known_recipes
from unmask.train.optim.schedules import OptimizerSettings, ScheduleSettings
from unmask.train.recipe import AUTO, DataSettings, LoopSettings, ModelSettings, Recipe

if TYPE_CHECKING:
    from unmask.tasks.base import Task


def _fields(table: str, settings_class: type[Settings], *unread: str) -> list[str]:
    """List the settings of a table, without the ones that the job does not read."""
    return [f"{table}.{name}" for name in settings_class.model_fields if name not in unread]


SHAPE = _fields("model", ModelSettings, "decoder", "frozen", "head_layers")
SPLIT = ("dev_share", "dev_seed")  # of `data`: how dev data are split off
TUNED = ["seed", "model.frozen", "tokenizer.max_length", "optimizer", "loop"]
TUNED += [f"data.{name}" for name in SPLIT]
TUNED += [*_fields("schedule", ScheduleSettings, "phases"), "evaluate.times", "evaluate.patience"]
DEFAULTS: dict[str, Any] = {
    "optimizer": {"learning_rate": 5e-5},
    "schedule": {"warmup": 0.1, "epochs": 3.0},
}
# Stands for the real size, which is not known before the corpus is opened.
ASSUMED_VOCABULARY_SIZE = 2**15

PRETRAIN = Scope(
    "pretrain",
    reads=[
        "seed",
        *SHAPE,
        *_fields("data", DataSettings, "temperature", *SPLIT),
        "objective",
        *_fields("optimizer", OptimizerSettings, "layer_decay", "head_factor"),
        *_fields("schedule", ScheduleSettings, "epochs"),
        *_fields("loop", LoopSettings, "batch_size"),
        "evaluate.times",
        "evaluate.tokens",
    ],
    defaults={"model": {"size": "base"}, "objective": {"name": "mlm"}},
)
FINETUNE = Scope(
    "finetune",
    reads=[*TUNED, "task", "model.head_layers"],
    defaults=DEFAULTS,
    folder="finetune",
    called="task",
)
MULTI_TASK = Scope("finetune multi", [*TUNED, "tasks", "data.temperature"], DEFAULTS)
TRANSLATE = Scope(
    "translate",
    reads=[*TUNED, *SHAPE, "model.decoder", "tokenizer", "task", "evaluate.tokens"],
    defaults={**DEFAULTS, "task": {"name": "translate"}},
    folder="translate",
)


def task_recipe(name_or_path: str) -> tuple[Scope, str | dict[str, Any]]:
    """Return the scope and the recipe of a fine-tuning, given a task name or a recipe path.

    A task without a built-in recipe, such as a plugin's, gets one with nothing but its name. This
    imports the task, and so torch.
    """
    name = name_or_path
    if name_or_path.endswith(".toml"):
        name = str(read_toml(Path(name_or_path)).get("task", {}).get("name"))
    if name not in known_names("task", TASKS):
        return FINETUNE, name_or_path  # `compose` reports what is wrong with the name
    task_class: type[Task[Any, Any]] = find_class("task", TASKS, name)
    reads = TRANSLATE.reads if task_class.decodes else FINETUNE.reads
    scope = replace(FINETUNE, reads=[*reads, *task_class.reads])
    if name_or_path == name and name not in known_recipes(FINETUNE.folder):
        return scope, {"task": {"name": name}}
    return scope, name_or_path


def check_network(recipe: Recipe) -> None:
    """Refuse an invalid network, or one that is too short for the longest sequences."""
    if recipe.model.size == AUTO:
        return  # not known yet; checked again when the size has been chosen
    longest = max(phase.length for phase in recipe.schedule.phases)
    limit = recipe.model.config(ASSUMED_VOCABULARY_SIZE).max_length
    if longest > limit:
        raise SettingsError(
            f"recipe [[schedule.phases]]: sequences of {longest} tokens, but the network reads at "
            f"most {limit}. Lower length, or raise model.max_length."
        )
