"""Translation: pairs of texts -> a model that translates.

Like fine-tuning a decoder on an encoder that may be new. Where no vocabulary is given, it is
learned from the pairs themselves.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from unmask.checkpoint.folder import Folder
from unmask.data.pair_files import PairFiles, PairSplit
from unmask.errors import SettingsError
from unmask.jobs.exam import Translated
from unmask.jobs.finetune import opened, scored
from unmask.jobs.pairs import (
    decoder_config,
    find_tokenizers,
    max_length,
    pair_source,
    refuse_forcing,
)
from unmask.jobs.scopes import TRANSLATE
from unmask.model.config import HeadsConfig
from unmask.model.factory import freeze, make_network
from unmask.tasks.translate import NAME, Tokenizers, Translate, TranslateSettings
from unmask.train.compose import Scope
from unmask.train.digest import digest_of
from unmask.train.ingredients import Digest, Ingredients, Tokens
from unmask.train.recipe import ModelSettings, Recipe
from unmask.train.scores import Scores
from unmask.train.site import Site


@dataclass(frozen=True)
class Given:
    """What a translation run may start from: an encoder, or vocabularies."""

    encoder: str | Path | Folder | None = None
    vocabulary: Path | Tokenizers | None = None
    target_vocabulary: Path | None = None


class TranslateJob:
    """Train an encoder and a decoder on pairs."""

    scope: ClassVar[Scope] = TRANSLATE

    def __init__(self, data: PairFiles | PairSplit, given: Given = Given()) -> None:
        self.data, self.given = data, given

    def resolve(self, recipe: Recipe, site: Site) -> Recipe:
        """Drop the shape of an encoder where one is given, which has a shape."""
        if recipe.task and recipe.task.name != NAME:
            raise SettingsError(
                f"recipe [task]: {recipe.task.name} is not learned from pairs; need {NAME}, or "
                "another recipe."
            )
        if self.given.encoder is None:
            return scored(recipe)
        own = recipe.model
        model = ModelSettings(decoder=own.decoder, frozen=own.frozen)
        return scored(recipe.model_copy(update={"model": model}))

    def build(self, recipe: Recipe, site: Site) -> Ingredients:
        """Read the pairs, learn a vocabulary unless there is one, and make the network."""
        split = self.data.read() if isinstance(self.data, PairFiles) else self.data
        for line in split.notes:
            site.folder.say(line)
        start = None if self.given.encoder is None else opened(self.given.encoder)
        tokenizers = find_tokenizers(
            split.train, recipe, site, start, self.given.vocabulary, self.given.target_vocabulary
        )
        size = len(tokenizers.source.vocabulary)
        config = recipe.model.config(size) if start is None else start.network.config
        heads = HeadsConfig(pooler=False, decoder=decoder_config(recipe, config, tokenizers))
        network = make_network(
            config, heads, recipe.seed, start=None if start is None else start.network
        )
        freeze(network, recipe.model.frozen, pooler=False)
        assert recipe.task is not None
        assert isinstance(recipe.task.settings, TranslateSettings)
        task, limit = Translate(recipe.task.settings), max_length(recipe, heads, config)
        refuse_forcing(task.how, heads)
        tokens = Tokens(tokenizers.source, limit, tokenizers.target)
        provenance = {"task": NAME, "model": "from scratch" if start is None else start.path.name}
        exam = Translated(
            task,
            tokenizers,
            split.dev,
            max_length=limit,
            tokens=recipe.evaluate.tokens,
            processes=site.processes,
        )
        return Ingredients(
            tokens=tokens,
            network=network,
            objective=task,
            source=pair_source(split.train, tokenizers, task.how, limit, recipe, site),
            evaluator=Scores(exam, recipe, site, tokens, provenance),
            digest=Digest("set of pairs", digest_of([*split.train, *split.dev]), provenance),
        )
