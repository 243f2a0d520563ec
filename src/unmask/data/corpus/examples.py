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
_TARGET, _SHORT, _SPLIT, _COIN, _DOCUMENT, _POSITION, _ROUND, _FIRST, _SECOND = range(9)
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
    def special_tokens(self) -> Ids:
        """Number of special tokens in each example: [CLS], and a [SEP] after each segment."""
        return np.where(self.second_length > 0, 3, 2)

    @property
    def lengths(self) -> Ids:
        """Length of each example in tokens, including special tokens."""
        return self.first_length + self.second_length + self.special_tokens


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
            f"{corpus.path}: {len(chosen)} documents; next-sentence prediction needs at least two, "
            "because its negatives come from other documents. Separate documents by blank lines, "
            'or train without it: --set data.pairs="off" (or "sop").'
        )


def plan_examples(
    corpus: Corpus, chosen: Ids, settings: ExampleSettings, *, length: int, root: int
) -> ExamplePlan:
    """Plan all examples of the chosen documents for one key, each of at most `length` tokens."""
    refuse_too_few(corpus, chosen, settings)
    pairs = settings.pairs
    room = length - (2 if pairs == "off" else 3)
    units, document_starts = _units(corpus, room)
    walk = _Walk(corpus, units, document_starts, chosen, settings, room, root)
    starts, ends, cuts = walk.follow()
    first, first_length = units[starts], units[cuts] - units[starts]
    second, second_length = units[cuts], units[ends] - units[cuts]
    label = np.where(second_length > 0, IS_NEXT, NO_PAIR)
    # The same draw as in `_next`: the walk already had to know which examples are negatives.
    coin = walk.draw(starts, _COIN) < 0.5
    if pairs == "nsp":
        negative = coin & (second_length > 0)
        negatives = np.flatnonzero(negative)
        is_full = (first_length + second_length)[negatives] >= room
        # Where the true pair would have filled the example, a negative must fill it too; what is
        # too long is cut off below. Otherwise the length of an example would give the label away.
        room_left = np.maximum(room - first_length[negatives], 1)
        target_lengths = np.where(is_full, room_left, second_length[negatives])
        second[negatives], second_length[negatives] = walk.negatives(
            starts[negatives], cuts[negatives], target_lengths, is_full
        )
        label[negatives] = np.where(second_length[negatives] > 0, NOT_NEXT, NO_PAIR)
    elif pairs == "sop":
        swap = coin & (second_length > 0)
        first, second = _swapped(swap, first, second)
        first_length, second_length = _swapped(swap, first_length, second_length)
        label = np.where(swap, NOT_NEXT, label)
    # Of a segment that is cut to fit, a random stretch is kept.
    keep_first, keep_second = _truncated(first_length, second_length, room)
    first = first + counter_rng.below(first_length - keep_first + 1, walk.draw(starts, _FIRST))
    second = second + counter_rng.below(second_length - keep_second + 1, walk.draw(starts, _SECOND))
    return ExamplePlan(first, keep_first, second, keep_second, label)


def _swapped(swap: NDArray[np.bool_], first: Ids, second: Ids) -> tuple[Ids, Ids]:
    return np.where(swap, second, first), np.where(swap, first, second)


def _truncated(first: Ids, second: Ids, room: int) -> tuple[Ids, Ids]:
    """Return how much of each of two segments is kept so that both fit: the longer one is cut."""
    too_long = first + second > room
    # The shorter segment is cut only if it has more than half of the room itself.
    kept_shorter = np.minimum(np.minimum(first, second), room // 2)
    keep_first, keep_second = _swapped(first > second, kept_shorter, room - kept_shorter)
    return np.where(too_long, keep_first, first), np.where(too_long, keep_second, second)


def _units(corpus: Corpus, room: int) -> tuple[Ids, Ids]:
    """Return where sentences begin (cut if too long), and the first sentence of each document."""
    lengths = np.diff(corpus.sentences)
    unit_counts = np.maximum(-(-lengths // room), 1)
    units_before = np.concatenate([[0], np.cumsum(unit_counts)])
    if units_before[-1] == len(lengths):
        return corpus.sentences, corpus.documents
    index_in_sentence = np.arange(units_before[-1]) - np.repeat(units_before[:-1], unit_counts)
    starts = np.repeat(corpus.sentences[:-1], unit_counts) + index_in_sentence * room
    return np.append(starts, corpus.sentences[-1]), units_before[corpus.documents]


@dataclass(frozen=True)
class _Walk:
    """The walk through the chosen documents, from sentence to sentence."""

    corpus: Corpus
    units: Ids
    document_starts: Ids
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
        starts = self.document_starts[self.chosen]
        document_ends = self.document_starts[self.chosen + 1]
        examples = [(starts[:0], starts[:0], starts[:0])]
        while len(starts):
            ends = np.searchsorted(self.units, self.units[starts] + self.targets(starts))
            # At least one sentence, even if it is longer than the target, and never past the
            # document.
            ends = np.clip(ends, starts + 1, document_ends)
            cuts = self._cuts(starts, ends)
            examples.append((starts, ends, cuts))
            starts = self._next(starts, ends, cuts)
            going = starts < document_ends
            starts, document_ends = starts[going], document_ends[going]
        starts, ends, cuts = (np.concatenate(part) for part in zip(*examples, strict=True))
        order = np.argsort(starts, kind="stable")  # in the order of the corpus, not of the walk
        return starts[order], ends[order], cuts[order]

    def _cuts(self, starts: Ids, ends: Ids) -> Ids:
        if self.settings.pairs == "off":
            return ends
        split = counter_rng.below(ends - starts - 1, self.draw(starts, _SPLIT))
        return np.where(ends - starts < 2, ends, starts + 1 + split)

    def _next(self, starts: Ids, ends: Ids, cuts: Ids) -> Ids:
        """Return where the next examples begin: a negative gives the sentences it replaced back."""
        if self.settings.pairs != "nsp":
            return ends
        coin = self.draw(starts, _COIN) < 0.5
        return np.where(coin & (cuts < ends), cuts, ends)

    def negatives(
        self, starts: Ids, cuts: Ids, target_lengths: Ids, is_full: NDArray[np.bool_]
    ) -> tuple[Ids, Ids]:
        """Find a second segment in another document for each example: its position and length.

        It is about as long as the text that it replaces, and at least that long where the example
        is full, so that its length does not give the label away. Its length is 0 where every
        attempt found the words of the true next text, as in a corpus of copies.
        """
        own_document = np.searchsorted(self.document_starts, starts, side="right") - 1
        own_rank = np.searchsorted(self.chosen, own_document)
        position, length = np.zeros_like(starts), np.zeros_like(starts)
        unfinished = np.arange(len(starts))  # examples whose segment is missing or too short
        for attempt in range(ATTEMPTS):
            draws = self.draw(starts[unfinished], _DOCUMENT, attempt)
            others = counter_rng.below(len(self.chosen) - 1, draws)
            # One of the other documents: the draw skips the example's own.
            document = self.chosen[others + (others >= own_rank[unfinished])]
            begin, end = self._choose_sentences(
                document, starts[unfinished], target_lengths[unfinished], attempt
            )
            shortened = self._maybe_shorten(
                begin, end, starts[unfinished], target_lengths[unfinished], attempt
            )
            end = np.where(is_full[unfinished], end, shortened)
            found_length = self.units[end] - self.units[begin]
            found_length[self._begins_like(begin, cuts[unfinished])] = 0
            # The longest attempt is kept, in case no document is long enough.
            longer = found_length > length[unfinished]
            position[unfinished[longer]] = self.units[begin[longer]]
            length[unfinished[longer]] = found_length[longer]
            first, last = self.document_starts[document], self.document_starts[document + 1]
            document_length = self.units[last] - self.units[first]
            unfinished = unfinished[
                (found_length == 0) | (document_length < target_lengths[unfinished])
            ]
            if not len(unfinished):
                break
        return position, length

    def _choose_sentences(
        self, document: Ids, starts: Ids, target_lengths: Ids, attempt: int
    ) -> tuple[Ids, Ids]:
        """Choose sentences with about `target_lengths` tokens, where the document has enough."""
        head, tail = self.document_starts[document], self.document_starts[document + 1]
        latest = np.searchsorted(self.units, self.units[tail] - target_lengths, side="right") - 1
        latest = np.clip(latest, head, tail - 1)
        begin = head + counter_rng.below(latest - head + 1, self.draw(starts, _POSITION, attempt))
        end = np.searchsorted(self.units, self.units[begin] + target_lengths)
        return begin, np.clip(end, begin + 1, tail)

    def _maybe_shorten(
        self, begin: Ids, end: Ids, starts: Ids, target_lengths: Ids, attempt: int
    ) -> Ids:
        """Drop the last sentence or not, so that the expected length is exactly the wanted one."""
        shorter_end = np.maximum(end - 1, begin + 1)
        excess = self.units[end] - self.units[begin] - target_lengths
        last_length = self.units[end] - self.units[shorter_end]
        # Dropped with probability excess / length of the last sentence: the expected excess is 0.
        return np.where(self.draw(starts, _ROUND, attempt) * last_length < excess, shorter_end, end)

    def _begins_like(self, begin: Ids, true_next: Ids) -> NDArray[np.bool_]:
        """Whether the first sentence of the other text is, word for word, the true next one."""
        sizes = self.units[begin + 1] - self.units[begin]
        is_same: NDArray[np.bool_] = sizes == self.units[true_next + 1] - self.units[true_next]
        for i in map(int, np.flatnonzero(is_same)):  # few: most differ in length
            tokens, true_tokens = (
                self.corpus.tokens(self.units.item(starts.item(i)), sizes.item(i))
                for starts in (begin, true_next)
            )
            is_same[i] = np.array_equal(tokens, true_tokens)
        return is_same
