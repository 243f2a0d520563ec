"""The multi-task job: a model and several labelled data sets -> one model for each task.

The tasks share an encoder and have a head each. Every step trains one task, sampled by the size of
its data: in proportion to it with data.temperature 1, uniformly with 0.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from unmask.checkpoint.folder import Folder
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.split import DEV_SHARE
from unmask.evaluation.tasks import Labelled
from unmask.jobs.finetune import load_start, require_evaluations, task_ingredients
from unmask.jobs.inputs.labelled import LabelledFiles, with_split_settings
from unmask.jobs.inputs.learner import learner_of
from unmask.jobs.settings_read import MULTI_TASK
from unmask.jobs.summary import command_for_files
from unmask.model.shape import RESERVED_NAMES, Shape
from unmask.system.errors import SettingsError
from unmask.tasks.labels import LabelTask, SupervisedObjective, heads_of, label_tasks
from unmask.text.tokens import Tokenizers
from unmask.train.compose import Scope
from unmask.train.evaluator import METRIC, OLD_KEYS, metric_name
from unmask.train.ingredients import Ingredients
from unmask.train.recipe import Recipe
from unmask.train.run_folder import MODELS
from unmask.train.site import Site

# A task's name is also a key in the metrics and the name of a module: these are taken by entries
# of the metrics, and `training` by torch.nn.Module.
TAKEN = {"kind", "step", "loss", "tokens", "seconds", METRIC, "training"}
# Former keys are refused too, because readers of the metrics take them for the present ones.
TAKEN |= {key for keys in OLD_KEYS.values() for names in keys.items() for key in names}


class MultiTask:
    """Train the heads of several tasks together with the encoder below them."""

    scope: ClassVar[Scope] = MULTI_TASK

    def __init__(self, model: str | Path | Folder) -> None:
        self.model = model
        self.data_sets: dict[str, tuple[LabelledFiles, Labelled]] = {}  # by the names of the tasks

    def resolve(self, recipe: Recipe, site: Site) -> Recipe:
        """Check the names of the tasks; such a recipe leaves nothing open."""
        splits = any(entry.dev is None for entry in recipe.tasks)
        return require_evaluations(with_split_settings(check_names(recipe), splits=splits))

    def main_metrics(self) -> list[str]:
        """Return the scores whose mean decides which step is published, once the data are read."""
        return [metric_name(name, data.task.metric) for name, (_, data) in self.data_sets.items()]

    def next_command(self, run: Path) -> list[str]:
        """Return a command that asks the model of the first task about its held-out file."""
        name, (files, data) = next(iter(self.data_sets.items()))
        model = run / MODELS / name
        return command_for_files(type(data.task), files.examples, files.columns, model)

    def build(self, recipe: Recipe, site: Site) -> Ingredients:
        """Read the data of all tasks and put their heads on the model."""
        data_sets = {}
        share, seed = recipe.data.dev_share or DEV_SHARE, recipe.data.dev_seed or 0
        for entry in recipe.tasks:
            columns = Columns(entry.text, entry.second, entry.label)
            files = LabelledFiles(entry.train, entry.dev, columns)
            data = files.read(entry.task, share=share, seed=seed)
            data_sets[entry.name], self.data_sets[entry.name] = data, (files, data)
        tasks = label_tasks({name: data.task for name, data in data_sets.items()})
        _refuse_own_objectives(tasks)
        start = load_start(self.model)
        shape = Shape.of(start.network.config, heads_of(tasks))
        objective = SupervisedObjective(tasks, {name: name for name in tasks})
        learner = learner_of(objective, shape, recipe.seed, start=start.network)
        tokens = Tokenizers(start.needed_tokenizer(), 0)
        return task_ingredients(data_sets, objective, learner, tokens, start, recipe, site)


def _refuse_own_objectives(tasks: Mapping[str, LabelTask[Any, Any]]) -> None:
    """Refuse tasks with an objective of their own: several tasks are trained on losses alone."""
    for name, task in tasks.items():
        if type(task.objective) is not SupervisedObjective:
            raise SettingsError(
                f"recipe [[tasks]]: '{name}' ({task.name}) has an objective of its own, but "
                "multi-task training supports only tasks with a `loss`. Define `loss` instead of "
                f"`objective`, or train it alone with `unmask finetune {task.name}`."
            )


def check_names(recipe: Recipe) -> Recipe:
    """Refuse task names that already mean something else in a run."""
    if not recipe.tasks:
        raise SettingsError("recipe: tasks is empty; need a [[tasks]] table for each task.")
    for entry in recipe.tasks:
        if entry.name in (*TAKEN, *RESERVED_NAMES):
            raise SettingsError(
                f"recipe [[tasks]]: '{entry.name}' is a reserved name in a run. Give the task "
                "another name."
            )
    return recipe
