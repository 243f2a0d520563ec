"""Examples -> packed rows -> batches: what a training step reads, as a function of a cursor.

The examples of an epoch are shuffled and packed into rows, once. A cursor (epoch, row) says where
to continue; there is no other state, so resuming costs no more than starting.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.data import counter_rng
from unmask.data.batch import Batch, collate
from unmask.data.corpus.config import ExampleSettings
from unmask.data.corpus.corpus import Corpus, Ids
from unmask.data.corpus.examples import ExamplePlan, plan_examples
from unmask.data.packing import pack
from unmask.system.errors import DataError
from unmask.text.vocabulary import CONTINUATION

WINDOW = 4096  # examples that may share rows: neighbours in the shuffled order
_EXAMPLES, _ORDER, _ROWS, _NUMBER = range(4)  # one key per kind of draw


@dataclass(frozen=True, order=True)
class Cursor:
    """The next row to read."""

    epoch: int = 0
    row: int = 0


@dataclass(frozen=True)
class CorpusExample:
    """One example as tokens."""

    ids: Ids
    segments: Ids
    continues: NDArray[np.bool_]


@dataclass
class Stream:
    """Packed rows of the chosen documents, epoch after epoch."""

    corpus: Corpus
    documents: Ids
    settings: ExampleSettings
    seed: int
    length: int  # tokens of a row, and so the limit of an example
    _epochs: dict[int, "Epoch"] = field(default_factory=dict)

    def epoch(self, number: int) -> "Epoch":
        """Return the plan of an epoch; two are cached, as a step may reach past the end of one."""
        if number not in self._epochs:
            for old in sorted(self._epochs)[:-1]:
                del self._epochs[old]
            self._epochs[number] = self._plan_epoch(number)
        return self._epochs[number]

    def take(self, cursor: Cursor, rows: int) -> tuple[list[Cursor], Cursor]:
        """Return the next `rows` rows, across the end of an epoch if needed, and the new cursor."""
        taken: list[Cursor] = []
        if not len(self.epoch(cursor.epoch)):
            raise DataError(
                f"{self.corpus.path}: {len(self.documents)} documents contain no examples; need "
                "text to train on. Is it the right corpus?"
            )
        while len(taken) < rows:
            taken.append(cursor)
            cursor = Cursor(cursor.epoch, cursor.row + 1)
            if cursor.row == len(self.epoch(cursor.epoch)):
                cursor = Cursor(cursor.epoch + 1, 0)
        return taken, cursor

    def batch(self, rows: list[Cursor]) -> Batch:
        """Collate rows into a batch; no tokens are masked yet."""
        examples: list[CorpusExample] = []
        numbers: list[int] = []
        labels: list[int] = []
        layout: list[list[int]] = []
        for cursor in rows:
            epoch = self.epoch(cursor.epoch)
            members = epoch.row(cursor.row)
            layout.append(list(range(len(examples), len(examples) + len(members))))
            examples += [self._build_example(epoch.plan, i) for i in map(int, members)]
            numbers += epoch.numbers[members].tolist()
            labels += epoch.plan.label[members].tolist()
        batch = collate(examples, layout, pad_id=self.corpus.tokenizer.vocabulary.pad)
        return batch.with_examples(
            number=torch.tensor(numbers, dtype=torch.long),
            pair=torch.tensor(labels, dtype=torch.long),
            continues=_lay_out(batch, [example.continues for example in examples]),
        )

    def _plan_epoch(self, number: int) -> "Epoch":
        # With copies=k, examples repeat every k epochs; their order (below) is new in every epoch.
        version = number % self.settings.copies if self.settings.copies else number
        root = counter_rng.key(self.seed, self.length, version)
        plan = plan_examples(
            self.corpus,
            self.documents,
            self.settings,
            length=self.length,
            root=counter_rng.key(root, _EXAMPLES),
        )
        return Epoch(
            plan, self.length, root, counter_rng.key(self.seed, self.length, number, _ORDER)
        )

    def _build_example(self, plan: ExamplePlan, i: int) -> CorpusExample:
        """Build one example: [CLS] first [SEP] second [SEP]."""
        vocabulary = self.corpus.tokenizer.vocabulary
        first_length, second_length = plan.first_length.item(i), plan.second_length.item(i)
        ids = np.full(
            first_length + second_length + (3 if second_length else 2),
            vocabulary.sep,
            dtype=np.int64,
        )
        ids[0] = vocabulary.cls
        segments = np.zeros_like(ids)
        segments[first_length + 2 :] = 1
        continues = np.zeros(len(ids), dtype=bool)
        for offset, start, length in (
            (1, plan.first.item(i), first_length),
            (first_length + 2, plan.second.item(i), second_length),
        ):
            if length:
                ids[offset : offset + length] = self.corpus.tokens(start, length)
                continuing = self.corpus.continuing(start, length)
                if continuing is None:
                    continuing = self._continuation_tokens[ids[offset : offset + length]]
                continues[offset : offset + length] = continuing
                continues[offset] = False  # its word may have been cut in two
        return CorpusExample(ids, segments, continues)

    @cached_property
    def _continuation_tokens(self) -> NDArray[np.bool_]:
        """Which tokens of the vocabulary continue a word (##).  -> [V]"""
        return np.array(
            [token.startswith(CONTINUATION) for token in self.corpus.tokenizer.vocabulary.tokens]
        )


class Epoch:
    """Examples of one epoch, packed into rows."""

    def __init__(self, plan: ExamplePlan, length: int, root: int, order: int) -> None:
        self.plan = plan
        # Masks are drawn by these: numbers of examples, not of rows, so packing changes no mask.
        self.numbers = counter_rng.random_bits(counter_rng.key(root, _NUMBER), plan.first).view(
            np.int64
        )
        self.members, self.starts = shuffled_rows(plan.lengths, length, order)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, number: int) -> Ids:
        """Return the indices of the examples in a row."""
        return self.members[self.starts.item(number) : self.starts.item(number + 1)]


def shuffled_rows(lengths: Ids, row_length: int, root: int) -> tuple[Ids, Ids]:
    """Pack examples into rows in random order; return the members and where each row begins."""
    order = counter_rng.permutation(root, len(lengths))
    members: list[int] = []
    starts = [0]
    for begin in range(0, len(order), WINDOW):
        window = order[begin : begin + WINDOW]
        # Window by window, so that a row holds neighbours in the random order: packing sorts by
        # length, which must not reach over the whole epoch.
        rows = pack(lengths[window].tolist(), row_length)
        # Packing places the longest texts first, so the rows of a window are shuffled again.
        for row in map(
            int, counter_rng.permutation(counter_rng.key(root, _ROWS, begin), len(rows))
        ):
            members += window[rows[row]].tolist()
            starts.append(len(members))
    return np.array(members, dtype=np.int64), np.array(starts, dtype=np.int64)


def _lay_out(batch: Batch, values: list[NDArray[np.bool_]]) -> torch.Tensor:
    """Put one value per token of each example at its place in the batch.  -> [B, S]"""
    laid_out = np.zeros(tuple(batch.tokens.shape), dtype=bool)
    items = zip(batch.row.tolist(), batch.start.tolist(), values, strict=True)
    for row, start, value in items:
        laid_out[row, start : start + len(value)] = value
    return torch.from_numpy(laid_out)
