"""States of a source -> the words of a target: greedy, by beams, or drawn.

A decoder offers `begin` and `step`, its states `select`; nothing else of it is known here. Texts
are searched together and leave the batch when they are done; none changes what another says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from unmask.model.config import SearchSettings
from unmask.model.rows import Texts

SHRINK = 0.75  # of the rows are still wanted: then the others are taken out
NEVER = float("-inf")
Pick = Callable[[Tensor, Tensor, int], Tensor]  # scores [N, V], texts [N], step -> words [N]


@dataclass(frozen=True)
class Hypothesis:
    """What was found for a text."""

    words: list[int]  # without the end
    score: float  # log-probability, of the end too


class State(Protocol):
    """How far a decoder is."""

    def select(self, which: Tensor, each: int = 1) -> Self:
        """Some of the rows, any number of times each, in groups of `each` of one text."""


S = TypeVar("S", bound=State)


class Speaker(Protocol[S]):
    """What is asked of a decoder with its words."""

    def begin(self, states: Tensor, texts: Texts) -> S:
        """Before the first word."""

    def step(self, state: S, words: Tensor) -> tuple[Tensor, S]:
        """Scores of the next word, [N, V], after these, [N]."""


@dataclass(frozen=True)
class Marks:
    """Words with a meaning."""

    begin: int
    end: int
    never: Sequence[int] = field(default=())  # are not said


def search(
    speaker: Speaker[S],
    states: Tensor,  # [N, L, D]
    texts: Texts,
    marks: Marks,
    settings: SearchSettings,
    *,
    most: int,
    numbers: Sequence[int] | None = None,
) -> list[Hypothesis]:
    """The best that is found for each text, `most` words at most.

    `numbers` are the texts' own among all that are asked: draws go by them, so that it does not
    matter which texts are searched together.
    """
    limits = 2 * texts.length + 10
    if settings.longest is not None:
        limits = torch.full_like(limits, settings.longest)
    limits = limits.clamp(max=most)
    state = speaker.begin(states, texts)
    if settings.beams > 1:
        return _Beams(speaker, state, marks, settings, limits).run()
    pick: Pick = _best
    if settings.sample:
        pick = _drawing(settings, numbers or range(len(limits)), most, limits.device)
    return _one_each(speaker, state, marks, limits, pick)


def _best(scores: Tensor, texts: Tensor, step: int) -> Tensor:
    return scores.argmax(dim=-1)


def _one_each(
    speaker: Speaker[S], state: S, marks: Marks, limits: Tensor, pick: Pick
) -> list[Hypothesis]:
    """One word for each text, step by step."""
    texts = torch.arange(len(limits), device=limits.device)  # whose row it is
    words = torch.full_like(limits, marks.begin)
    said = limits.new_zeros(len(limits), int(limits.max()))
    length, total = torch.zeros_like(limits), torch.zeros(len(limits), device=limits.device)
    wanted = torch.ones_like(limits, dtype=torch.bool)  # of the rows
    for step in range(said.shape[1]):
        scores, state = speaker.step(state, words)
        scores[:, list(marks.never)] = NEVER
        words = pick(scores, texts, step)
        chance = scores.gather(1, words[:, None])[:, 0] - _whole(scores)
        on = texts[wanted]
        total[on] += chance[wanted]
        said[on, step] = words[wanted]
        length[on] = step + (words[wanted] != marks.end)  # without the end
        wanted = wanted & (words != marks.end) & (step + 1 < limits[texts])
        alive = int(wanted.sum())
        if not alive:
            break
        if alive <= SHRINK * len(texts):
            (keep,) = wanted.nonzero(as_tuple=True)
            state, texts, words, wanted = state.select(keep), texts[keep], words[keep], wanted[keep]
    found = zip(said.tolist(), length.tolist(), total.tolist(), strict=True)
    return [Hypothesis(row[:count], score) for row, count, score in found]


def _whole(scores: Tensor) -> Tensor:
    """The log of the sum of exp, in the scores' own memory: they are lost.  [N, V] -> [N]"""
    highest = scores.amax(dim=-1, keepdim=True)
    return scores.sub_(highest).exp_().sum(dim=-1).log_() + highest[:, 0]


def _drawing(
    settings: SearchSettings, numbers: Sequence[int], most: int, device: torch.device
) -> Pick:
    """Draw words; each text has random numbers of its own, one for each step."""
    chances = []
    for number in numbers:
        own = np.random.default_rng((settings.seed, number))
        chances.append(own.random(most, dtype=np.float32))
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


class _Beams(Generic[S]):
    """Several beginnings of each text, the likeliest kept at every step."""

    def __init__(
        self, speaker: Speaker[S], state: S, marks: Marks, settings: SearchSettings, limits: Tensor
    ) -> None:
        self.speaker, self.marks, self.settings, self.limits = speaker, marks, settings, limits
        self.count = settings.beams
        self.texts = torch.arange(len(limits), device=limits.device)  # [M] those still searched
        self.state = state.select(self.texts.repeat_interleave(self.count), self.count)
        rows = len(limits) * self.count
        self.words = limits.new_full((rows,), marks.begin)  # [M * beams] the last of each
        self.said = limits.new_zeros(rows, 0)
        self.scores = torch.full((len(limits), self.count), NEVER, device=limits.device)
        self.scores[:, 0] = 0.0  # all beams begin alike: the first speaks for them
        self.found: list[list[tuple[float, Hypothesis]]] = [[] for _ in range(len(limits))]

    def run(self) -> list[Hypothesis]:
        """To the end of every text; the best of each, by its score and length."""
        for step in range(int(self.limits.max())):
            self._step(step)
            if not len(self.texts):
                break
        return [max(some, key=lambda one: one[0])[1] for some in self.found]

    def _note(self, text: int, words: list[int], score: float, step: int) -> None:
        self.found[text].append((self._worth(score, step), Hypothesis(words, score)))

    def _worth(self, score: float, step: int) -> float:
        """By its length; each step has added one word to the score, the end too."""
        return score / float((step + 1) ** self.settings.penalty)

    def _step(self, step: int) -> None:
        scores, self.state = self.speaker.step(self.state, self.words)
        scores[:, list(self.marks.never)] = NEVER
        # Twice as many as are kept: at most half of them can be ends. Each is among as many best of
        # its beam.
        several = min(2 * self.count, scores.shape[1])
        highest, words = (found.unflatten(0, (-1, self.count)) for found in scores.topk(several))
        before = self.scores - _whole(scores).unflatten(0, (-1, self.count))  # [M, beams]
        totals = (highest + before[:, :, None]).flatten(1)  # [M, beams * several]
        best, which = totals.topk(2 * self.count, dim=1)
        beam, word = which // several, words.flatten(1).gather(1, which)  # [M, 2 * beams]
        ends = word == self.marks.end
        self._finish(best, beam, ends, step)
        order = ends.long().argsort(dim=1, stable=True)
        kept = order[:, : self.count]  # the likeliest that go on
        self.scores, beam = best.gather(1, kept), beam.gather(1, kept)
        first = torch.arange(len(beam), device=beam.device)[:, None] * self.count
        rows = (first + beam).flatten()
        self.words = word.gather(1, kept).flatten()
        self.said = torch.cat([self.said[rows], self.words[:, None]], dim=1)
        self._leave(step, rows)

    def _finish(self, best: Tensor, beam: Tensor, ends: Tensor, step: int) -> None:
        """Write down what ends here among the first of each text."""
        first = ends.clone()
        first[:, self.count :] = False
        first &= best > NEVER
        for m, place in first.nonzero().tolist():
            words = self.said[m * self.count + int(beam[m, place])].tolist()
            self._note(int(self.texts[m]), words, float(best[m, place]), step)

    def _enough(self, text: int, best: float, step: int) -> bool:
        """As many are found as there are beams, and none that goes on is better so far."""
        found = [worth for worth, _ in self.found[text]]
        return len(found) >= self.count and max(found) >= self._worth(best, step)

    def _leave(self, step: int, rows: Tensor) -> None:
        """Go on with the texts that are not done, in the order of their new beams."""
        done = []
        limits, best = self.limits[self.texts].tolist(), self.scores.amax(dim=1).tolist()
        for m, text in enumerate(self.texts.tolist()):
            late = step + 1 >= limits[m]
            if late and len(self.found[text]) < self.count:  # it was cut off
                for b in range(self.count):
                    if self.scores[m, b] > NEVER:
                        words = self.said[m * self.count + b].tolist()
                        self._note(text, words, float(self.scores[m, b]), step)
            done.append(late or self._enough(text, best[m], step))
        stay = torch.tensor([not own for own in done], device=rows.device)
        if bool(stay.all()):
            self.state = self.state.select(rows, self.count)
            return
        each = stay.repeat_interleave(self.count)
        self.state = self.state.select(rows[each], self.count)
        self.texts, self.scores = self.texts[stay], self.scores[stay]
        self.words, self.said = self.words[each], self.said[each]
