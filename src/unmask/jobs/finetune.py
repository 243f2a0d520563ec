"""The fine-tuning job: a model and labelled data -> a model for one task.

A task with a decoder, such as translation, may also start from scratch.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.checkpoint.fetch import locate
from unmask.checkpoint.folder import Folder, load_folder
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.digest import digest_of
from unmask.data.labelled.split import DEV_SHARE
from unmask.evaluation.best_step import BestStep
from unmask.evaluation.tasks import HeldOutRecords, Labelled
from unmask.jobs.inputs.labelled import LabelledFiles, window_source, with_split_settings
from unmask.jobs.inputs.learner import Learner, learner_of
from unmask.jobs.inputs.vocabularies import GivenVocabularies, find_tokens
from unmask.jobs.settings_read import FINETUNE
from unmask.jobs.summary import command_for_files
from unmask.model.factory import freeze, with_layers
from unmask.model.network import Network
from unmask.model.shape import POOLER, Mix, Shape
from unmask.objectives.base import Objective
from unmask.system.errors import SettingsError
from unmask.system.plugins import find_class
from unmask.tasks import TASKS
from unmask.text.tokens import Tokenizers
from unmask.train.compose import Scope
from unmask.train.ingredients import Digest, Ingredients
from unmask.train.recipe import ModelSettings, Recipe
from unmask.train.run_folder import MODEL, MODELS
from unmask.train.site import Site
from unmask.train.sources import Mixture


class Finetune:
    """Train a task's head together with the encoder below it."""

    def __init__(
        self,
        model: str | Path | Folder | None,
        data: LabelledFiles | Labelled,
        vocabularies: GivenVocabularies = GivenVocabularies(),
        *,
        scope: Scope = FINETUNE,
    ) -> None:
        self.model, self.data, self.vocabularies, self.scope = model, data, vocabularies, scope
        self.files = data if isinstance(data, LabelledFiles) else None

    def read(self, recipe: Recipe) -> Labelled:
        """Read the data at the first call; a search or several seeds share the records."""
        if isinstance(self.data, LabelledFiles):
            assert recipe.task is not None
            split = self.with_split(recipe).data
            share, seed = split.dev_share or DEV_SHARE, split.dev_seed or 0
            self.data = self.data.read(recipe.task, share=share, seed=seed)
        return self.data

    def with_split(self, recipe: Recipe) -> Recipe:
        """Fill in how dev data are split off, if none are given."""
        if isinstance(self.data, LabelledFiles):
            return with_split_settings(recipe, splits=self.data.dev is None)
        return with_split_settings(recipe, splits=self.data.split is not None)

    def main_metrics(self) -> list[str]:
        """Return the score that decides which step is published, once the data are read."""
        assert isinstance(self.data, Labelled)
        return [self.data.task.metric]

    def next_command(self, run: Path) -> list[str]:
        """Return a command that asks the model of a finished run about its held-out files."""
        assert isinstance(self.data, Labelled)
        paths = self.files.examples if self.files else []
        columns = self.files.columns if self.files else Columns()
        return command_for_files(type(self.data.task), paths, columns, run / MODEL)

    def opened(self) -> Folder | None:
        """Load the model at the first call; None if training starts from scratch."""
        if self.model is not None:
            self.model = load_start(self.model)
        return self.model

    def resolve(self, recipe: Recipe, site: Site) -> Recipe:
        """Drop the encoder's shape from the recipe if a model is given, which has its own."""
        recipe = self.with_split(recipe)
        if self.model is None:
            self._refuse_without_model(recipe)
            return require_evaluations(recipe)
        before = recipe.model
        model = ModelSettings(
            decoder=before.decoder, frozen=before.frozen, head_layers=before.head_layers
        )
        return require_evaluations(recipe.model_copy(update={"model": model}))

    def _refuse_without_model(self, recipe: Recipe) -> None:
        """Refuse to start from scratch with a task that has no decoder."""
        assert recipe.task is not None
        if not find_class("task", TASKS, recipe.task.name).decodes:
            raise SettingsError(
                f"recipe [task]: {recipe.task.name} needs a model to start from. Give one, or "
                "choose another task."
            )

    def build(self, recipe: Recipe, site: Site) -> Ingredients:
        """Read the data, find or learn a vocabulary, and put the task's head on the model."""
        data, start = self.read(recipe), self.opened()
        tokens = find_tokens(
            data.task, data.train, recipe.tokenizer, site, self.vocabularies, start
        )
        if start is not None:
            config = start.network.config
        else:
            config = recipe.model.config(len(tokens.source.vocabulary))
        head_layers = recipe.model.head_layers
        mix: Mix = head_layers if isinstance(head_layers, str) else tuple(head_layers) or "last"
        decoder = recipe.model.decoder.model_dump(exclude_none=True)
        heads = with_layers(data.task.heads(config, tokens, decoder), mix, config.layers)
        objective, start_network = data.task.objective, start.network if start else None
        learner = learner_of(objective, Shape.of(config, heads), recipe.seed, start=start_network)
        return task_ingredients({"": data}, objective, learner, tokens, start, recipe, site)


def task_ingredients(
    data_sets: Mapping[str, Labelled],
    objective: Objective,
    learner: Learner,
    tokens: Tokenizers,
    start: Folder | None,
    recipe: Recipe,
    site: Site,
) -> Ingredients:
    """Make the ingredients of a run with one task (named "") or several."""
    network = learner.network
    # A pooler that is new must be trained, even below a frozen encoder.
    pooler = start is not None and POOLER in start.network.heads
    freeze(network, recipe.model.frozen, pooler=pooler)
    tokens = replace(tokens, max_length=max_length(recipe, network))
    sources = {
        name: window_source(data, tokens, objective, recipe, site, term=name or None)
        for name, data in data_sets.items()
    }
    single_task = data_sets[""].task if "" in data_sets else None
    model_name = start.path.name if start else "from scratch"
    task_name = single_task.name if single_task else "several"
    provenance: dict[str, Any] = {"task": task_name, "model": model_name}
    provenance |= {f"{name} sha256": sha256 for name, sha256 in learner.digests.items()}
    splits = {name: data.split for name, data in data_sets.items() if data.split}
    provenance |= {f"{name} dev split".lstrip(): split for name, split in splits.items()}
    records = [record for data in data_sets.values() for record in (*data.train, *data.dev)]
    published_tasks = {f"{MODELS}/{name}": (name,) for name in data_sets if name}
    # Companions are part of the data: another teacher is another run.
    digest = "".join([digest_of(records), *learner.digests.values()])
    held_out = HeldOutRecords(
        data_sets, tokens, site.processes, recipe.evaluate.tokens, learner.companions
    )
    mixture = None if single_task else Mixture(sources, recipe.data.temperature, recipe.seed)
    return Ingredients(
        tokens=tokens,
        network=network,
        objective=objective,
        source=mixture or sources[""],
        evaluator=BestStep(held_out, recipe, site, tokens, provenance),
        digest=Digest("data set", digest, provenance),
        companions=learner.companions,
        publish={**objective.publish(), **published_tasks},
    )


def load_start(model: str | Path | Folder) -> Folder:
    """Load a model by name or path; return one that is loaded already as it is."""
    return model if isinstance(model, Folder) else load_folder(locate(model))


def max_length(recipe: Recipe, network: Network) -> int:
    """Return the maximum length of a text, limited by the encoder, the decoder and the recipe."""
    limit, decoder = network.config.max_length, network.shape.decoder
    if decoder is not None:
        limit = min(limit, decoder.max_length)
    requested = recipe.tokenizer.max_length
    if requested is not None and requested > limit:
        raise SettingsError(
            f"tokenizer.max_length is {requested}, but the model reads at most {limit} tokens. "
            "Lower it, or use a model with a larger max_length."
        )
    return requested or limit


def require_evaluations(recipe: Recipe) -> Recipe:
    """Refuse a recipe without evaluations, as they decide which step is published."""
    if not recipe.evaluate.times:
        raise SettingsError("evaluate.times is 0; need at least 1 to find the best step. Raise it.")
    return recipe
