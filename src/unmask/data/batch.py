"""Examples -> batches: packed rows as tensors, ready for an encoder.

inputs    by name, [B, S]: `tokens`, with `pad_id` where a row is not full; `segments`, 0 for the
          first text of a pair and 1 for the second
index     [B, S]   position of a token in its own text
owner     [B, S]   which text of its row a token belongs to; -1 is padding
row, start, length [N]   where each text lies
record    [N]      which record a text belongs to, if a record can have several texts

also      by name: batches of the same records in another form, as the `target` of a translation
labels    by name: what an objective must predict, of any shape
counts    by loss term: how many predictions the loss is a sum of
seed      of dropout, and of what an objective draws for the batch as a whole

Only in pre-training: number [N], by which the random numbers of an example are drawn; continues
[B, S], whether a token continues the word before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.data.packing import RowPlan, cheapest_rows

Numbers = Sequence[int] | NDArray[np.integer[Any]]


class Tokenized(Protocol):
    """Anything with token ids."""

    @property
    def ids(self) -> Numbers:
        """Token ids."""


class Example(Tokenized, Protocol):
    """Anything with ids and segments of the same length: one text or one pair."""

    @property
    def segments(self) -> Numbers:
        """Segment ids: 0 for the first text of a pair, 1 for the second."""


@dataclass(frozen=True)
class Batch:
    """Packed rows of texts, and where each text lies; texts are numbered in the order given."""

    inputs: dict[str, Tensor]
    index: Tensor
    owner: Tensor
    row: Tensor
    start: Tensor
    length: Tensor
    record: Tensor | None = None
    also: "dict[str, Batch]" = field(default_factory=dict)
    labels: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    number: Tensor | None = None
    continues: Tensor | None = None
    seed: int = 0

    @property
    def tokens(self) -> Tensor:
        """Token ids.  -> [B, S]"""
        return self.inputs["tokens"]

    @property
    def segments(self) -> Tensor:
        """Segment ids.  -> [B, S]"""
        return self.inputs["segments"]

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name; those of `also` have the name of their form as a prefix."""
        others = {
            f"{name}.{key}": value
            for name, batch in self.also.items()
            for key, value in batch.tensors().items()
        }
        return {**self.inputs, **self._tensor_fields(), **self.labels, **others}

    def _tensor_fields(self) -> dict[str, Tensor]:
        fields: dict[str, object] = vars(self)
        return {name: value for name, value in fields.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device."""
        fields: dict[str, Any] = {
            name: value.to(device) for name, value in self._tensor_fields().items()
        }
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        labels = {name: value.to(device) for name, value in self.labels.items()}
        also = {name: batch.to(device) for name, batch in self.also.items()}
        return replace(self, inputs=inputs, labels=labels, also=also, **fields)

    def with_inputs(self, **inputs: Tensor) -> "Batch":
        """Return a copy with some inputs replaced or added."""
        return replace(self, inputs={**self.inputs, **inputs})

    def with_examples(self, *, number: Tensor, pair: Tensor, continues: Tensor) -> "Batch":
        """Return a copy with what pre-training adds: draw numbers, pair labels, word boundaries."""
        return replace(self, number=number, continues=continues, labels={"pair": pair})

    def with_labels(self, count: int, name: str, **labels: Tensor) -> "Batch":
        """Return a copy with the labels of one more loss term, and how many of them there are."""
        return replace(self, labels={**self.labels, **labels}, counts={**self.counts, name: count})

    @property
    def begins(self) -> Tensor:
        """Index of each text's first token in the flattened batch.  -> [N]"""
        return self.row * self.index.shape[1] + self.start

    def texts(self) -> Tensor:
        """Return which text each token belongs to, -1 for padding.  -> [B, S]"""
        order = self.begins.argsort()  # texts in reading order
        # Owners count from 0 in each row: add the number of texts in all rows before it.
        texts_before = torch.bincount(self.row, minlength=len(self.index)).cumsum(0).roll(1)
        texts_before[0] = 0
        # Padding has owner -1; clamped to any valid index, and set to -1 again below.
        positions = (texts_before[:, None] + self.owner).clamp(min=0)
        return order[positions].where(self.owner >= 0, -1)

    @property
    def real(self) -> int:
        """Number of tokens that are not padding."""
        return int(self.length.sum())


def collate(examples: Sequence[Example], rows: RowPlan, *, pad_id: int) -> Batch:
    """Lay out examples in the planned rows; each example must be in exactly one row."""
    lengths = [len(example.ids) for example in examples]
    # As wide as the fullest row, not as the limit of the plan: the rest would be padding.
    width = max((sum(lengths[text] for text in texts) for texts in rows), default=0)
    tokens = np.full((len(rows), width), pad_id, dtype=np.int64)
    segments, index = np.zeros_like(tokens), np.zeros_like(tokens)
    owner = np.full_like(tokens, -1)
    row, start = (np.empty(len(examples), dtype=np.int64) for _ in range(2))
    for row_index, texts in enumerate(rows):
        offset = 0
        for owner_index, text in enumerate(texts):
            span = slice(offset, offset + lengths[text])
            tokens[row_index, span] = examples[text].ids
            segments[row_index, span] = examples[text].segments
            index[row_index, span] = np.arange(lengths[text])
            owner[row_index, span] = owner_index
            row[text], start[text] = row_index, offset
            offset += lengths[text]
    inputs = {"tokens": torch.from_numpy(tokens), "segments": torch.from_numpy(segments)}
    layout = (index, owner, row, start, np.array(lengths, dtype=np.int64))
    return Batch(inputs, *map(torch.from_numpy, layout))  # type: ignore[arg-type]


def pack_and_collate(examples: Sequence[Example], *, pad_id: int) -> Batch:
    """Pack examples into the rows that cost least, and collate them."""
    return collate(
        examples, cheapest_rows([len(example.ids) for example in examples]), pad_id=pad_id
    )
