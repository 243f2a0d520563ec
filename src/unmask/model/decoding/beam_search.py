"""A decoder's state -> generated tokens: greedy, beam search or sampling, step by step.

A decoder needs a method `step`, its state a method `select`; the search uses nothing else of them.
The texts of a batch are searched together, leave the batch when they are finished, and never
affect each other's results. `Search.hypotheses` returns the best hypotheses so far at any time,
which is how results are streamed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from unmask.model.config import SearchSettings

# Removing finished texts copies the caches of all others, so it waits until a quarter is finished.
COMPACT_BELOW = 0.75
MINUS_INF = float("-inf")
Pick = Callable[[Tensor, Tensor, int], Tensor]  # scores [N, V], texts [N], step -> tokens [N]


@dataclass(frozen=True)
class Hypothesis:
    """A generated text."""

    words: list[int]  # token ids, without the end token
    score: float  # log-probability, including that of the end token


class DecoderState(Protocol):
    """State of a decoder after the tokens of each sequence so far."""

    def select(self, indices: Tensor, group_size: int = 1) -> Self:
        """Select sequences, possibly repeated; every `group_size` of them are of one text."""


S = TypeVar("S", bound=DecoderState)


class StepDecoder(Protocol[S]):
    """A decoder with its vocabulary, as a search uses it."""

    def step(self, state: S, tokens: Tensor) -> tuple[Tensor, S]:
        """Append a token to each sequence and score the next one.  [N] -> [N, V]"""


@dataclass(frozen=True)
class SpecialIds:
    """Token ids that a search treats specially."""

    end: int
    never: Sequence[int] = ()  # tokens that are never generated


@dataclass(eq=False)
class Search(ABC, Generic[S]):
    """A batch of texts that are being generated."""

    decoder: StepDecoder[S]
    state: S
    tokens: Tensor  # last token of each sequence
    limits: Tensor  # [N] maximum number of tokens of each text
    special: SpecialIds

    def __post_init__(self) -> None:
        self.at = 0  # number of steps taken
        self.texts = torch.arange(len(self.limits), device=self.limits.device)
        self.done = not bool(self.limits.any())  # whether all texts are finished

    @abstractmethod
    def step(self) -> None:
        """Generate one more token of every text that is not finished."""

    @abstractmethod
    def hypotheses(self) -> list[Hypothesis]:
        """Return the best hypothesis of each text so far."""

    def _scores(self) -> Tensor:
        """Let the decoder read the last tokens and return its scores of the next ones."""
        scores, self.state = self.decoder.step(self.state, self.tokens)
        never = list(self.special.never)
        scores[:, never] = MINUS_INF
        return scores


def begin(
    decoder: StepDecoder[S],
    state: S,
    tokens: Tensor,  # [N] last token of each text so far
    limits: Tensor,  # [N] number of tokens that each may generate
    special: SpecialIds,
    settings: SearchSettings,
    numbers: Sequence[int] | None = None,
) -> Search[S]:
    """Start a search for the best continuation of each text, from a decoder's state.

    `numbers` are the positions of the texts among all texts of a job. They seed the draws of
    sampling, so that results do not depend on which texts are batched together.
    """
    if settings.beam_size > 1:
        return _BeamSearch(decoder, state, tokens, limits, special, settings)
    pick: Pick = _most_likely
    if settings.sample:
        max_steps = int(limits.amax())
        pick = _make_sampler(settings, numbers or range(len(limits)), max_steps, limits.device)
    return _SingleSequenceSearch(decoder, state, tokens, limits, special, pick)


def search(
    decoder: StepDecoder[S],
    state: S,
    tokens: Tensor,
    limits: Tensor,
    special: SpecialIds,
    settings: SearchSettings,
    numbers: Sequence[int] | None = None,
) -> list[Hypothesis]:
    """Search to the end and return the best hypothesis of each text; see `begin`."""
    running = begin(decoder, state, tokens, limits, special, settings, numbers)
    while not running.done:
        running.step()
    return running.hypotheses()


def _most_likely(scores: Tensor, texts: Tensor, step: int) -> Tensor:
    return scores.argmax(dim=-1)


@dataclass(eq=False)
class _SingleSequenceSearch(Search[S]):
    """Greedy search or sampling: one sequence per text."""

    pick: Pick

    def __post_init__(self) -> None:
        super().__post_init__()
        # Results are indexed by text. `texts` maps each sequence to its text, and shrinks with the
        # batch.
        self.generated = self.limits.new_zeros(len(self.limits), int(self.limits.max()))
        self.length = torch.zeros_like(self.limits)
        self.total = torch.zeros(len(self.limits), device=self.limits.device)
        self.unfinished = self.limits > 0  # sequences that are not finished

    def step(self) -> None:
        """Generate one more token of every text that is not finished."""
        step, texts, unfinished = self.at, self.texts, self.unfinished
        scores = self._scores()
        tokens = self.pick(scores, texts, step)
        # `_logsumexp_` destroys the scores, so the token's own score is read first.
        log_probability = scores.gather(1, tokens[:, None])[:, 0] - _logsumexp_(scores)
        open_texts = texts[unfinished]
        self.total[open_texts] += log_probability[unfinished]
        self.generated[open_texts, step] = tokens[unfinished]
        # The end token does not count.
        self.length[open_texts] = step + (tokens[unfinished] != self.special.end)
        unfinished = unfinished & (tokens != self.special.end) & (step + 1 < self.limits[texts])
        remaining = int(unfinished.sum())
        self.at, self.done = step + 1, not remaining
        if remaining and remaining <= COMPACT_BELOW * len(texts):
            (keep,) = unfinished.nonzero(as_tuple=True)
            self.state = self.state.select(keep)
            texts, tokens, unfinished = texts[keep], tokens[keep], unfinished[keep]
        self.texts, self.tokens, self.unfinished = texts, tokens, unfinished

    def hypotheses(self) -> list[Hypothesis]:
        """Return the tokens of each text so far."""
        tokens: list[list[int]] = self.generated.tolist()
        lengths: list[int] = self.length.tolist()
        rows = zip(tokens, lengths, self.total.tolist(), strict=True)
        return [Hypothesis(row[:length], score) for row, length, score in rows]


def _logsumexp_(scores: Tensor) -> Tensor:
    """Return log sum exp of the scores, computed in place: they are overwritten.  [N, V] -> [N]"""
    highest = scores.amax(dim=-1, keepdim=True)
    return scores.sub_(highest).exp_().sum(dim=-1).log_() + highest[:, 0]


def _make_sampler(
    settings: SearchSettings, numbers: Sequence[int], max_steps: int, device: torch.device
) -> Pick:
    """Make a function that samples tokens by inverting the cumulative distribution."""
    # All draws of a text are made beforehand, one per step, by a generator of its own: neither the
    # batch nor the moment when other texts end can change them.
    generators = (np.random.default_rng((settings.seed, number)) for number in numbers)
    draws_by_text = [generator.random(max_steps, dtype=np.float32) for generator in generators]
    draws = torch.from_numpy(np.stack(draws_by_text)).to(device)  # [N, steps]

    def pick(scores: Tensor, texts: Tensor, step: int) -> Tensor:
        probabilities, tokens = (
            (scores / settings.temperature).softmax(dim=-1).sort(descending=True)
        )
        # A token is out if the more likely ones reach top_p by themselves: the token that crosses
        # the threshold stays in, and the most likely one always does.
        preceding = probabilities.cumsum(dim=-1) - probabilities
        excluded = preceding >= settings.top_p
        if settings.top_k:
            excluded[:, settings.top_k :] = True
        cumulative = probabilities.masked_fill(excluded, 0.0).cumsum(dim=-1)  # [N, V]
        # Times the probability that is left, which amounts to renormalising it. The clamp below
        # guards against rounding at the end of the sum.
        target = draws[texts, step][:, None] * cumulative[:, -1:]
        rank = (cumulative <= target).sum(dim=-1, keepdim=True)
        return tokens.gather(1, rank.clamp(max=tokens.shape[1] - 1))[:, 0]

    return pick


@dataclass(eq=False)
class _BeamSearch(Search[S]):
    """Beam search: the most likely beginnings of each text are kept at every step."""

    settings: SearchSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts = self.texts[self.limits > 0]  # [M] texts that are not finished
        self.count = self.settings.beam_size
        sequences = self.texts.repeat_interleave(self.count)
        self.state = self.state.select(sequences, self.count)
        self.tokens = self.tokens[sequences]  # [M * beams] last token of each beam
        self.generated = self.limits.new_zeros(len(sequences), 0)
        shape = len(self.texts), self.count
        self.scores = torch.full(shape, MINUS_INF, device=self.limits.device)
        # All beams begin alike. With the others at -inf, the first step takes the best tokens of
        # one beam, not the same token in every beam.
        self.scores[:, 0] = 0.0
        self.ended: list[list[tuple[float, Hypothesis]]] = [[] for _ in range(len(self.limits))]

    def hypotheses(self) -> list[Hypothesis]:
        """Return the best ended hypothesis of each text, or else the best open beam."""
        best = [Hypothesis([], 0.0)] * len(self.ended)  # for texts with a limit of 0
        texts: list[int] = self.texts.tolist()
        for i, text in enumerate(texts):
            row = i * self.count + int(self.scores[i].argmax())
            best[text] = Hypothesis(self.generated[row].tolist(), float(self.scores[i].amax()))
        return [
            max(ended, key=lambda candidate: candidate[0])[1] if ended else best[text]
            for text, ended in enumerate(self.ended)
        ]

    def step(self) -> None:
        """Extend every beam by one token and keep the best beams of each text."""
        scores = self._scores()
        # Twice as many candidates as beams: each beam can end in one way only, so at least half of
        # the candidates continue. The best 2 * beams of a text are among the best 2 * beams of each
        # beam, so no pass over all beams' vocabularies together is needed.
        per_beam = min(2 * self.count, scores.shape[1])
        highest, tokens = scores.topk(per_beam)
        # Normalised after `topk`, because `_logsumexp_` overwrites the scores. Subtracting the same
        # number from all tokens of a beam does not change their order.
        log_probabilities = self.scores - _logsumexp_(scores).view_as(self.scores)  # [M, beams]
        totals = (
            highest.view(*log_probabilities.shape, per_beam) + log_probabilities[:, :, None]
        ).flatten(1)
        best, chosen = totals.topk(2 * self.count, dim=1)  # of [M, beams * per_beam]
        beam, token = chosen // per_beam, tokens.view_as(totals).gather(1, chosen)  # [M, 2 * beams]
        ends = token == self.special.end
        self._finish(best, beam, ends)
        order = ends.long().argsort(dim=1, stable=True)  # open ones first, still best first
        kept = order[:, : self.count]
        self.scores, beam = best.gather(1, kept), beam.gather(1, kept)
        first_rows = torch.arange(len(beam), device=beam.device)[:, None] * self.count
        rows = (first_rows + beam).flatten()
        self.tokens = token.gather(1, kept).flatten()
        self.generated = torch.cat([self.generated[rows], self.tokens[:, None]], dim=1)
        self._drop_finished(rows)
        self.at += 1

    def _finish(self, best: Tensor, beam: Tensor, ends: Tensor) -> None:
        """Record the hypotheses that end in this step."""
        # An end counts only among the best candidates, as many as there are beams: one that ranks
        # lower would not have been kept as a beam either.
        counted = ends.clone()
        counted[:, self.count :] = False
        counted &= best > MINUS_INF  # not continuations of beams that are still at -inf
        counted_ranks: list[list[int]] = counted.nonzero().tolist()
        for i, rank in counted_ranks:
            row = i * self.count + int(beam[i, rank])
            self._record(int(self.texts[i]), row, float(best[i, rank]))

    def _record(self, text: int, row: int, score: float) -> None:
        hypothesis = Hypothesis(self.generated[row].tolist(), score)
        self.ended[text].append((self._normalized_score(score), hypothesis))

    def _normalized_score(self, score: float) -> float:
        """Divide a score by length^length_penalty, where score and length include the end token."""
        return score / float((self.at + 1) ** self.settings.length_penalty)

    def _is_finished(self, text: int, best: float) -> bool:
        """Whether a text is finished: enough hypotheses, and no open beam scores better."""
        # Ending as soon as there were enough, four beams lost to one about as often as they won.
        scores = [score for score, _ in self.ended[text]]
        return len(scores) >= self.count and max(scores) >= self._normalized_score(best)

    def _drop_finished(self, rows: Tensor) -> None:
        """Drop finished texts, and reorder the decoder's state by the beams that were kept."""
        stays_open = []
        texts: list[int] = self.texts.tolist()
        limits: list[int] = self.limits[self.texts].tolist()
        scores: list[list[float]] = self.scores.tolist()
        for i, (text, limit, beam_scores) in enumerate(zip(texts, limits, scores, strict=True)):
            at_limit = self.at + 1 >= limit
            # A text at its limit is cut off. Its open beams compete with those that have ended.
            if at_limit and len(self.ended[text]) < self.count:
                for beam, score in enumerate(beam_scores):
                    if score > MINUS_INF:
                        self._record(text, i * self.count + beam, score)
            stays_open.append(not at_limit and not self._is_finished(text, max(beam_scores)))
        self.done = not any(stays_open)
        staying = torch.tensor(stays_open, device=rows.device)
        if all(stays_open):
            self.state = self.state.select(rows, self.count)
            return
        staying_rows = staying.repeat_interleave(self.count)
        self.state = self.state.select(rows[staying_rows], self.count)
        self.texts, self.scores = self.texts[staying], self.scores[staying]
        self.tokens, self.generated = self.tokens[staying_rows], self.generated[staying_rows]
