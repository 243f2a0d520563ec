"""Fine-tuning: labelled data and a model -> a model for one task."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from unmask.checkpoint.fetch import locate
from unmask.checkpoint.folder import Folder, load_folder
from unmask.errors import SettingsError
from unmask.jobs.exam import Answered
from unmask.jobs.labelled import Labelled, LabelledFiles, window_source
from unmask.jobs.scopes import FINETUNE
from unmask.model.config import HeadsConfig
from unmask.model.factory import freeze, make_network, with_layers
from unmask.model.network import Network
from unmask.tasks.base import Supervised
from unmask.tasks.several import SeveralTasks
from unmask.train.compose import Scope
from unmask.train.digest import digest_of
from unmask.train.folder import MODEL, MODELS
from unmask.train.ingredients import Digest, Ingredients, Tokens
from unmask.train.recipe import Recipe
from unmask.train.scores import Scores
from unmask.train.site import Site
from unmask.train.sources import Mixture


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
        layers = start.network.config.layers
        heads = with_layers(part.task.heads, recipe.model.head_layers, layers)
        return labelled_ingredients({"": part}, start, heads, recipe, site)


def labelled_ingredients(
    parts: Mapping[str, Labelled], start: Folder, heads: HeadsConfig, recipe: Recipe, site: Site
) -> Ingredients:
    """Make what a run on labelled data needs; a single task has the empty name."""
    network = make_network(start.network.config, heads, recipe.seed, start=start.network)
    freeze(network, recipe.model.frozen, pooler=start.network.pooler is not None)
    tokens = Tokens(start.needed_tokenizer(), max_length(recipe, network))
    tasks = {name: part.task for name, part in parts.items()}
    sources = {
        name: window_source(part, tokens, recipe, site, term=name or None)
        for name, part in parts.items()
    }
    one = tasks.get("")
    provenance = {"task": one.name if one else "several", "model": start.path.name}
    records = [record for part in parts.values() for record in (*part.train, *part.dev)]
    exam = Answered(parts, tokens, site.processes)
    return Ingredients(
        tokens=tokens,
        network=network,
        objective=Supervised(one) if one else SeveralTasks(tasks, network),
        source=sources[""] if one else Mixture(sources, recipe.data.temperature, recipe.seed),
        evaluator=Scores(exam, recipe, site, tokens, provenance),
        digest=Digest("data set", digest_of(records), provenance),
        publish={MODEL: "", **{f"{MODELS}/{name}": name for name in parts if name}},
    )


def opened(model: str | Path | Folder) -> Folder:
    """A model by its name or path, or as it was given."""
    return model if isinstance(model, Folder) else load_folder(locate(model))


def max_length(recipe: Recipe, network: Network) -> int:
    """The most tokens of a text: what the encoder can hold, and the decoder if there is one."""
    most, decoder = network.config.max_length, network.heads.decoder
    if decoder is not None:
        most = min(most, decoder.max_length)
    asked = recipe.tokenizer.max_length
    if asked is not None and asked > most:
        raise SettingsError(
            f"tokenizer.max_length is {asked}, and the model holds {most} tokens. Lower it, or use "
            "a model with a larger max_length."
        )
    return asked or most


def scored(recipe: Recipe) -> Recipe:
    """Refuse a run that is never evaluated: its best step could not be known."""
    if not recipe.evaluate.times:
        raise SettingsError("evaluate.times is 0; need at least 1, to know the best step.")
    return recipe
