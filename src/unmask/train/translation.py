"""Pairs of texts -> a model that translates: where training one is put together.

Like fine-tuning a decoder on an encoder that may be new: the same loop, checkpoints, best step and
report. What is new is where the words come from, which are learned from the pairs themselves.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import torch
from pydantic import Field, model_validator

from unmask.checkpoint.folder import TARGET, Folder
from unmask.checkpoint.state import checkpoints
from unmask.data import draws
from unmask.data.batches import Batch
from unmask.data.parallel import Pair
from unmask.errors import DataError, SettingsError
from unmask.model.config import DecoderConfig, HeadsConfig, ModelConfig
from unmask.model.network import Network
from unmask.settings import Settings, build
from unmask.tasks import engine
from unmask.tasks.translate import (
    Tokenizers,
    Tokens,
    Translate,
    TranslateSettings,
    batch_of,
    perplexity,
    said_of,
    side,
    with_forcing,
)
from unmask.text.count import count_words
from unmask.text.files import read_tokenizer
from unmask.text.learn import LearnSettings, learn
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.train.ahead import Source
from unmask.train.distributed import Processes
from unmask.train.finetune import How, Plan, carry_out
from unmask.train.pairs import PairData
from unmask.train.run import CHECKPOINTS, RunFolder
from unmask.train.scores import ONLY, Measured, Scored
from unmask.train.tuning import Common, Shuffled

NEIGHBOURS = 20  # steps whose pairs are sorted by length together
_WEIGHTS = 310  # the key of a new encoder's first weights


class VocabularySettings(Settings):
    """The words that are learned from the pairs."""

    size: Annotated[int, Field(ge=10)] = 8000  # of each side, or of both together
    joint: bool = True  # one vocabulary, and one table of vectors, for both sides
    cased: bool = False
    accents: bool = True  # are kept

    @property
    def casing(self) -> Casing:
        """What happens to letters."""
        return Casing(lowercase=not self.cased, strip_accents=not self.accents)


class Translation(Common):
    """A run that learns to translate."""

    model: dict[str, Any] = Field(default_factory=dict)  # the encoder, unless a model is given
    decoder: dict[str, Any] = Field(default_factory=dict)
    vocabulary: VocabularySettings = VocabularySettings()
    task: TranslateSettings = TranslateSettings()

    @model_validator(mode="after")
    def _reads_the_last_layer(self) -> "Translation":
        if self.tune.layers:
            raise ValueError("tune.layers is for labels; a decoder reads the last layer.")
        return self


def train_translation(
    data: PairData,
    out: Path,
    recipe: Translation,
    *,
    encoder: Folder | None = None,
    tokenizers: Tokenizers | None = None,
    learning: Callable[[int, int], None] | None = None,
    **how: Unpack[How],
) -> dict[str, Any]:
    """Train a translator; returns the scores of the best step.

    `encoder` is a model to begin with, which brings its own words; `tokenizers` are given ones.
    """
    if encoder is not None and recipe.model:
        raise SettingsError("recipe [model]: the given model has a shape already. Leave it out.")
    tokenizers = tokenizers or stored(out, bool(how.get("resume")))
    if tokenizers is None:
        tokenizers = learned(data.train, recipe.vocabulary, encoder, learning)
    start = encoder or _new(recipe, tokenizers.source)
    heads = HeadsConfig(pooler=False, decoder=_decoder(recipe, start.network.config, tokenizers))
    _refuse_forcing(recipe.task, heads)
    limit = _limit(recipe, heads, start.network.config)
    task = Translate(recipe.task)
    train, long = fitting(data.train, tokenizers, limit)
    if not train:
        raise DataError(
            f"no pair has at most {limit} tokens on both sides. Raise tune.length and the models' "
            "max_length, or split the texts."
        )
    dev = list(tokenizers.tokens(data.dev))
    said = [*data.said, *_told(tokenizers, long, len(data.train), limit)]
    pad = tokenizers.source.vocabulary.pad

    def lay_out(some: Sequence[Tokens], seed: int, progress: float) -> Batch:
        return with_forcing(batch_of(some, pad_id=pad), recipe.task, progress, seed)

    def source(group: Processes, folder: RunFolder) -> tuple[Source, int]:
        for line in said:
            folder.say(line)
        return Shuffled(train, lay_out, recipe, group, neighbours=NEIGHBOURS), len(train)

    plan = Plan(
        heads,
        lambda network: task,
        source,
        Held(task, tokenizers, data.dev, dev, limit, recipe.train.eval_tokens),
        [*data.train, *data.dev],
        {"task": task.name},
        target=tokenizers.target,
    )
    folder = Folder(start.path, start.network, tokenizers.source, None)
    return carry_out(plan, folder, out, recipe, **how)


class Held:
    """Held-out pairs: the loss of their words, and how what is said compares with them."""

    def __init__(
        self,
        task: Translate,
        tokenizers: Tokenizers,
        pairs: Sequence[Pair],
        tokens: Sequence[Tokens],
        limit: int,
        most: int,
    ) -> None:
        self.task, self.tokenizers = task, tokenizers
        chosen, total = [], 0
        for number, own in enumerate(tokens):
            total += len(own.ids)
            if len(own.ids) <= limit and total <= max(most, len(own.ids)):
                chosen.append(number)
        self.pairs = [pairs[i] for i in chosen]
        self.tokens = [tokens[i] for i in chosen]
        if not chosen:
            raise DataError(f"no pair of the held-out ones has at most {limit} tokens a side.")

    def __call__(self, network: Network) -> Measured:
        """Scores, and the loss."""
        loss = self.task.loss(network, self.tokens, self.tokenizers.source.vocabulary.pad)
        how = self.task.how.search
        said = [""] * len(self.tokens)
        for some in engine.by_length(self.tokens):
            found = said_of(network, [self.tokens[i] for i in some], self.tokenizers, how, some)
            for i, own in zip(some, found, strict=True):
                said[i] = self.tokenizers.text(own.words)
        scores = self.task.score(said, [pair.target or "" for pair in self.pairs])
        scores["perplexity"] = perplexity(loss)
        return {ONLY: Scored(self.task, scores, self.task.detail(self.pairs, said))}, [loss]


def fitting(
    pairs: Iterable[Pair], tokenizers: Tokenizers, limit: int
) -> tuple[list[Tokens], list[Pair]]:
    """Pairs that fit, laid out tightly, and those that are too long: cut, they would not match."""
    pairs = list(pairs)
    kept, long = [], []
    for pair, tokens in zip(pairs, tokenizers.tokens(pairs), strict=True):
        if len(tokens.ids) > limit:
            long.append(pair)
            continue
        assert tokens.target is not None
        source, heard, answers = (
            np.asarray(ids, dtype=np.int32)
            for ids in (tokens.source.ids, tokens.target.ids, tokens.answers)
        )
        kept.append(Tokens(side(source), side(heard), answers))  # type: ignore[arg-type]
    return kept, long


def learned(
    pairs: Sequence[Pair],
    settings: VocabularySettings,
    encoder: Folder | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tokenizers:
    """Vocabularies of both sides, learned from the pairs; a given encoder has its own already."""
    sides: list[Iterable[str]] = [
        (pair.source for pair in pairs),
        (pair.target or "" for pair in pairs),
    ]
    if encoder is not None:
        if settings.joint:
            raise SettingsError(
                "vocabulary.joint: the given model has words of its own, which the other language "
                "cannot share. Set vocabulary.joint=false."
            )
        return Tokenizers(encoder.needed_tokenizer(), _learned([sides[1]], settings, progress))
    if settings.joint:
        both = _learned(sides, settings, progress)
        return Tokenizers(both, both)
    source, target = (_learned([own], settings, progress) for own in sides)
    return Tokenizers(source, target)


def _learned(
    sides: Sequence[Iterable[str]],
    settings: VocabularySettings,
    progress: Callable[[int, int], None] | None,
) -> Tokenizer:
    texts = (text for own in sides for text in own)
    words = count_words(texts, settings.casing)
    vocabulary = learn(words, LearnSettings(size=settings.size), progress=progress)
    return Tokenizer(vocabulary, settings.casing)


def stored(out: Path, resume: bool) -> Tokenizers | None:
    """The words of a run that goes on, from its newest checkpoint."""
    if not resume or not (found := checkpoints(out / CHECKPOINTS)):
        return None
    source = read_tokenizer(found[0])
    target = found[0] / TARGET
    return Tokenizers(source, read_tokenizer(target) if target.is_dir() else source)


def _new(recipe: Translation, tokenizer: Tokenizer) -> Folder:
    """An encoder that knows nothing yet."""
    table = {"vocab_size": len(tokenizer.vocabulary), **recipe.model}
    config = build(ModelConfig, table, where="recipe [model]")
    torch.manual_seed(draws.key(recipe.seed, _WEIGHTS) % 2**63)
    return Folder(Path("new"), Network(config, HeadsConfig(pooler=False)), tokenizer, None)


def _decoder(recipe: Translation, config: ModelConfig, tokenizers: Tokenizers) -> DecoderConfig:
    """The decoder's shape: the encoder's, where nothing else is said."""
    usual = {"layers": config.layers, "max_length": config.max_length, "cell": config.cell}
    shared = tokenizers.source is tokenizers.target
    words = {"vocab_size": len(tokenizers.target.vocabulary), "shared": shared}
    for name in words.keys() & recipe.decoder.keys():
        raise SettingsError(f"recipe [decoder]: {name} is what the vocabularies are. Leave it out.")
    return build(DecoderConfig, {**usual, **recipe.decoder, **words}, where="recipe [decoder]")


def _refuse_forcing(how: TranslateSettings, heads: HeadsConfig) -> None:
    """What is never heard cannot be forced."""
    own = heads.decoder
    assert own is not None
    deaf = own.cell == "attention" or own.feeds in ("nothing", "context")
    if not how.always and deaf:
        what = "a Transformer is trained on the truth" if own.cell == "attention" else "no word"
        raise SettingsError(
            f"task.forcing is {how.forcing}, but this decoder is fed "
            f"{what if what == 'no word' else 'all words at once: ' + what}. Leave it at 1."
        )


def _limit(recipe: Translation, heads: HeadsConfig, config: ModelConfig) -> int:
    """Tokens of a side."""
    assert heads.decoder is not None
    most = min(config.max_length, heads.decoder.max_length)
    if recipe.tune.length is not None and recipe.tune.length > most:
        raise SettingsError(
            f"tune.length is {recipe.tune.length}, and the model holds {most} tokens. Lower it, or "
            "raise max_length."
        )
    return recipe.tune.length or most


def _told(tokenizers: Tokenizers, long: Sequence[Pair], pairs: int, limit: int) -> list[str]:
    sizes = [len(own.vocabulary) for own in (tokenizers.source, tokenizers.target)]
    same = tokenizers.source is tokenizers.target
    said = [
        f"{sizes[0]:,} tokens for both sides" if same else f"{sizes[0]:,} and {sizes[1]:,} tokens"
    ]
    if long:
        said.append(
            f"{long[0].where}: the first of {len(long):,} of {pairs:,} pairs with more than "
            f"{limit} tokens on a side; they are left out"
        )
    return said
