"""Hidden states -> one vector per text: the only place where hidden states are pooled.

mean    the average over all tokens of a text, with [CLS] and [SEP], as in sentence-transformers
cls     the hidden state of [CLS]
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from unmask.data.batch import Batch


def first_of_texts(states: Tensor, batch: Batch) -> Tensor:
    """Select the hidden state of each [CLS] in packed rows.  [B, S, D] -> [N, D]"""
    return states[batch.row, batch.start]


def mean_of_texts(states: Tensor, batch: Batch) -> Tensor:
    """Average the hidden states of each text in packed rows.  [B, S, D] -> [N, D]"""
    places: Iterable[tuple[int, int, int]] = zip(
        batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True
    )
    # One slice per text sums the same numbers in the same order, whichever texts share the row.
    # A masked sum over whole rows would round differently next to other texts.
    return torch.stack(
        [states[row, start : start + length].mean(dim=0) for row, start, length in places]
    )


def mean_of_rows(states: Tensor, real: Tensor) -> Tensor:
    """Average the hidden states of padded rows of one text.  [B, S, D], [B, S] -> [B, D]"""
    weights = real[:, :, None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)
