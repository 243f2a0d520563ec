"""Translation: pairs of texts -> a model that translates.

Like fine-tuning a decoder on an encoder that may be new. Where no vocabulary is given, it is
learned from the pairs themselves.
"""

from typing import ClassVar

from unmask.data.pair_files import PairFiles, PairSplit
from unmask.errors import SettingsError
from unmask.jobs.exam import Translated
from unmask.jobs.finetune import max_length, opened, scored
from unmask.jobs.pairs import Given, decoder_config, find_tokenizers, pair_source, refuse_forcing
from unmask.jobs.scopes import TRANSLATE
from unmask.model.config import HeadsConfig
from unmask.model.factory import freeze, make_network
from unmask.tasks.translate import NAME, Translate, TranslateSettings
from unmask.train.compose import Scope
from unmask.train.digest import digest_of
from unmask.train.ingredients import Digest, Ingredients, Tokens
from unmask.train.recipe import ModelSettings, Recipe
from unmask.train.scores import Scores
from unmask.train.site import Site


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
        tokenizers = find_tokenizers(split.train, recipe, site, self.given, start)
        if start is None:
            begun, name = None, "from scratch"
            config = recipe.model.config(len(tokenizers.source.vocabulary))
        else:
            begun, name, config = start.network, start.path.name, start.network.config
        assert recipe.task is not None
        assert isinstance(recipe.task.settings, TranslateSettings)
        task, decoder = Translate(recipe.task.settings), decoder_config(recipe, config, tokenizers)
        refuse_forcing(task.how, decoder)
        heads = HeadsConfig(pooler=False, decoder=decoder)
        network = make_network(config, heads, recipe.seed, start=begun)
        freeze(network, recipe.model.frozen, pooler=False)
        limit = max_length(recipe, network)
        tokens = Tokens(tokenizers.source, limit, tokenizers.target)
        provenance = {"task": NAME, "model": name}
        exam = Translated(task, tokenizers, split.dev, limit, recipe, site.processes)
        return Ingredients(
            tokens=tokens,
            network=network,
            objective=task,
            source=pair_source(split.train, tokenizers, task.how, limit, recipe, site),
            evaluator=Scores(exam, recipe, site, tokens, provenance),
            digest=Digest("set of pairs", digest_of([*split.train, *split.dev]), provenance),
        )
