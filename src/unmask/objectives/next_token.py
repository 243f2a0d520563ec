"""Pairs of texts -> next-token loss of a decoder, and generated texts: training and decoding.

The batch of sources has the targets in `also["target"]`. A target has the row and the owner of its
source. The inputs of the target batch are the decoder's inputs; its labels are the tokens to
predict.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

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

TARGET = "target"  # the batch of decoder inputs
ANSWERS, PLACES, FORCED = "answers", "places", "forced"  # labels of the target batch
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class NextTokenSettings(Settings):
    """Settings of teacher forcing and label smoothing."""

    teacher_forcing: Fraction = 1.0  # ratio; other inputs are the decoder's predictions
    final_teacher_forcing: Fraction | None = None  # at the end of the run, reached linearly
    teacher_forcing_by: Literal["step", "sentence"] = "step"  # one draw per token, or per text
    label_smoothing: Share = 0.1

    old_names: ClassVar[Mapping[str, str]] = {
        "forcing": "teacher_forcing",
        "forcing_end": "final_teacher_forcing",
        "forcing_by": "teacher_forcing_by",
        "smoothing": "label_smoothing",
    }

    @model_validator(mode="after")
    def _check_forcing(self) -> "NextTokenSettings":
        if self.teacher_forcing_by != "step" and self.always:
            raise ValueError(
                "teacher_forcing_by is set, but every token is teacher-forced. Lower "
                "teacher_forcing, or remove teacher_forcing_by."
            )
        return self

    @property
    def always(self) -> bool:
        """Whether every token of the whole run is teacher-forced."""
        return self.teacher_forcing == 1.0 and self.final_teacher_forcing in (None, 1.0)

    def forced(self, progress: float) -> float:
        """Return the teacher-forcing ratio at a point of the run, from 0 to 1."""
        first, last = self.teacher_forcing, self.final_teacher_forcing
        return first if last is None else first + (last - first) * progress


@dataclass(frozen=True, slots=True)
class PairTokens:
    """Token ids of a source and, if known, of its target, both from [CLS] to [SEP]."""

    source: Numbers
    target: Numbers = ()
    number: int = 0  # position among all texts of a job; seeds the draws of sampling
    cut: int = 0  # truncated tokens, as windows of other tasks have them: pairs are never truncated

    def compact(self) -> "PairTokens":
        """Return the pair with its ids as 32-bit arrays, which take less memory than lists."""
        source, target = (np.asarray(ids, np.int32) for ids in (self.source, self.target))
        return replace(self, source=source, target=target)

    @property
    def labelled(self) -> bool:
        """Whether the target is known."""
        return len(self.target) > 0

    @property
    def decoder_inputs(self) -> Numbers:
        """Inputs of the decoder: the target without its last token."""
        return self.target[:-1]

    @property
    def answers(self) -> Numbers:
        """Tokens to predict: the target without its first token."""
        return self.target[1:]

    @property
    def ids(self) -> Numbers:
        """Tokens of the longer side, which determines the room of the pair in packed rows."""
        return max(self.source, self.decoder_inputs, key=len)


@dataclass(frozen=True, slots=True)
class OneSide:
    """The tokens of one side of a pair, all in segment 0."""

    ids: Numbers

    @property
    def segments(self) -> Sequence[int]:
        """Segment ids, all 0."""
        return [0] * len(self.ids)


def batch_of_pairs(pairs: Sequence[PairTokens], rows: RowPlan, *, pad_id: int, term: str) -> Batch:
    """Pack pairs into rows, both sides of a pair in the same row and with the same owner."""
    batch = collate([OneSide(pair.source) for pair in pairs], rows, pad_id=pad_id)
    if not all(len(pair.target) for pair in pairs):
        return batch
    inputs = collate([OneSide(pair.decoder_inputs) for pair in pairs], rows, pad_id=pad_id)
    (places,) = (inputs.owner >= 0).flatten().nonzero(as_tuple=True)
    # PLACES are in reading order of the rows, so the answers have to be in this order too.
    order: list[int] = inputs.begins.argsort().tolist()
    labels = torch.from_numpy(np.concatenate([pairs[i].answers for i in order]).astype(np.int64))
    target = replace(inputs, labels={ANSWERS: labels, PLACES: places})
    return replace(batch, also={TARGET: target}, counts={term: len(labels)})


class NextToken(Objective):
    """Cross-entropy of each target token, given the source and the earlier target tokens."""

    Config = NextTokenSettings
    config: NextTokenSettings

    def __init__(self, config: NextTokenSettings, *, term: str) -> None:
        super().__init__(config)
        self.term = term

    def describe(self) -> list[Term]:
        """Describe the single loss term."""
        return [Term(self.term, "next tokens")]

    def standard(self) -> Objective:
        """Return the objective for evaluation, with teacher forcing of every token."""
        if self.config.always:
            return self
        standard = copy(self)  # shallow: parameters of a subclass are shared
        always = {"teacher_forcing": 1.0, "final_teacher_forcing": None}
        standard.config = self.config.model_copy(update=always)
        return standard

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Draw which tokens are teacher-forced; without the label FORCED, all of them are."""
        if self.config.always:
            return batch
        target, ratio = batch.also[TARGET], self.config.forced(progress)
        # A generator of its own: a thread may run this while the step draws dropout.
        generator = torch.Generator().manual_seed(batch.seed)
        draws = torch.rand(target.tokens.shape, generator=generator)
        if self.config.teacher_forcing_by == "sentence":
            draws = torch.rand(len(batch.row), generator=generator)[_text_numbers(target)]
        target = replace(target, labels={**target.labels, FORCED: draws < ratio})
        return replace(batch, also={**batch.also, TARGET: target})

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """Run encoder and decoder and compute the loss."""
        states, target = decoder_states(network, batch), batch.also[TARGET]
        # Held-out losses are plain cross-entropies, comparable between settings of smoothing.
        smoothing = self.config.label_smoothing if network.training else 0.0
        labels = target.labels[ANSWERS]
        if not each:
            return {self.term: network.token_loss(states, labels, DECODER, smoothing)}
        scores = network.token_scores(states, DECODER)
        losses = F.cross_entropy(scores, labels, reduction="none", label_smoothing=smoothing)
        texts = target.texts().flatten()[target.labels[PLACES]]
        return {self.term: per_record(losses, texts, batch)}


def _text_numbers(target: Batch) -> Tensor:
    """Return the number of each token's text, arbitrary for padding.  -> [B, T]"""
    begins = (target.index == 0) & (target.owner >= 0)
    return (begins.flatten().cumsum(0) - 1).clamp(min=0).view(begins.shape)


def decoder_states(network: Network, batch: Batch) -> Tensor:
    """Run encoder and decoder; return the decoder's state for each answer.  -> [N, D]"""
    decoder, target = network.heads[DECODER], batch.also[TARGET]
    source = network.states_for(DECODER, batch)
    states: Tensor
    if isinstance(decoder, Decoder):
        inputs = target.tokens, target.index, target.owner
        states = decoder(*inputs, source, batch.owner, network.words())
    else:
        assert isinstance(decoder, RecurrentDecoder), "this network has no decoder"
        # A recurrent decoder cannot skip to the next text of a packed row: one text per row here.
        sources, targets = texts_of(batch.owner, batch.index), texts_of(target.owner, target.index)
        state = decoder.begin(sources.apart(source), sources)
        forced = targets.apart(target.labels[FORCED]) if FORCED in target.labels else None
        states = decoder(state, targets.apart(target.tokens), network.words(), forced)
        states = targets.together(states)
    return states.flatten(0, 1)[target.labels[PLACES]]


class NetworkDecoder:
    """A network's decoder with its output layer, as `beam_search.StepDecoder`."""

    def __init__(self, network: Network) -> None:
        decoder = network.heads[DECODER]
        assert isinstance(decoder, Decoder | RecurrentDecoder)
        self.decoder, self.words = decoder, network.words()

    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        """Append a token to each sequence and score the next one.  [N] -> [N, V]"""
        states, next_state = self.decoder.step(state, tokens, self.words)
        return F.linear(states, self.words, self.decoder.bias), next_state


def limits_of(length: Tensor, settings: SearchSettings, max_length: int) -> Tensor:
    """Return how many tokens each text may have, by default 2 * source + 10.  [N] -> [N]"""
    limits = 2 * length + 10
    if settings.max_length is not None:
        limits = torch.full_like(limits, settings.max_length)
    return limits.clamp(max=max_length)


class DecodingSession:
    """Generation of the targets of a batch of sources, one decoding step at a time."""

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
        texts, network_decoder = texts_of(batch.owner, batch.index), NetworkDecoder(network)
        state = network_decoder.decoder.begin(
            texts.apart(network.states_for(DECODER, batch)), texts
        )
        # `texts_of` numbers texts in reading order of the rows: `order` maps back to `pairs`.
        self.order: list[int] = batch.begins.argsort().tolist()
        limits = limits_of(texts.length, settings, config.max_length)
        # Of the special tokens, only [SEP] may be generated: it ends a text.
        forbidden = [
            vocabulary.ids[token] for token in SPECIALS if vocabulary.ids[token] != vocabulary.sep
        ]
        self.search = begin(
            network_decoder,
            state,
            torch.full_like(limits, vocabulary.cls),
            limits,
            SpecialIds(vocabulary.sep, forbidden),
            settings,
            [pairs[i].number for i in self.order],
        )

    @property
    def done(self) -> bool:
        """Whether all texts are finished."""
        return self.search.done

    def step(self) -> None:
        """Generate one more token of each text."""
        with torch.inference_mode():
            self.search.step()

    def values(self) -> list[Hypothesis]:
        """Return the best hypothesis of each text so far, in the order of the pairs."""
        by_text = dict(zip(self.order, self.search.hypotheses(), strict=True))
        return [by_text[i] for i in range(len(by_text))]
