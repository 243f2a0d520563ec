"""Examples -> batches: packed rows as tensors, ready for an encoder.

tokens    [B, S]   ids, `pad_id` where a row is not full
segments  [B, S]   0 for the first text of a pair, 1 for the second
index     [B, S]   the position of a token in its own text
owner     [B, S]   which text of its row a token belongs to, -1 is padding
row, start, length [N]   where each text lies
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from unmask.data.packing import Rows


class Example(Protocol):
    """Anything with ids and segments of one length: one text or one pair."""

    @property
    def ids(self) -> Sequence[int]:
        """The tokens."""

    @property
    def segments(self) -> Sequence[int]:
        """0 for the first text of a pair, 1 for the second."""


@dataclass(frozen=True)
class Batch:
    """Rows of texts, and where each text lies; the texts are numbered as they were given."""

    tokens: Tensor
    segments: Tensor
    index: Tensor
    owner: Tensor
    row: Tensor
    start: Tensor
    length: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(**{name: value.to(device) for name, value in vars(self).items()})


def collate(examples: Sequence[Example], rows: Rows, *, pad_id: int) -> Batch:
    """Lay examples out in rows as planned; each example is in exactly one row."""
    lengths = np.array([len(example.ids) for example in examples], dtype=np.int64)
    width = max((int(lengths[texts].sum()) for texts in rows), default=0)
    tokens = np.full((len(rows), width), pad_id, dtype=np.int64)
    segments, index = np.zeros_like(tokens), np.zeros_like(tokens)
    owner = np.full_like(tokens, -1)
    row, start = np.empty_like(lengths), np.empty_like(lengths)
    for r, texts in enumerate(rows):
        at = 0
        for which, text in enumerate(texts):
            stretch = slice(at, at + lengths[text])
            tokens[r, stretch] = examples[text].ids
            segments[r, stretch] = examples[text].segments
            index[r, stretch] = np.arange(lengths[text])
            owner[r, stretch] = which
            row[text], start[text] = r, at
            at += lengths[text]
    parts = (tokens, segments, index, owner, row, start, lengths)
    return Batch(*(torch.from_numpy(part) for part in parts))
