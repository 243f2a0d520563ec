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
from unmask.jobs.exam import Answered
from unmask.jobs.finetune import opened, scored
from unmask.jobs.labelled import LabelledFiles, window_length, window_source
from unmask.jobs.scopes import SEVERAL
from unmask.model.factory import freeze, make_network
from unmask.tasks.several import SeveralTasks, heads_of
from unmask.train.compose import Scope
from unmask.train.digest import digest_of
from unmask.train.evaluator import METRIC
from unmask.train.folder import MODEL, MODELS
from unmask.train.ingredients import Digest, Ingredients, Tokens
from unmask.train.recipe import Recipe
from unmask.train.scores import Scores
from unmask.train.site import Site
from unmask.train.sources import Mixture

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
        tasks = {name: part.task for name, part in parts.items()}
        start = opened(self.model)
        network = make_network(
            start.network.config, heads_of(tasks), recipe.seed, start=start.network
        )
        freeze(network, recipe.model.frozen, pooler=start.network.pooler is not None)
        tokens = Tokens(start.needed_tokenizer(), window_length(recipe, network))
        sources = {
            name: window_source(part, tokens, recipe, site, term=name)
            for name, part in parts.items()
        }
        provenance = {"task": "several", "model": start.path.name}
        records = [record for part in parts.values() for record in (*part.train, *part.dev)]
        exam = Answered(parts, tokens, site.processes)
        return Ingredients(
            tokens=tokens,
            network=network,
            objective=SeveralTasks(tasks, network),
            source=Mixture(sources, recipe.data.temperature, recipe.seed),
            evaluator=Scores(exam, recipe, site, tokens, provenance),
            digest=Digest("data set", digest_of(records), provenance),
            publish={MODEL: "", **{f"{MODELS}/{name}": name for name in parts}},
        )


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
