"""A decoder's state -> generated tokens: greedy, beam search or sampling, step by step.

A decoder needs a method `step`, its state a method `select`; the search uses nothing else of them.
The texts of a batch are searched together, leave the batch when they are finished, and never
affect each other's results. `Search.found` returns the best hypotheses so far at any time, which
is how results are streamed.
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

    def select(self, which: Tensor, each: int = 1) -> Self:
        """Select sequences, possibly repeated; each group of `each` belongs to one text."""


S = TypeVar("S", bound=DecoderState)


class StepDecoder(Protocol[S]):
    """A decoder with its vocabulary, as a search uses it."""

    def step(self, state: S, words: Tensor) -> tuple[Tensor, S]:
        """Append a token to each sequence and score the next one.  [N] -> [N, V]"""


@dataclass(frozen=True)
class SpecialIds:
    """Token ids that a search treats specially."""

    end: int
    never: Sequence[int] = ()  # tokens that are never generated


@dataclass(eq=False)
class Search(ABC, Generic[S]):
    """A batch of texts that are being generated."""

    speaker: StepDecoder[S]
    state: S
    words: Tensor  # last token of each sequence
    limits: Tensor  # [N] maximum number of tokens of each text
    marks: SpecialIds

    def __post_init__(self) -> None:
        self.at = 0  # number of steps taken
        self.texts = torch.arange(len(self.limits), device=self.limits.device)
        self.done = not bool(self.limits.any())  # whether all texts are finished

    @abstractmethod
    def step(self) -> None:
        """Generate one more token of every text that is not finished."""

    @abstractmethod
    def found(self) -> list[Hypothesis]:
        """Return the best hypothesis of each text so far."""

    def _scores(self) -> Tensor:
        """Let the decoder read the last tokens and return its scores of the next ones."""
        scores, self.state = self.speaker.step(self.state, self.words)
        never = list(self.marks.never)
        scores[:, never] = MINUS_INF
        return scores


def begin(
    speaker: StepDecoder[S],
    state: S,
    words: Tensor,  # [N] last token of each text so far
    limits: Tensor,  # [N] number of tokens that each may generate
    marks: SpecialIds,
    settings: SearchSettings,
    numbers: Sequence[int] | None = None,
) -> Search[S]:
    """Start a search for the best continuation of each text, from a decoder's state.

    `numbers` are the positions of the texts among all texts of a job. They seed the draws of
    sampling, so that results do not depend on which texts are batched together.
    """
    if settings.beam_size > 1:
        return _Beams(speaker, state, words, limits, marks, settings)
    pick: Pick = _best
    if settings.sample:
        most = int(limits.amax())
        pick = _drawing(settings, numbers or range(len(limits)), most, limits.device)
    return _Single(speaker, state, words, limits, marks, pick)


def search(
    speaker: StepDecoder[S],
    state: S,
    words: Tensor,
    limits: Tensor,
    marks: SpecialIds,
    settings: SearchSettings,
    numbers: Sequence[int] | None = None,
) -> list[Hypothesis]:
    """Search to the end and return the best hypothesis of each text; see `begin`."""
    found = begin(speaker, state, words, limits, marks, settings, numbers)
    while not found.done:
        found.step()
    return found.found()


def _best(scores: Tensor, texts: Tensor, step: int) -> Tensor:
    return scores.argmax(dim=-1)


@dataclass(eq=False)
class _Single(Search[S]):
    """Greedy search or sampling: one sequence per text."""

    pick: Pick

    def __post_init__(self) -> None:
        super().__post_init__()
        # Results are indexed by text. `texts` maps each sequence to its text, and shrinks with the
        # batch.
        self.said = self.limits.new_zeros(len(self.limits), int(self.limits.max()))
        self.length = torch.zeros_like(self.limits)
        self.total = torch.zeros(len(self.limits), device=self.limits.device)
        self.wanted = self.limits > 0  # sequences that are not finished

    def step(self) -> None:
        """Generate one more token of every text that is not finished."""
        at, texts, wanted = self.at, self.texts, self.wanted
        scores = self._scores()
        words = self.pick(scores, texts, at)
        # `_whole` destroys the scores, so the token's own score is read first.
        chance = scores.gather(1, words[:, None])[:, 0] - _logsumexp_(scores)
        on = texts[wanted]
        self.total[on] += chance[wanted]
        self.said[on, at] = words[wanted]
        self.length[on] = at + (words[wanted] != self.marks.end)  # the end token does not count
        wanted = wanted & (words != self.marks.end) & (at + 1 < self.limits[texts])
        alive = int(wanted.sum())
        self.at, self.done = at + 1, not alive
        if alive and alive <= COMPACT_BELOW * len(texts):
            (keep,) = wanted.nonzero(as_tuple=True)
            self.state = self.state.select(keep)
            texts, words, wanted = texts[keep], words[keep], wanted[keep]
        self.texts, self.words, self.wanted = texts, words, wanted

    def found(self) -> list[Hypothesis]:
        """Return the tokens of each text so far."""
        said: list[list[int]] = self.said.tolist()
        lengths: list[int] = self.length.tolist()
        rows = zip(said, lengths, self.total.tolist(), strict=True)
        return [Hypothesis(row[:length], score) for row, length, score in rows]


def _logsumexp_(scores: Tensor) -> Tensor:
    """Return log sum exp of the scores, computed in place: they are overwritten.  [N, V] -> [N]"""
    highest = scores.amax(dim=-1, keepdim=True)
    return scores.sub_(highest).exp_().sum(dim=-1).log_() + highest[:, 0]


def _drawing(
    settings: SearchSettings, numbers: Sequence[int], most: int, device: torch.device
) -> Pick:
    """Make a function that samples tokens by inverting the cumulative distribution."""
    # All draws of a text are made beforehand, one per step, by a generator of its own: neither the
    # batch nor the moment when other texts end can change them.
    own = (np.random.default_rng((settings.seed, number)) for number in numbers)
    chances = [generator.random(most, dtype=np.float32) for generator in own]
    chance = torch.from_numpy(np.stack(chances)).to(device)  # [N, steps]

    def pick(scores: Tensor, texts: Tensor, step: int) -> Tensor:
        shares, words = (scores / settings.temperature).softmax(dim=-1).sort(descending=True)
        # A token is out if the more likely ones reach top_p by themselves: the token that crosses
        # the threshold stays in, and the most likely one always does.
        before = shares.cumsum(dim=-1) - shares
        out = before >= settings.top_p
        if settings.top_k:
            out[:, settings.top_k :] = True
        reached = shares.masked_fill(out, 0.0).cumsum(dim=-1)  # [N, V]
        # Times the probability that is left, which amounts to renormalising it. The clamp below
        # guards against rounding at the end of the sum.
        wanted = chance[texts, step][:, None] * reached[:, -1:]
        place = (reached <= wanted).sum(dim=-1, keepdim=True)
        return words.gather(1, place.clamp(max=words.shape[1] - 1))[:, 0]

    return pick


@dataclass(eq=False)
class _Beams(Search[S]):
    """Beam search: the most likely beginnings of each text are kept at every step."""

    settings: SearchSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts = self.texts[self.limits > 0]  # [M] texts that are not finished
        self.count = self.settings.beam_size
        each = self.texts.repeat_interleave(self.count)
        self.state = self.state.select(each, self.count)
        self.words = self.words[each]  # [M * beams] last token of each beam
        self.said = self.limits.new_zeros(len(each), 0)
        shape = len(self.texts), self.count
        self.scores = torch.full(shape, MINUS_INF, device=self.limits.device)
        # All beams begin alike. With the others at -inf, the first step takes the best tokens of
        # one beam, not the same token in every beam.
        self.scores[:, 0] = 0.0
        self.ended: list[list[tuple[float, Hypothesis]]] = [[] for _ in range(len(self.limits))]

    def found(self) -> list[Hypothesis]:
        """Return the best ended hypothesis of each text, or else the best open beam."""
        best = [Hypothesis([], 0.0)] * len(self.ended)  # for texts with a limit of 0
        texts: list[int] = self.texts.tolist()
        for m, text in enumerate(texts):
            row = m * self.count + int(self.scores[m].argmax())
            best[text] = Hypothesis(self.said[row].tolist(), float(self.scores[m].amax()))
        return [
            max(some, key=lambda one: one[0])[1] if some else best[text]
            for text, some in enumerate(self.ended)
        ]

    def step(self) -> None:
        """Extend every beam by one token and keep the best beams of each text."""
        scores = self._scores()
        # Twice as many candidates as beams: each beam can end in one way only, so at least half of
        # the candidates go on. The best 2 * beams of a text are among the best 2 * beams of each
        # beam, so no pass over all beams' vocabularies together is needed.
        several = min(2 * self.count, scores.shape[1])
        highest, words = scores.topk(several)
        # Normalised after `topk`, because `_whole` overwrites the scores; it subtracts the same
        # number from all tokens of a beam, which does not change their order.
        before = self.scores - _logsumexp_(scores).view_as(self.scores)  # [M, beams]
        totals = (highest.view(*before.shape, several) + before[:, :, None]).flatten(1)
        best, which = totals.topk(2 * self.count, dim=1)  # of [M, beams * several]
        beam, word = which // several, words.view_as(totals).gather(1, which)  # [M, 2 * beams]
        ends = word == self.marks.end
        self._finish(best, beam, ends)
        order = ends.long().argsort(dim=1, stable=True)  # open ones first, still best first
        kept = order[:, : self.count]
        self.scores, beam = best.gather(1, kept), beam.gather(1, kept)
        first = torch.arange(len(beam), device=beam.device)[:, None] * self.count
        rows = (first + beam).flatten()
        self.words = word.gather(1, kept).flatten()
        self.said = torch.cat([self.said[rows], self.words[:, None]], dim=1)
        self._leave(rows)
        self.at += 1

    def _finish(self, best: Tensor, beam: Tensor, ends: Tensor) -> None:
        """Record the hypotheses that end in this step."""
        # An end counts only among the best candidates, as many as there are beams: one that ranks
        # lower would not have been kept as a beam either.
        first = ends.clone()
        first[:, self.count :] = False
        first &= best > MINUS_INF  # not continuations of beams that are still at -inf
        places: list[list[int]] = first.nonzero().tolist()
        for m, place in places:
            row = m * self.count + int(beam[m, place])
            self._note(int(self.texts[m]), row, float(best[m, place]))

    def _note(self, text: int, row: int, score: float) -> None:
        found = Hypothesis(self.said[row].tolist(), score)
        self.ended[text].append((self._worth(score), found))

    def _worth(self, score: float) -> float:
        """Divide a score by length^length_penalty, where score and length include the end token."""
        return score / float((self.at + 1) ** self.settings.length_penalty)

    def _enough(self, text: int, best: float) -> bool:
        """Whether a text is finished: enough hypotheses, and no open beam scores better."""
        # Ending as soon as there were enough, four beams lost to one about as often as they won.
        found = [worth for worth, _ in self.ended[text]]
        return len(found) >= self.count and max(found) >= self._worth(best)

    def _leave(self, rows: Tensor) -> None:
        """Drop finished texts, and reorder the decoder's state by the beams that were kept."""
        on = []
        texts: list[int] = self.texts.tolist()
        limits: list[int] = self.limits[self.texts].tolist()
        scores: list[list[float]] = self.scores.tolist()
        for m, (text, limit, own) in enumerate(zip(texts, limits, scores, strict=True)):
            late = self.at + 1 >= limit
            # A text at its limit is cut off. Its open beams compete with those that have ended.
            if late and len(self.ended[text]) < self.count:
                for beam, score in enumerate(own):
                    if score > MINUS_INF:
                        self._note(text, m * self.count + beam, score)
            on.append(not late and not self._enough(text, max(own)))
        self.done = not any(on)
        stay = torch.tensor(on, device=rows.device)
        if all(on):
            self.state = self.state.select(rows, self.count)
            return
        each = stay.repeat_interleave(self.count)
        self.state = self.state.select(rows[each], self.count)
        self.texts, self.scores = self.texts[stay], self.scores[stay]
        self.words, self.said = self.words[each], self.said[each]
