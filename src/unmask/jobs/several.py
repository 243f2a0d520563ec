"""Several tasks on one encoder, each with a head of its own -> a model for each.

A step is of one task, drawn by the size of its data: with data.temperature 1 in proportion to it,
with 0 all alike.
"""

from pathlib import Path
from typing import ClassVar

from torch import nn

from unmask.checkpoint.folder import Folder
from unmask.data.columns import Columns
from unmask.errors import SettingsError
from unmask.jobs.finetune import labelled_ingredients, opened, scored
from unmask.jobs.labelled import LabelledFiles
from unmask.jobs.scopes import SEVERAL
from unmask.tasks.several import heads_of
from unmask.train.compose import Scope
from unmask.train.evaluator import METRIC
from unmask.train.ingredients import Ingredients
from unmask.train.recipe import Recipe
from unmask.train.site import Site

# Names of entries in the metrics.
TAKEN = {"kind", "step", "loss", "norm", "rate", "tokens", "seconds", "tokens_a_second", METRIC}


class Several:
    """Train the heads of several tasks, and the encoder below them."""

    scope: ClassVar[Scope] = SEVERAL

    def __init__(self, model: str | Path | Folder) -> None:
        self.model = model

    def resolve(self, recipe: Recipe, site: Site) -> Recipe:
        """Nothing is left open."""
        return scored(check_names(recipe))

    def build(self, recipe: Recipe, site: Site) -> Ingredients:
        """Read the data of all tasks, and put their heads on the model."""
        parts = {
            entry.name: LabelledFiles(
                entry.train, entry.dev, Columns(entry.text, entry.second, entry.label)
            ).read(entry.task)
            for entry in recipe.tasks
        }
        heads = heads_of({name: part.task for name, part in parts.items()})
        return labelled_ingredients(parts, opened(self.model), heads, recipe, site)


def check_names(recipe: Recipe) -> Recipe:
    """Refuse names of tasks that mean something else in a run."""
    if not recipe.tasks:
        raise SettingsError("recipe: tasks is empty; need a [[tasks]] table for each task.")
    for entry in recipe.tasks:
        if entry.name in TAKEN or hasattr(nn.ModuleDict(), entry.name):  # where its head will be
            raise SettingsError(
                f"recipe [[tasks]]: '{entry.name}' has another meaning in a run; give the task "
                "another name."
            )
    return recipe
