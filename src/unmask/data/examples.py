"""Corpus -> examples: stretches of text in one or two segments, as in the BERT paper (A.2).

From each document's beginning, sentences are taken until they fill an example; they are cut into
a first and a second segment at a random sentence. Half of the time the second is the true one
(pairs "nsp"), else it comes from another document, and what it replaced begins the next example.
Where a stretch has a single sentence there is no second segment and nothing to say about it, so
the two answers stay even; "sop" swaps the segments half of the time, "off" makes one segment.

Every draw is a function of the key and the place in the corpus. All documents are walked through at
once, one example of each at a time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.data import draws
from unmask.data.corpus import Corpus, Ids
from unmask.data.kinds import ExampleSettings
from unmask.errors import DataError

FOLLOWS, DIFFERS, UNSAID = 0, 1, -100  # labels of a pair; the last is no label
# One key per kind of draw.
_TARGET, _SHORT, _SPLIT, _COIN, _OTHER, _PLACE, _ROUND, _FIRST, _SECOND = range(9)
ATTEMPTS = 8  # to find a second text that is not, by accident, the true one


@dataclass(frozen=True)
class Plan:
    """Where the examples of one epoch lie, one entry each; positions count tokens of the corpus."""

    first: Ids
    first_length: Ids
    second: Ids
    second_length: Ids  # 0: one segment
    label: Ids  # FOLLOWS, DIFFERS or UNSAID
    around: Ids  # special tokens: 2 or 3

    @property
    def lengths(self) -> Ids:
        """Tokens of each example, special ones included."""
        return self.first_length + self.second_length + self.around


def split_documents(count: int, held_out: int) -> tuple[Ids, Ids]:
    """The numbers of the documents to train on, and of those held out: the last of each N."""
    numbers = np.arange(count)
    if not held_out:
        return numbers, numbers[:0]
    held = numbers % held_out == held_out - 1
    return numbers[~held], numbers[held]


def refuse_too_few(corpus: Corpus, chosen: Ids, settings: ExampleSettings) -> None:
    """Wrong second segments need another document."""
    if settings.pairs == "nsp" and len(chosen) < 2:
        raise DataError(
            f"{corpus.path}: {len(chosen)} documents to take pairs from; the next-sentence "
            "objective needs at least two, as its negatives are from other documents. Separate "
            'documents by blank lines, or train without it: --set examples.pairs="off" (or "sop")'
        )


def plan_examples(
    corpus: Corpus, chosen: Ids, settings: ExampleSettings, *, length: int, root: int
) -> Plan:
    """All examples of the chosen documents, at most `length` tokens each, for one key."""
    refuse_too_few(corpus, chosen, settings)
    pairs = settings.pairs
    room = length - (2 if pairs == "off" else 3)
    units, heads = _units(corpus, room)
    walk = _Walk(units, heads, chosen, settings, room, root)
    starts, ends, cuts = walk.follow()
    first, first_length = units[starts], units[cuts] - units[starts]
    second, second_length = units[cuts], units[ends] - units[cuts]
    label = np.where(second_length > 0, FOLLOWS, UNSAID)
    coin = draws.uniform(draws.key(root, _COIN), starts) < 0.5
    if pairs == "nsp":
        other = coin & (second_length > 0)
        where = np.flatnonzero(other)
        full = (first_length + second_length)[where] >= room
        left = np.maximum(room - first_length[where], 1)  # what fills it; the rest will be cut off
        wanted = np.where(full, left, second_length[where])
        found = _others(corpus, walk, starts[where], cuts[where], wanted, full)
        second[where], second_length[where] = found
        label[where] = np.where(second_length[where] > 0, DIFFERS, UNSAID)
    elif pairs == "sop":
        swap = coin & (second_length > 0)
        first, second = np.where(swap, second, first), np.where(swap, first, second)
        lengths = first_length, second_length
        first_length, second_length = (np.where(swap, lengths[1 - i], lengths[i]) for i in (0, 1))
        label = np.where(swap, DIFFERS, label)
    around = np.where(second_length > 0, 3, 2)
    plan = Plan(first, first_length, second, second_length, label, around)
    return _fitted(plan, room, root, starts)


def _units(corpus: Corpus, room: int) -> tuple[Ids, Ids]:
    """Where sentences begin, and the first of each document; longer ones than fit are cut."""
    lengths = np.diff(corpus.sentences)
    pieces = np.maximum(-(-lengths // room), 1)
    before = np.concatenate([[0], np.cumsum(pieces)])
    if before[-1] == len(lengths):
        return corpus.sentences, corpus.documents
    within = np.arange(before[-1]) - np.repeat(before[:-1], pieces)
    starts = np.repeat(corpus.sentences[:-1], pieces) + within * room
    return np.append(starts, corpus.sentences[-1]), before[corpus.documents]


class _Walk:
    """From sentence to sentence through each chosen document."""

    def __init__(
        self,
        units: Ids,
        heads: Ids,
        chosen: Ids,
        settings: ExampleSettings,
        room: int,
        root: int,
    ) -> None:
        self.units, self.heads, self.chosen = units, heads, chosen
        self.settings, self.room, self.root = settings, room, root

    def targets(self, starts: Ids) -> Ids:
        """How long the example that begins at a sentence wants to be."""
        short = draws.uniform(draws.key(self.root, _SHORT), starts) < self.settings.short_share
        lengths = 2 + draws.below(
            self.room - 1, draws.uniform(draws.key(self.root, _TARGET), starts)
        )
        return np.where(short, lengths, self.room)

    def follow(self) -> tuple[Ids, Ids, Ids]:
        """The first sentence of each example, the one after its last, and where it is cut."""
        at = self.heads[self.chosen]
        last = self.heads[self.chosen + 1]
        found: list[tuple[Ids, Ids, Ids]] = []
        while len(at):
            ends = np.searchsorted(self.units, self.units[at] + self.targets(at))
            ends = np.clip(ends, at + 1, last)
            cuts = self._cuts(at, ends)
            found.append((at, ends, cuts))
            at = self._next(at, ends, cuts)
            going = at < last
            at, last = at[going], last[going]
        if not found:
            nothing = np.zeros(0, dtype=np.int64)
            return nothing, nothing, nothing
        starts, ends, cuts = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.argsort(starts, kind="stable")  # by place: how it was found is our affair
        return starts[order], ends[order], cuts[order]

    def _cuts(self, at: Ids, ends: Ids) -> Ids:
        if self.settings.pairs == "off":
            return ends
        split = draws.uniform(draws.key(self.root, _SPLIT), at)
        return np.where(ends - at < 2, ends, at + 1 + draws.below(ends - at - 1, split))

    def _next(self, at: Ids, ends: Ids, cuts: Ids) -> Ids:
        """A negative gives its replaced sentences back."""
        if self.settings.pairs != "nsp":
            return ends
        coin = draws.uniform(draws.key(self.root, _COIN), at) < 0.5
        return np.where(coin & (cuts < ends), cuts, ends)


def _others(
    corpus: Corpus, walk: _Walk, starts: Ids, cuts: Ids, wanted: Ids, full: NDArray[np.bool_]
) -> tuple[Ids, Ids]:
    """A second segment from another document for each example: its position and length.

    It is about as long as the one it replaces, and at least so long where the example is full, so
    that a length tells nothing. Length 0 where every attempt gave the words of the true one, as in
    a corpus of copies.
    """
    own = np.searchsorted(walk.heads, starts, side="right") - 1  # the document of each
    rank = np.searchsorted(walk.chosen, own)
    position, length = np.zeros_like(starts), np.zeros_like(starts)
    left = np.arange(len(starts))  # those that have none yet, or one that is too short
    for attempt in range(ATTEMPTS):
        pick = draws.uniform(draws.key(walk.root, _OTHER, attempt), starts[left])
        drawn = draws.below(len(walk.chosen) - 1, pick)
        document = walk.chosen[drawn + (drawn >= rank[left])]
        begin, end = _stretch(walk, document, starts[left], wanted[left], attempt)
        less = _one_less(walk, begin, end, starts[left], wanted[left], attempt)
        end = np.where(full[left], end, less)
        found = walk.units[end] - walk.units[begin]
        found[_same_beginning(corpus, walk.units, begin, cuts[left])] = 0
        longer = found > length[left]
        position[left[longer]], length[left[longer]] = walk.units[begin[longer]], found[longer]
        whole = walk.units[walk.heads[document + 1]] - walk.units[walk.heads[document]]
        left = left[(found == 0) | (whole < wanted[left])]
        if not len(left):
            break
    return position, length


def _stretch(walk: _Walk, document: Ids, starts: Ids, wanted: Ids, attempt: int) -> tuple[Ids, Ids]:
    """Sentences of a document, about as many tokens as wanted, from a place that leaves enough."""
    head, tail = walk.heads[document], walk.heads[document + 1]
    latest = np.searchsorted(walk.units, walk.units[tail] - wanted, side="right") - 1
    latest = np.clip(latest, head, tail - 1)
    draw = draws.uniform(draws.key(walk.root, _PLACE, attempt), starts)
    begin = head + draws.below(latest - head + 1, draw)
    end = np.searchsorted(walk.units, walk.units[begin] + wanted)
    return begin, np.clip(end, begin + 1, tail)


def _one_less(walk: _Walk, begin: Ids, end: Ids, starts: Ids, wanted: Ids, attempt: int) -> Ids:
    """Take one sentence less, or not, so that on average it is exactly as long as wanted."""
    before = np.maximum(end - 1, begin + 1)
    over, last = walk.units[end] - walk.units[begin] - wanted, walk.units[end] - walk.units[before]
    chance = draws.uniform(draws.key(walk.root, _ROUND, attempt), starts)
    return np.where(chance * last < over, before, end)


def _same_beginning(corpus: Corpus, units: Ids, begin: Ids, true: Ids) -> NDArray[np.bool_]:
    """Is the first sentence of the other text, word for word, the true next one?"""
    sizes = units[begin + 1] - units[begin]
    same: NDArray[np.bool_] = sizes == units[true + 1] - units[true]
    for i in np.flatnonzero(same):  # few: most differ in length
        size = int(sizes[i])
        ours = corpus.tokens(int(units[begin[i]]), size)
        same[i] = np.array_equal(ours, corpus.tokens(int(units[true[i]]), size))
    return same


def _fitted(plan: Plan, room: int, root: int, starts: Ids) -> Plan:
    """Cut the longer segment of each example until both fit, at a random side."""
    a, b = plan.first_length, plan.second_length
    over = a + b > room
    small = np.minimum(np.minimum(a, b), room // 2)
    keep_a = np.where(over, np.where(a <= b, small, room - small), a)
    keep_b = np.where(over, np.where(a <= b, room - small, small), b)
    front_a = draws.below(a - keep_a + 1, draws.uniform(draws.key(root, _FIRST), starts))
    front_b = draws.below(b - keep_b + 1, draws.uniform(draws.key(root, _SECOND), starts))
    return Plan(
        plan.first + front_a, keep_a, plan.second + front_b, keep_b, plan.label, plan.around
    )
