"""Labelled texts -> rows -> batches: what fine-tuning reads, as a function of a cursor."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from unmask.data import draws
from unmask.data.batches import Batch, collate
from unmask.data.corpus import Ids
from unmask.data.packing import pack
from unmask.data.stream import Cursor, shuffled_rows


@dataclass(frozen=True)
class Labelled:
    """One text or pair, as the model reads it, with its answer."""

    ids: Sequence[int]
    segments: Sequence[int]
    label: int


@dataclass
class LabelledStream:
    """The rows of labelled examples, epoch after epoch, each epoch in another order."""

    examples: Sequence[Labelled]
    seed: int
    length: int  # of a row; no example is longer
    pad_id: int
    _rows: dict[int, tuple[Ids, Ids]] = field(default_factory=dict)

    def take(self, cursor: Cursor, rows: int) -> tuple[list[list[Labelled]], Cursor]:
        """The examples of the next so many rows, and where to go on."""
        taken: list[list[Labelled]] = []
        while len(taken) < rows:
            members, starts = self._epoch(cursor.epoch)
            here = members[starts[cursor.row] : starts[cursor.row + 1]]
            taken.append([self.examples[int(i)] for i in here])
            last = cursor.row + 2 == len(starts)
            cursor = Cursor(cursor.epoch + 1, 0) if last else replace(cursor, row=cursor.row + 1)
        return taken, cursor

    def batch(self, rows: list[list[Labelled]]) -> Batch:
        """Rows as tensors, with the labels."""
        return label_batch(rows, pad_id=self.pad_id)

    def in_order(self, batch_rows: int) -> list[Batch]:
        """Every example once, packed: for evaluation."""
        lengths = [len(example.ids) for example in self.examples]
        rows = [[self.examples[i] for i in row] for row in pack(lengths, self.length)]
        groups = [rows[i : i + batch_rows] for i in range(0, len(rows), batch_rows)]
        return [label_batch(group, pad_id=self.pad_id) for group in groups]

    def _epoch(self, number: int) -> tuple[Ids, Ids]:
        if number not in self._rows:
            lengths = np.array([len(example.ids) for example in self.examples])
            self._rows.clear()
            root = draws.key(self.seed, number)
            self._rows[number] = shuffled_rows(lengths, self.length, root)
        return self._rows[number]


def label_batch(rows: list[list[Labelled]], *, pad_id: int) -> Batch:
    """Lay rows of labelled examples out as tensors."""
    examples = [example for row in rows for example in row]
    counts = np.cumsum([0, *(len(row) for row in rows)])
    layout = [list(range(counts[i], counts[i + 1])) for i in range(len(rows))]
    batch = collate(examples, layout, pad_id=pad_id)
    return replace(batch, labels={"label": torch.tensor([e.label for e in examples])})
