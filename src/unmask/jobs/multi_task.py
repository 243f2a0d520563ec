"""The multi-task job: a model and several labelled data sets -> one model for each task.

The tasks share an encoder and have a head each. Every step trains one task, sampled by the size of
its data: in proportion to it with data.temperature 1, uniformly with 0.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from unmask.checkpoint.folder import Folder
from unmask.data.labelled.columns import Columns
from unmask.jobs.finetune import load_start, require_evaluations, task_ingredients
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.inputs.learner import learner_of
from unmask.jobs.settings_read import MULTI_TASK
from unmask.model.shape import RESERVED_NAMES, Shape
from unmask.system.errors import SettingsError
from unmask.tasks.labels import LabelTask, SupervisedObjective, heads_of, label_tasks
from unmask.text.tokens import Tokenizers
from unmask.train.compose import Scope
from unmask.train.evaluator import METRIC, OLD_KEYS
from unmask.train.ingredients import Ingredients
from unmask.train.recipe import Recipe
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

    def resolve(self, recipe: Recipe, site: Site) -> Recipe:
        """Check the names of the tasks; such a recipe leaves nothing open."""
        return require_evaluations(check_names(recipe))

    def build(self, recipe: Recipe, site: Site) -> Ingredients:
        """Read the data of all tasks and put their heads on the model."""
        data_sets = {}
        for entry in recipe.tasks:
            columns = Columns(entry.text, entry.second, entry.label)
            data_sets[entry.name] = LabelledFiles(entry.train, entry.dev, columns).read(entry.task)
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
