"""The next word of a text that follows another one: what a decoder learns, and how it is asked.

Each text of a batch has its counterpart in `also["target"]`, in the same row and with the same
owner: the words that the decoder hears, with the answers as labels of that batch.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from unmask.data.batch import Batch, Numbers, collate
from unmask.data.packing import RowPlan
from unmask.model.config import SearchSettings, Share
from unmask.model.decoding.beam_search import Hypothesis, SpecialIds, begin
from unmask.model.decoding.decoder import Decoder
from unmask.model.decoding.recurrent import RecurrentDecoder
from unmask.model.decoding.unpacking import texts_of
from unmask.model.network import Network
from unmask.model.shape import DECODER
from unmask.objectives.base import Companions, Objective, Sums, Term, per_record
from unmask.system.settings import Settings
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import SPECIALS

TARGET = "target"  # the batch of what the decoder hears
ANSWERS, PLACES, FORCED = "answers", "places", "forced"  # its labels
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class NextTokenSettings(Settings):
    """What a decoder hears while it learns."""

    forcing: Fraction = 1.0  # share of words heard as they should be, not as they were said
    forcing_end: Fraction | None = None  # the share at the end of the run, reached evenly
    forcing_by: Literal["step", "sentence"] = "step"  # one draw for each word, or for each text
    smoothing: Share = 0.1  # of each answer, spread over all words

    @model_validator(mode="after")
    def _ends(self) -> "NextTokenSettings":
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
class PairTokens:
    """A text and, where it is known, its counterpart, both from [CLS] to [SEP]."""

    source: Numbers
    target: Numbers = ()
    number: int = 0  # among all that are asked: what a draw for it depends on
    cut: int = 0  # nothing is ever cut

    def compact(self) -> "PairTokens":
        """The same in less memory."""
        source, target = (np.asarray(ids, np.int32) for ids in (self.source, self.target))
        return replace(self, source=source, target=target)

    @property
    def labelled(self) -> bool:
        """Is its counterpart known?"""
        return len(self.target) > 0

    @property
    def heard(self) -> Numbers:
        """What the decoder hears of the target: all but the last."""
        return self.target[:-1]

    @property
    def answers(self) -> Numbers:
        """What the decoder must answer: all of the target but the first."""
        return self.target[1:]

    @property
    def ids(self) -> Numbers:
        """The longer side's: what decides the room that both take."""
        return max(self.source, self.heard, key=len)


@dataclass(frozen=True, slots=True)
class OneSide:
    """The tokens of one side, all of one segment."""

    ids: Numbers

    @property
    def segments(self) -> Sequence[int]:
        """Zeros."""
        return [0] * len(self.ids)


def batch_of_pairs(pairs: Sequence[PairTokens], rows: RowPlan, *, pad_id: int, term: str) -> Batch:
    """Pairs in rows: both sides of a pair in the same row, with the same owner."""
    batch = collate([OneSide(pair.source) for pair in pairs], rows, pad_id=pad_id)
    if not all(len(pair.target) for pair in pairs):
        return batch
    heard = collate([OneSide(pair.heard) for pair in pairs], rows, pad_id=pad_id)
    (places,) = (heard.owner >= 0).flatten().nonzero(as_tuple=True)
    order: list[int] = heard.begins.argsort().tolist()
    answers = torch.from_numpy(np.concatenate([pairs[i].answers for i in order]).astype(np.int64))
    target = replace(heard, labels={ANSWERS: answers, PLACES: places})
    return replace(batch, also={TARGET: target}, counts={term: len(answers)})


class NextToken(Objective):
    """The cross-entropy of every next word, with what came before it heard."""

    Config = NextTokenSettings
    config: NextTokenSettings

    def __init__(self, config: NextTokenSettings, *, term: str) -> None:
        super().__init__(config)
        self.term = term

    def describe(self) -> list[Term]:
        """One term."""
        return [Term(self.term, "next words")]

    def standard(self) -> Objective:
        """Every word is heard as it should be."""
        if self.config.always:
            return self
        found = copy(self)  # with the parameters that a subclass may have
        found.config = self.config.model_copy(update={"forcing": 1.0, "forcing_end": None})
        return found

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Say of each word whether it is heard as it should be; nothing is said if all are."""
        if self.config.always:
            return batch
        target, share = batch.also[TARGET], self.config.forced(progress)
        drawn = torch.Generator().manual_seed(batch.seed)
        chance = torch.rand(target.tokens.shape, generator=drawn)
        if self.config.forcing_by == "sentence":
            chance = torch.rand(len(batch.row), generator=drawn)[_numbers(target)]
        target = replace(target, labels={**target.labels, FORCED: chance < share})
        return replace(batch, also={**batch.also, TARGET: target})

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """One loss term."""
        states, target = decoder_states(network, batch), batch.also[TARGET]
        smoothing = self.config.smoothing if network.training else 0.0
        answers = target.labels[ANSWERS]
        if not each:
            return {self.term: network.token_loss(states, answers, DECODER, smoothing)}
        scores = network.token_scores(states, DECODER)
        losses = F.cross_entropy(scores, answers, reduction="none", label_smoothing=smoothing)
        texts = target.texts().flatten()[target.labels[PLACES]]
        return {self.term: per_record(losses, texts, batch)}


def _numbers(target: Batch) -> Tensor:
    """The number of the text that each heard word belongs to; any, for padding.  -> [B, T]"""
    begins = (target.index == 0) & (target.owner >= 0)
    return (begins.flatten().cumsum(0) - 1).clamp(min=0).view(begins.shape)


def decoder_states(network: Network, batch: Batch) -> Tensor:
    """The decoder's states for every answer.  -> [N, D]"""
    decoder, target = network.heads[DECODER], batch.also[TARGET]
    source = network.states_for(DECODER, batch)
    states: Tensor
    if isinstance(decoder, Decoder):
        heard = target.tokens, target.index, target.owner
        states = decoder(*heard, source, batch.owner, network.words())
    else:
        assert isinstance(decoder, RecurrentDecoder), "this network has no decoder"
        sources, targets = texts_of(batch.owner, batch.index), texts_of(target.owner, target.index)
        spoken = decoder.begin(sources.apart(source), sources)
        forced = targets.apart(target.labels[FORCED]) if FORCED in target.labels else None
        states = decoder(spoken, targets.apart(target.tokens), network.words(), forced)
        states = targets.together(states)
    return states.flatten(0, 1)[target.labels[PLACES]]


class NetworkDecoder:
    """A network's decoder, as a search asks it."""

    def __init__(self, network: Network) -> None:
        decoder = network.heads[DECODER]
        assert isinstance(decoder, Decoder | RecurrentDecoder)
        self.decoder, self.words = decoder, network.words()

    def step(self, state: Any, words: Tensor) -> tuple[Tensor, Any]:
        """Scores of the next word.  [N] -> [N, V]"""
        states, then = self.decoder.step(state, words, self.words)
        return F.linear(states, self.words, self.decoder.bias), then


def limits_of(length: Tensor, settings: SearchSettings, most: int) -> Tensor:
    """How many words each text may say: as asked, or twice its source and ten.  [N] -> [N]"""
    limits = 2 * length + 10
    if settings.longest is not None:
        limits = torch.full_like(limits, settings.longest)
    return limits.clamp(max=most)


class DecodingSession:
    """Texts that a decoder says, searched together."""

    def __init__(
        self,
        network: Network,
        pairs: Sequence[PairTokens],
        rows: RowPlan,
        tokens: Tokenizers,
        settings: SearchSettings,
    ) -> None:
        config, vocabulary = network.shape.decoder, (tokens.target or tokens.source).vocabulary
        assert config is not None, "this network has no decoder"
        batch = collate(
            [OneSide(pair.source) for pair in pairs], rows, pad_id=tokens.source.vocabulary.pad
        ).to(network.table().device)
        texts, speaking = texts_of(batch.owner, batch.index), NetworkDecoder(network)
        state = speaking.decoder.begin(texts.apart(network.states_for(DECODER, batch)), texts)
        self.order: list[int] = batch.begins.argsort().tolist()
        limits = limits_of(texts.length, settings, config.max_length)
        never = [vocabulary.ids[s] for s in SPECIALS if vocabulary.ids[s] != vocabulary.sep]
        self.search = begin(
            speaking,
            state,
            torch.full_like(limits, vocabulary.cls),
            limits,
            SpecialIds(vocabulary.sep, never),
            settings,
            [pairs[i].number for i in self.order],
        )

    @property
    def done(self) -> bool:
        """Have all ended?"""
        return self.search.done

    def step(self) -> None:
        """One word further."""
        with torch.inference_mode():
            self.search.step()

    def values(self) -> list[Hypothesis]:
        """What was said to each text so far."""
        by_text = dict(zip(self.order, self.search.found(), strict=True))
        return [by_text[i] for i in range(len(by_text))]
