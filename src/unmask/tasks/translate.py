"""Translation: a text in, a text in another language out (or any other sequence to sequence).

    pair -> tokens of both sides -> rows -> encoder -> decoder -> words -> text -> BLEU

A text and its translation share a row number and an owner, so that rows may hold several; only
layers that read word by word take them apart. A target is [CLS] words [SEP]: the decoder hears it
from [CLS] on and must answer from the first word to [SEP].
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import tee
from math import exp, fsum
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from unmask.data.batches import Batch, collate
from unmask.data.parallel import Pair
from unmask.errors import need
from unmask.model.config import SearchSettings, Share
from unmask.model.decoder import Decoder
from unmask.model.network import Network
from unmask.model.recurrent import RecurrentDecoder
from unmask.model.rows import Texts, texts_of
from unmask.model.search import Hypothesis, Marks, search
from unmask.objectives.base import Sums
from unmask.settings import Settings
from unmask.tasks import engine
from unmask.tasks.base import Detail, Mistake
from unmask.text.spacing import join_pieces, spaced
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS

NAME = "translate"
WORDS, INDEX, OWNER, ANSWERS, PLACES, FORCED = (
    f"target_{what}" for what in ("words", "index", "owner", "answers", "places", "forced")
)
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class TranslateSettings(Settings):
    """What is learned, and how a translation is looked for."""

    forcing: Fraction = 1.0  # share of words heard as they should be, not as they were said
    forcing_end: Fraction | None = None  # the share at the end of the run, reached evenly
    forcing_by: Literal["step", "sentence"] = "step"  # one draw for each word, or for each text
    smoothing: Share = 0.1  # of each answer, spread over all words
    search: SearchSettings = SearchSettings()

    @model_validator(mode="after")
    def _ends(self) -> "TranslateSettings":
        if self.forcing_by != "step" and self.always:
            raise ValueError("forcing_by is set, but every word is forced; lower forcing.")
        return self

    @property
    def always(self) -> bool:
        """Is the truth heard at every step of the run?"""
        return self.forcing == 1.0 and self.forcing_end in (None, 1.0)

    def forced(self, progress: float) -> float:
        """The share at a moment of the run."""
        end = self.forcing if self.forcing_end is None else self.forcing_end
        return self.forcing + (end - self.forcing) * progress


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text and, where it is known, its translation, both from [CLS] to [SEP]."""

    source: Sequence[int]
    target: Sequence[int] = ()

    @property
    def heard(self) -> Sequence[int]:
        """What the decoder hears of the target: all but the last."""
        return self.target[:-1]

    @property
    def answers(self) -> Sequence[int]:
        """What the decoder must answer: all of the target but the first."""
        return self.target[1:]

    @property
    def ids(self) -> Sequence[int]:
        """The longer side's: what decides the room that both take."""
        return max(self.source, self.heard, key=len)


@dataclass(frozen=True, slots=True)
class Side:
    """The tokens of one side, all of one segment."""

    ids: Sequence[int]

    @property
    def segments(self) -> Sequence[int]:
        """Zeros."""
        return [0] * len(self.ids)


@dataclass(frozen=True)
class Tokenizers:
    """What turns a source into tokens, and tokens into a target."""

    source: Tokenizer
    target: Tokenizer

    @property
    def marks(self) -> Marks:
        """Where a target begins and ends, and what is never said."""
        vocabulary = self.target.vocabulary
        never = [vocabulary.ids[s] for s in SPECIALS if vocabulary.ids[s] != vocabulary.sep]
        return Marks(vocabulary.cls, vocabulary.sep, never)

    def tokens(self, pairs: Iterable[Pair]) -> Iterator[Tokens]:
        """Every pair as the network reads it; nothing is cut."""
        pairs, first, second = tee(pairs, 3)
        sources = self.source.encode_many([pair.source] for pair in first)
        targets = self.target.encode_many([pair.target or ""] for pair in second)
        for pair, source, target in zip(pairs, sources, targets, strict=True):
            yield Tokens(source.ids, () if pair.target is None else target.ids)

    def text(self, words: Sequence[int]) -> str:
        """What was said, as it is written."""
        tokens = self.target.vocabulary.tokens
        found, _ = join_pieces([tokens[word] for word in words])
        return spaced(found)


def batch_of(some: Sequence[Tokens], *, pad_id: int) -> Batch:
    """Pairs in packed rows: both sides of a pair in the same row, with the same owner."""
    rows = engine.rows_of([len(tokens.ids) for tokens in some])
    batch = collate([Side(tokens.source) for tokens in some], rows, pad_id=pad_id)
    if not all(len(tokens.target) for tokens in some):
        return batch
    heard = collate([Side(tokens.heard) for tokens in some], rows, pad_id=pad_id)
    (places,) = (heard.owner >= 0).flatten().nonzero(as_tuple=True)
    order: list[int] = heard.begins.argsort().tolist()
    answers = torch.from_numpy(np.concatenate([some[i].answers for i in order]).astype(np.int64))
    labels = {WORDS: heard.tokens, INDEX: heard.index, OWNER: heard.owner}
    return batch.with_labels(len(answers), NAME, **labels, **{ANSWERS: answers, PLACES: places})


def with_forcing(batch: Batch, how: TranslateSettings, progress: float, seed: int) -> Batch:
    """Say of each word whether it is heard as it should be; nothing is said if all are."""
    if how.always:
        return batch
    drawn = torch.Generator().manual_seed(seed)
    words = batch.labels[WORDS]
    chance = torch.rand(words.shape, generator=drawn)
    if how.forcing_by == "sentence":
        chance = torch.rand(len(batch.row), generator=drawn)[_numbers(batch)]
    return replace(batch, labels={**batch.labels, FORCED: chance < how.forced(progress)})


def _numbers(batch: Batch) -> Tensor:
    """The number of the text that each heard word belongs to; any, for padding.  -> [B, T]"""
    begins = (batch.labels[INDEX] == 0) & (batch.labels[OWNER] >= 0)
    return (begins.flatten().cumsum(0) - 1).clamp(min=0).view(begins.shape)


def read(network: Network, batch: Batch) -> Tensor:
    """What the encoder makes of the sources.  -> [B, S, D]"""
    states: Tensor = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    return states


def states_of(network: Network, batch: Batch) -> Tensor:
    """The decoder's states for every answer.  -> [N, D]"""
    decoder, source, heard = network.decoder, read(network, batch), batch.labels
    if isinstance(decoder, Decoder):
        words, index, owner = heard[WORDS], heard[INDEX], heard[OWNER]
        states = decoder(words, index, owner, source, batch.owner, network.words)
    else:
        assert isinstance(decoder, RecurrentDecoder), "this network has no decoder"
        sources, targets = texts_of(batch.owner, batch.index), texts_of(heard[OWNER], heard[INDEX])
        spoken = decoder.begin(sources.apart(source), sources)
        forced = targets.apart(heard[FORCED]) if FORCED in heard else None
        states = decoder(spoken, targets.apart(heard[WORDS]), network.words, forced)
        states = targets.together(states)
    out: Tensor = states.flatten(0, 1)[heard[PLACES]]
    return out


class Translate:
    """Translation as an objective and as a task."""

    name: ClassVar[str] = NAME
    metric = "bleu"

    def __init__(self, how: TranslateSettings) -> None:
        self.how, self.terms, self.chance = how, [NAME], None

    def __call__(self, network: Network, batch: Batch) -> Sums:
        """One loss term: of the next word, everywhere."""
        states = states_of(network, batch)
        smoothing = self.how.smoothing if network.training else 0.0
        return {NAME: network.word_loss(states, batch.labels[ANSWERS], smoothing)}

    def loss(self, network: Network, tokens: Sequence[Tokens], pad_id: int) -> tuple[float, int]:
        """The summed loss of all words, with teacher forcing, nothing smoothed; and their count."""
        sums, count = [], 0
        device = network.words.device
        with torch.inference_mode():
            for some in engine.by_length(tokens):
                batch = batch_of([tokens[i] for i in some], pad_id=pad_id)
                sums.append(float(self(network, batch.to(device))[NAME]))
                count += batch.counts[NAME]
        return fsum(sums), count

    def score(self, said: Sequence[str], truth: Sequence[str]) -> dict[str, float]:
        """BLEU and chrF of lower-cased text, as sacrebleu computes them."""
        return {name: metric.corpus_score(said, [truth]).score for name, metric in metrics()}

    def detail(self, pairs: Sequence[Pair], said: Sequence[str]) -> Detail:
        """The translations that have least in common with what was asked for."""
        (_, _), (_, chrf) = metrics()
        found = []
        for pair, own in zip(pairs, said, strict=True):
            near = chrf.sentence_score(own.lower(), [(pair.target or "").lower()]).score
            found.append(Mistake(pair.where, pair.source, pair.target or "", own, 1 - near / 100))
        return Detail(mistakes=found)


def metrics() -> list[tuple[str, Any]]:
    """BLEU and chrF, of lower-cased text; their signatures say how they were computed."""
    need("scoring translations", "sacrebleu", extra="translate")
    from sacrebleu.metrics import BLEU, CHRF

    return [("bleu", BLEU(lowercase=True)), ("chrf", CHRF(lowercase=True))]


def perplexity(loss: float) -> float:
    """Between how many words the model wavers, on average."""
    return exp(min(loss, 100.0))


class Speaking:
    """A network's decoder, as a search asks it."""

    def __init__(self, network: Network) -> None:
        assert network.decoder is not None, "this network has no decoder"
        self.network, self.decoder = network, network.decoder

    def begin(self, states: Tensor, texts: Texts) -> Any:
        """Before the first word."""
        return self.decoder.begin(states, texts)

    def step(self, state: Any, words: Tensor) -> tuple[Tensor, Any]:
        """Scores of the next word.  [N] -> [N, V]"""
        states, then = self.decoder.step(state, words, self.network.words)
        return self.network.word_scores(states), then


def said_of(
    network: Network,
    some: Sequence[Tokens],
    tokenizers: Tokenizers,
    settings: SearchSettings,
    numbers: Sequence[int] | None = None,
) -> list[Hypothesis]:
    """What the network says to each text, searched together."""
    assert network.heads.decoder is not None, "this network has no decoder"
    batch = batch_of(
        [Tokens(tokens.source) for tokens in some], pad_id=tokenizers.source.vocabulary.pad
    ).to(network.words.device)
    with torch.inference_mode():
        texts = texts_of(batch.owner, batch.index)
        states = texts.apart(read(network, batch))
        order: list[int] = batch.begins.argsort().tolist()
        found = search(
            Speaking(network),
            states,
            texts,
            tokenizers.marks,
            settings,
            most=network.heads.decoder.max_length,
            numbers=None if numbers is None else [numbers[i] for i in order],
        )
    by_text = dict(zip(order, found, strict=True))
    return [by_text[i] for i in range(len(some))]
