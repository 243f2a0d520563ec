"""Pairs of texts -> tokenizers, micro-batches, and the shape of the decoder that fits them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from unmask.checkpoint.folder import TARGET, Folder
from unmask.checkpoint.state import checkpoints
from unmask.checkpoint.vocabulary import load_tokenizer
from unmask.data.batches import Batch
from unmask.data.parallel import Pair
from unmask.errors import DataError, SettingsError
from unmask.model.config import DecoderConfig, ModelConfig
from unmask.settings import build
from unmask.tasks.translate import (
    Tokenizers,
    Tokens,
    TranslateSettings,
    batch_of,
    with_forcing,
)
from unmask.text.count import count_words
from unmask.text.files import read_tokenizer
from unmask.text.learn import LearnSettings, learn
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.train.recipe import Recipe, TokenizerSettings
from unmask.train.site import Site
from unmask.train.sources import Shuffled

NEIGHBOURS = 20  # steps whose pairs are sorted by length together


@dataclass(frozen=True)
class Given:
    """What a translation run may start from: an encoder, or vocabularies."""

    encoder: str | Path | Folder | None = None
    vocabulary: Path | Tokenizers | None = None  # of both sides, or of the source
    target_vocabulary: Path | None = None

    def tokenizers(self) -> Tokenizers | None:
        """The vocabularies that the user gives, if any."""
        source, target = self.vocabulary, self.target_vocabulary
        if source is None:
            if target is not None:
                raise SettingsError(
                    "--target-vocabulary without --vocabulary: give both, or neither."
                )
            return None
        if self.encoder is not None:
            raise SettingsError(
                "--vocabulary and --model: the model has a vocabulary of its own. Give one of the "
                "two."
            )
        if isinstance(source, Tokenizers):
            return source
        first = load_tokenizer(source)
        return Tokenizers(first, first if target is None else load_tokenizer(target))


def find_tokenizers(
    pairs: Sequence[Pair], recipe: Recipe, site: Site, given: Given, encoder: Folder | None
) -> Tokenizers:
    """Vocabularies of both sides: given ones, a resumed run's, or learned from the pairs."""

    def progress(done: int, total: int) -> None:
        site.console.progress("learning a vocabulary", "tokens", done, total)

    found = given.tokenizers() or stored_tokenizers(site)
    found = found or learned(pairs, recipe.tokenizer, encoder, progress)
    sizes = [len(own.vocabulary) for own in (found.source, found.target)]
    same = found.source is found.target
    site.folder.say(
        f"{sizes[0]:,} tokens for both sides" if same else f"{sizes[0]:,} and {sizes[1]:,} tokens"
    )
    return found


def stored_tokenizers(site: Site) -> Tokenizers | None:
    """The vocabularies of a run that is resumed, from its newest checkpoint."""
    if site.stored is None or not (found := checkpoints(site.folder.checkpoints)):
        return None
    source = read_tokenizer(found[0])
    target = found[0] / TARGET
    return Tokenizers(source, read_tokenizer(target) if target.is_dir() else source)


def learned(
    pairs: Sequence[Pair],
    settings: TokenizerSettings,
    encoder: Folder | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tokenizers:
    """Learn vocabularies of both sides from the pairs; a given encoder has its own already."""
    sources = (pair.source for pair in pairs)
    targets = (pair.target or "" for pair in pairs)
    if encoder is not None:
        if settings.joint:
            raise SettingsError(
                "tokenizer.joint: the given model has a vocabulary of its own, which the other "
                "language cannot share. Set tokenizer.joint=false."
            )
        return Tokenizers(encoder.needed_tokenizer(), _learned(targets, settings, progress))
    if settings.joint:
        both = _learned(chain(sources, targets), settings, progress)
        return Tokenizers(both, both)
    source = _learned(sources, settings, progress)
    return Tokenizers(source, _learned(targets, settings, progress))


def _learned(
    texts: Iterable[str],
    settings: TokenizerSettings,
    progress: Callable[[int, int], None] | None,
) -> Tokenizer:
    casing = Casing(lowercase=not settings.cased, strip_accents=not settings.accents)
    words = count_words(texts, casing)
    return Tokenizer(learn(words, LearnSettings(size=settings.size), progress=progress), casing)


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
        source, target = (np.asarray(ids, np.int32) for ids in (tokens.source, tokens.target))
        kept.append(Tokens(source, target))  # type: ignore[arg-type]
    return kept, long


def pair_source(
    pairs: Sequence[Pair],
    tokenizers: Tokenizers,
    how: TranslateSettings,
    limit: int,
    recipe: Recipe,
    site: Site,
) -> Shuffled:
    """Batches of pairs; those that are too long are skipped, which is reported."""
    kept, long = fitting(pairs, tokenizers, limit)
    if not kept:
        raise DataError(
            f"no pair has at most {limit} tokens on both sides. Raise tokenizer.max_length and the "
            "models' max_length, or split the texts."
        )
    if long:
        site.folder.say(
            f"{long[0].where}: the first of {len(long):,} of {len(pairs):,} pairs with more than "
            f"{limit} tokens on a side; they are skipped"
        )
    site.folder.say(f"{len(kept):,} pairs, {recipe.loop.batch_size} in each step")
    pad = tokenizers.source.vocabulary.pad

    def lay_out(some: Sequence[Tokens], seed: int, progress: float) -> Batch:
        return with_forcing(batch_of(some, pad_id=pad), how, progress, seed)

    return Shuffled([[tokens] for tokens in kept], lay_out, recipe, neighbours=NEIGHBOURS)


def decoder_config(recipe: Recipe, config: ModelConfig, tokenizers: Tokenizers) -> DecoderConfig:
    """The decoder's shape: the encoder's, where nothing else is given."""
    table = {
        "layers": config.layers,
        "max_length": config.max_length,
        "cell": config.cell,
        **recipe.model.decoder.model_dump(exclude_none=True),
        "vocab_size": len(tokenizers.target.vocabulary),
        "shared": tokenizers.source is tokenizers.target,
    }
    return build(DecoderConfig, table, where="recipe [model.decoder]")


def refuse_forcing(how: TranslateSettings, decoder: DecoderConfig) -> None:
    """Refuse to force only some words on a decoder that never hears its own words."""
    if decoder.cell == "attention":
        fed = "all words at once: a Transformer is trained on the truth"
    elif decoder.feeds in ("nothing", "context"):
        fed = "no word"
    else:
        return
    if not how.always:
        raise SettingsError(
            f"task.forcing is {how.forcing}, but this decoder is fed {fed}. Leave it at 1."
        )
