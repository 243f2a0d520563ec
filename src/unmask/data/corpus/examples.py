"""Corpus -> examples: stretches of text in one or two segments, as in the BERT paper (A.2).

From the beginning of each document, sentences are taken until they fill an example, which is split
into a first and a second segment after a random sentence. With pairs "nsp", half of the second
segments come from another document instead, and the sentences they replace begin the next example.
A stretch of one sentence has no second segment and no label, so both labels stay equally frequent.
"sop" swaps the segments half of the time, and "off" makes a single segment.

Every draw is a function of the key and the place in the corpus. All documents are walked through at
once, as arrays, one example of each at a time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.data import counter_rng
from unmask.data.corpus.config import ExampleSettings
from unmask.data.corpus.corpus import Corpus, Ids
from unmask.system.errors import DataError

IS_NEXT, NOT_NEXT, NO_PAIR = 0, 1, -100  # labels of a pair; the last is no label
# One key per kind of draw, so that draws of different kinds are independent.
_TARGET, _SHORT, _SPLIT, _COIN, _OTHER, _PLACE, _ROUND, _FIRST, _SECOND = range(9)
ATTEMPTS = 8  # draws of a negative that is not, by chance, the true next text


@dataclass(frozen=True)
class ExamplePlan:
    """Where the examples of an epoch lie, as arrays; positions count tokens of the corpus."""

    first: Ids
    first_length: Ids
    second: Ids
    second_length: Ids  # 0: one segment
    label: Ids  # IS_NEXT, NOT_NEXT or NO_PAIR

    @property
    def around(self) -> Ids:
        """Number of special tokens in each example: [CLS], and a [SEP] after each segment."""
        return np.where(self.second_length > 0, 3, 2)

    @property
    def lengths(self) -> Ids:
        """Length of each example in tokens, including special tokens."""
        return self.first_length + self.second_length + self.around


def split_documents(count: int, held_out: int) -> tuple[Ids, Ids]:
    """Split documents into those to train on and those held out, the last of every `held_out`."""
    numbers = np.arange(count)
    if not held_out:
        return numbers, numbers[:0]
    # By number and not at random: every run on a corpus holds out the same documents.
    held = numbers % held_out == held_out - 1
    return numbers[~held], numbers[held]


def refuse_too_few(corpus: Corpus, chosen: Ids, settings: ExampleSettings) -> None:
    """Raise an error if there is no other document to take next-sentence negatives from."""
    if settings.pairs == "nsp" and len(chosen) < 2:
        raise DataError(
            f"{corpus.path}: {len(chosen)} documents to take pairs from; the next-sentence "
            "objective needs at least two, as its negatives are from other documents. Separate "
            'documents by blank lines, or train without it: --set data.pairs="off" (or "sop")'
        )


def plan_examples(
    corpus: Corpus, chosen: Ids, settings: ExampleSettings, *, length: int, root: int
) -> ExamplePlan:
    """Plan all examples of the chosen documents for one key, each of at most `length` tokens."""
    refuse_too_few(corpus, chosen, settings)
    pairs = settings.pairs
    room = length - (2 if pairs == "off" else 3)
    units, heads = _units(corpus, room)
    walk = _Walk(corpus, units, heads, chosen, settings, room, root)
    starts, ends, cuts = walk.follow()
    first, first_length = units[starts], units[cuts] - units[starts]
    second, second_length = units[cuts], units[ends] - units[cuts]
    label = np.where(second_length > 0, IS_NEXT, NO_PAIR)
    # The same draw as in `_next`: the walk already had to know which examples are negatives.
    coin = walk.draw(starts, _COIN) < 0.5
    if pairs == "nsp":
        other = coin & (second_length > 0)
        where = np.flatnonzero(other)
        full = (first_length + second_length)[where] >= room
        # Where the true pair would have filled the example, a negative must fill it too; what is
        # too long is cut off below. Otherwise the length of an example would give the label away.
        left = np.maximum(room - first_length[where], 1)
        wanted = np.where(full, left, second_length[where])
        second[where], second_length[where] = walk.others(starts[where], cuts[where], wanted, full)
        label[where] = np.where(second_length[where] > 0, NOT_NEXT, NO_PAIR)
    elif pairs == "sop":
        swap = coin & (second_length > 0)
        first, second = _exchanged(swap, first, second)
        first_length, second_length = _exchanged(swap, first_length, second_length)
        label = np.where(swap, NOT_NEXT, label)
    # Of a segment that is cut to fit, a random stretch is kept.
    keep_first, keep_second = _fitting(first_length, second_length, room)
    first = first + counter_rng.below(first_length - keep_first + 1, walk.draw(starts, _FIRST))
    second = second + counter_rng.below(second_length - keep_second + 1, walk.draw(starts, _SECOND))
    return ExamplePlan(first, keep_first, second, keep_second, label)


def _exchanged(swap: NDArray[np.bool_], first: Ids, second: Ids) -> tuple[Ids, Ids]:
    return np.where(swap, second, first), np.where(swap, first, second)


def _fitting(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    """Return how much of each of two segments is kept so that both fit: the longer one is cut."""
    over = a + b > room
    # The shorter segment is cut only if it has more than half of the room itself.
    small = np.minimum(np.minimum(a, b), room // 2)
    keep_a, keep_b = _exchanged(a > b, small, room - small)
    return np.where(over, keep_a, a), np.where(over, keep_b, b)


def _units(corpus: Corpus, room: int) -> tuple[Ids, Ids]:
    """Return where sentences begin (cut if too long), and the first sentence of each document."""
    lengths = np.diff(corpus.sentences)
    pieces = np.maximum(-(-lengths // room), 1)
    before = np.concatenate([[0], np.cumsum(pieces)])
    if before[-1] == len(lengths):
        return corpus.sentences, corpus.documents
    within = np.arange(before[-1]) - np.repeat(before[:-1], pieces)
    starts = np.repeat(corpus.sentences[:-1], pieces) + within * room
    return np.append(starts, corpus.sentences[-1]), before[corpus.documents]


@dataclass(frozen=True)
class _Walk:
    """The walk through the chosen documents, from sentence to sentence."""

    corpus: Corpus
    units: Ids
    heads: Ids
    chosen: Ids
    settings: ExampleSettings
    room: int
    root: int

    def draw(self, starts: Ids, *kind: int) -> NDArray[np.float64]:
        """Draw a number in [0, 1) for the example that begins at each sentence."""
        return counter_rng.uniform(counter_rng.key(self.root, *kind), starts)

    def targets(self, starts: Ids) -> Ids:
        """Draw the target length of the example that begins at each sentence."""
        short = self.draw(starts, _SHORT) < self.settings.short_share
        lengths = 2 + counter_rng.below(self.room - 1, self.draw(starts, _TARGET))
        return np.where(short, lengths, self.room)

    def follow(self) -> tuple[Ids, Ids, Ids]:
        """Return each example's first sentence, the one after its last, and where it is split."""
        at = self.heads[self.chosen]
        last = self.heads[self.chosen + 1]
        found = [(at[:0], at[:0], at[:0])]
        while len(at):
            ends = np.searchsorted(self.units, self.units[at] + self.targets(at))
            # At least one sentence, even if it is longer than the target, and never past the
            # document.
            ends = np.clip(ends, at + 1, last)
            cuts = self._cuts(at, ends)
            found.append((at, ends, cuts))
            at = self._next(at, ends, cuts)
            going = at < last
            at, last = at[going], last[going]
        starts, ends, cuts = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.argsort(starts, kind="stable")  # in the order of the corpus, not of the walk
        return starts[order], ends[order], cuts[order]

    def _cuts(self, at: Ids, ends: Ids) -> Ids:
        if self.settings.pairs == "off":
            return ends
        split = counter_rng.below(ends - at - 1, self.draw(at, _SPLIT))
        return np.where(ends - at < 2, ends, at + 1 + split)

    def _next(self, at: Ids, ends: Ids, cuts: Ids) -> Ids:
        """Return where the next examples begin: a negative gives the sentences it replaced back."""
        if self.settings.pairs != "nsp":
            return ends
        coin = self.draw(at, _COIN) < 0.5
        return np.where(coin & (cuts < ends), cuts, ends)

    def others(
        self, starts: Ids, cuts: Ids, wanted: Ids, full: NDArray[np.bool_]
    ) -> tuple[Ids, Ids]:
        """Find a second segment in another document for each example: its position and length.

        It is about as long as the text that it replaces, and at least that long where the example
        is full, so that its length does not give the label away. Its length is 0 where every
        attempt found the words of the true next text, as in a corpus of copies.
        """
        own = np.searchsorted(self.heads, starts, side="right") - 1  # document of each example
        rank = np.searchsorted(self.chosen, own)
        position, length = np.zeros_like(starts), np.zeros_like(starts)
        left = np.arange(len(starts))  # examples whose segment is missing or too short
        for attempt in range(ATTEMPTS):
            pick = self.draw(starts[left], _OTHER, attempt)
            drawn = counter_rng.below(len(self.chosen) - 1, pick)
            # One of the other documents: the draw skips the example's own.
            document = self.chosen[drawn + (drawn >= rank[left])]
            begin, end = self._stretch(document, starts[left], wanted[left], attempt)
            less = self._one_less(begin, end, starts[left], wanted[left], attempt)
            end = np.where(full[left], end, less)
            found = self.units[end] - self.units[begin]
            found[self._same_beginning(begin, cuts[left])] = 0
            # The longest attempt is kept, in case no document is long enough.
            longer = found > length[left]
            position[left[longer]], length[left[longer]] = self.units[begin[longer]], found[longer]
            whole = self.units[self.heads[document + 1]] - self.units[self.heads[document]]
            left = left[(found == 0) | (whole < wanted[left])]
            if not len(left):
                break
        return position, length

    def _stretch(self, document: Ids, starts: Ids, wanted: Ids, attempt: int) -> tuple[Ids, Ids]:
        """Choose sentences with about `wanted` tokens, from where the document has enough left."""
        head, tail = self.heads[document], self.heads[document + 1]
        latest = np.searchsorted(self.units, self.units[tail] - wanted, side="right") - 1
        latest = np.clip(latest, head, tail - 1)
        begin = head + counter_rng.below(latest - head + 1, self.draw(starts, _PLACE, attempt))
        end = np.searchsorted(self.units, self.units[begin] + wanted)
        return begin, np.clip(end, begin + 1, tail)

    def _one_less(self, begin: Ids, end: Ids, starts: Ids, wanted: Ids, attempt: int) -> Ids:
        """Drop the last sentence or not, so that the expected length is exactly the wanted one."""
        before = np.maximum(end - 1, begin + 1)
        over = self.units[end] - self.units[begin] - wanted
        last = self.units[end] - self.units[before]
        # Dropped with probability excess / length of the last sentence: the expected excess is 0.
        return np.where(self.draw(starts, _ROUND, attempt) * last < over, before, end)

    def _same_beginning(self, begin: Ids, true: Ids) -> NDArray[np.bool_]:
        """Whether the first sentence of the other text is, word for word, the true next one."""
        sizes = self.units[begin + 1] - self.units[begin]
        same: NDArray[np.bool_] = sizes == self.units[true + 1] - self.units[true]
        for i in map(int, np.flatnonzero(same)):  # few: most differ in length
            ours, theirs = (
                self.corpus.tokens(self.units.item(place.item(i)), sizes.item(i))
                for place in (begin, true)
            )
            same[i] = np.array_equal(ours, theirs)
        return same
