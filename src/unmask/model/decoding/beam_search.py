"""A decoder's state -> the tokens that it says: greedy, by beams, or drawn; step by step.

A decoder offers `step`, its states `select`; nothing else of it is known here. Texts are searched
together and leave the batch when they are done; none changes what another says. Who is impatient
asks a search for what it has found so far.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from unmask.model.config import SearchSettings

SHRINK = 0.75  # of the rows are still wanted: then the others are taken out
NEVER = float("-inf")
Pick = Callable[[Tensor, Tensor, int], Tensor]  # scores [N, V], texts [N], step -> words [N]


@dataclass(frozen=True)
class Hypothesis:
    """What was found for a text."""

    words: list[int]  # without the end
    score: float  # log-probability, of the end too


class DecoderState(Protocol):
    """How far a decoder is."""

    def select(self, which: Tensor, each: int = 1) -> Self:
        """Some of the rows, any number of times each, in groups of `each` of one text."""


S = TypeVar("S", bound=DecoderState)


class StepDecoder(Protocol[S]):
    """What is asked of a decoder with its words."""

    def step(self, state: S, words: Tensor) -> tuple[Tensor, S]:
        """Scores of the next word, [N, V], after these, [N]."""


@dataclass(frozen=True)
class SpecialIds:
    """Words with a meaning."""

    end: int
    never: Sequence[int] = ()  # are not said


@dataclass(eq=False)
class Search(ABC, Generic[S]):
    """Texts that grow."""

    speaker: StepDecoder[S]
    state: S
    words: Tensor  # the last of each row
    limits: Tensor  # [N]
    marks: SpecialIds

    def __post_init__(self) -> None:
        self.at = 0  # steps taken
        self.texts = torch.arange(len(self.limits), device=self.limits.device)
        self.done = not bool(self.limits.any())  # have all texts ended?

    @abstractmethod
    def step(self) -> None:
        """One word further, for every text that has not ended."""

    @abstractmethod
    def found(self) -> list[Hypothesis]:
        """What there is so far: the best of each text."""

    def _scores(self) -> Tensor:
        """Read the last words and score the next ones."""
        scores, self.state = self.speaker.step(self.state, self.words)
        never = list(self.marks.never)
        scores[:, never] = NEVER
        return scores


def begin(
    speaker: StepDecoder[S],
    state: S,
    words: Tensor,  # [N] the last one that each text has
    limits: Tensor,  # [N] words that each may say
    marks: SpecialIds,
    settings: SearchSettings,
    numbers: Sequence[int] | None = None,
) -> Search[S]:
    """Begin to search for the best that follows, from a decoder's state.

    `numbers` are the texts' own among all that are asked: draws go by them, so that it does not
    matter which texts are searched together.
    """
    if settings.beams > 1:
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
    """The best that is found for each text; see `begin`."""
    found = begin(speaker, state, words, limits, marks, settings, numbers)
    while not found.done:
        found.step()
    return found.found()


def _best(scores: Tensor, texts: Tensor, step: int) -> Tensor:
    return scores.argmax(dim=-1)


@dataclass(eq=False)
class _Single(Search[S]):
    """One word for each text, step by step."""

    pick: Pick

    def __post_init__(self) -> None:
        super().__post_init__()  # `texts` says whose row it is
        self.said = self.limits.new_zeros(len(self.limits), int(self.limits.max()))
        self.length = torch.zeros_like(self.limits)
        self.total = torch.zeros(len(self.limits), device=self.limits.device)
        self.wanted = self.limits > 0  # of the rows

    def step(self) -> None:
        """See Search."""
        at, texts, wanted = self.at, self.texts, self.wanted
        scores = self._scores()
        words = self.pick(scores, texts, at)
        chance = scores.gather(1, words[:, None])[:, 0] - _whole(scores)
        on = texts[wanted]
        self.total[on] += chance[wanted]
        self.said[on, at] = words[wanted]
        self.length[on] = at + (words[wanted] != self.marks.end)  # without the end
        wanted = wanted & (words != self.marks.end) & (at + 1 < self.limits[texts])
        alive = int(wanted.sum())
        self.at, self.done = at + 1, not alive
        if alive and alive <= SHRINK * len(texts):
            (keep,) = wanted.nonzero(as_tuple=True)
            self.state = self.state.select(keep)
            texts, words, wanted = texts[keep], words[keep], wanted[keep]
        self.texts, self.words, self.wanted = texts, words, wanted

    def found(self) -> list[Hypothesis]:
        """See Search."""
        said: list[list[int]] = self.said.tolist()
        lengths: list[int] = self.length.tolist()
        rows = zip(said, lengths, self.total.tolist(), strict=True)
        return [Hypothesis(row[:length], score) for row, length, score in rows]


def _whole(scores: Tensor) -> Tensor:
    """The log of the sum of exp, in the scores' own memory: they are lost.  [N, V] -> [N]"""
    highest = scores.amax(dim=-1, keepdim=True)
    return scores.sub_(highest).exp_().sum(dim=-1).log_() + highest[:, 0]


def _drawing(
    settings: SearchSettings, numbers: Sequence[int], most: int, device: torch.device
) -> Pick:
    """Draw words; each text has random numbers of its own, one for each step."""
    own = (np.random.default_rng((settings.seed, number)) for number in numbers)
    chances = [generator.random(most, dtype=np.float32) for generator in own]
    chance = torch.from_numpy(np.stack(chances)).to(device)  # [N, steps]

    def pick(scores: Tensor, texts: Tensor, step: int) -> Tensor:
        shares, words = (scores / settings.temperature).softmax(dim=-1).sort(descending=True)
        before = shares.cumsum(dim=-1) - shares  # of the likelier ones
        out = before >= settings.top_p
        if settings.top_k:
            out[:, settings.top_k :] = True
        reached = shares.masked_fill(out, 0.0).cumsum(dim=-1)  # [N, V]
        wanted = chance[texts, step][:, None] * reached[:, -1:]
        place = (reached <= wanted).sum(dim=-1, keepdim=True)
        return words.gather(1, place.clamp(max=words.shape[1] - 1))[:, 0]

    return pick


@dataclass(eq=False)
class _Beams(Search[S]):
    """Several beginnings of each text, the likeliest kept at every step."""

    settings: SearchSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts = self.texts[self.limits > 0]  # [M] those still searched
        self.count = self.settings.beams
        each = self.texts.repeat_interleave(self.count)
        self.state = self.state.select(each, self.count)
        self.words = self.words[each]  # [M * beams] the last of each
        self.said = self.limits.new_zeros(len(each), 0)
        shape = len(self.texts), self.count
        self.scores = torch.full(shape, NEVER, device=self.limits.device)
        self.scores[:, 0] = 0.0  # all beams begin alike: the first speaks for them
        self.ended: list[list[tuple[float, Hypothesis]]] = [[] for _ in range(len(self.limits))]

    def found(self) -> list[Hypothesis]:
        """See Search: the best by score and length that ended, or else the best that goes on."""
        best = [Hypothesis([], 0.0)] * len(self.ended)  # of texts that may say nothing
        texts: list[int] = self.texts.tolist()
        for m, text in enumerate(texts):
            row = m * self.count + int(self.scores[m].argmax())
            best[text] = Hypothesis(self.said[row].tolist(), float(self.scores[m].amax()))
        return [
            max(some, key=lambda one: one[0])[1] if some else best[text]
            for text, some in enumerate(self.ended)
        ]

    def step(self) -> None:
        """See Search."""
        scores = self._scores()
        # Twice as many as are kept: at most half of them can be ends. Each is among as many best of
        # its beam.
        several = min(2 * self.count, scores.shape[1])
        highest, words = scores.topk(several)
        before = self.scores - _whole(scores).view_as(self.scores)  # [M, beams]
        totals = (highest.view(*before.shape, several) + before[:, :, None]).flatten(1)
        best, which = totals.topk(2 * self.count, dim=1)  # of [M, beams * several]
        beam, word = which // several, words.view_as(totals).gather(1, which)  # [M, 2 * beams]
        ends = word == self.marks.end
        self._finish(best, beam, ends)
        order = ends.long().argsort(dim=1, stable=True)
        kept = order[:, : self.count]  # the likeliest that go on
        self.scores, beam = best.gather(1, kept), beam.gather(1, kept)
        first = torch.arange(len(beam), device=beam.device)[:, None] * self.count
        rows = (first + beam).flatten()
        self.words = word.gather(1, kept).flatten()
        self.said = torch.cat([self.said[rows], self.words[:, None]], dim=1)
        self._leave(rows)
        self.at += 1

    def _finish(self, best: Tensor, beam: Tensor, ends: Tensor) -> None:
        """Write down what ends here among the first of each text."""
        first = ends.clone()
        first[:, self.count :] = False
        first &= best > NEVER
        places: list[list[int]] = first.nonzero().tolist()
        for m, place in places:
            row = m * self.count + int(beam[m, place])
            self._note(int(self.texts[m]), row, float(best[m, place]))

    def _note(self, text: int, row: int, score: float) -> None:
        found = Hypothesis(self.said[row].tolist(), score)
        self.ended[text].append((self._worth(score), found))

    def _worth(self, score: float) -> float:
        """By its length; each step has added one word to the score, the end too."""
        return score / float((self.at + 1) ** self.settings.penalty)

    def _enough(self, text: int, best: float) -> bool:
        """As many are found as there are beams, and none that goes on is better so far."""
        found = [worth for worth, _ in self.ended[text]]
        return len(found) >= self.count and max(found) >= self._worth(best)

    def _leave(self, rows: Tensor) -> None:
        """Go on with the texts that are not done, in the order of their new beams."""
        on = []
        texts: list[int] = self.texts.tolist()
        limits: list[int] = self.limits[self.texts].tolist()
        scores: list[list[float]] = self.scores.tolist()
        for m, (text, limit, own) in enumerate(zip(texts, limits, scores, strict=True)):
            late = self.at + 1 >= limit
            if late and len(self.ended[text]) < self.count:  # it was cut off
                for beam, score in enumerate(own):
                    if score > NEVER:
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
