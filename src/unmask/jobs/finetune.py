"""Fine-tuning: labelled data and a model -> a model for one task."""

from pathlib import Path
from typing import ClassVar

from unmask.checkpoint.fetch import locate
from unmask.checkpoint.folder import Folder, load_folder
from unmask.errors import SettingsError
from unmask.jobs.exam import Answered
from unmask.jobs.labelled import Labelled, LabelledFiles, window_length, window_source
from unmask.jobs.scopes import FINETUNE
from unmask.model.factory import freeze, make_network, with_layers
from unmask.tasks.base import Supervised
from unmask.train.compose import Scope
from unmask.train.digest import digest_of
from unmask.train.ingredients import Digest, Ingredients, Tokens
from unmask.train.recipe import Recipe
from unmask.train.scores import Scores
from unmask.train.site import Site


class Finetune:
    """Train the head of a task, and the encoder below it."""

    scope: ClassVar[Scope] = FINETUNE

    def __init__(self, model: str | Path | Folder, data: LabelledFiles | Labelled) -> None:
        self.model, self.data = model, data

    def read(self, recipe: Recipe) -> Labelled:
        """Read the data once, for all runs of this job."""
        if isinstance(self.data, LabelledFiles):
            assert recipe.task is not None
            self.data = self.data.read(recipe.task)
        return self.data

    def opened(self) -> Folder:
        """Load the model once."""
        self.model = opened(self.model)
        return self.model

    def resolve(self, recipe: Recipe, site: Site) -> Recipe:
        """Nothing is left open."""
        return scored(recipe)

    def build(self, recipe: Recipe, site: Site) -> Ingredients:
        """Read the data, and put a head on the model."""
        part, start = self.read(recipe), self.opened()
        layers = recipe.model.head_layers
        heads = with_layers(part.task.heads, layers, start.network.config.layers)
        network = make_network(start.network.config, heads, recipe.seed, start=start.network)
        freeze(network, recipe.model.frozen, pooler=start.network.pooler is not None)
        tokens = Tokens(start.needed_tokenizer(), window_length(recipe, network))
        provenance = {"task": part.task.name, "model": start.path.name}
        exam = Answered({"": part}, tokens, site.processes)
        return Ingredients(
            tokens=tokens,
            network=network,
            objective=Supervised(part.task),
            source=window_source(part, tokens, recipe, site),
            evaluator=Scores(exam, recipe, site, tokens, provenance),
            digest=Digest("data set", digest_of([*part.train, *part.dev]), provenance),
        )


def opened(model: str | Path | Folder) -> Folder:
    """A model by its name or path, or as it was given."""
    return model if isinstance(model, Folder) else load_folder(locate(model))


def scored(recipe: Recipe) -> Recipe:
    """Refuse a run that is never evaluated: its best step could not be known."""
    if not recipe.evaluate.times:
        raise SettingsError("evaluate.times is 0; need at least 1, to know the best step.")
    return recipe
