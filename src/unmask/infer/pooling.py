"""Hidden states -> one vector for each text: the only place where states are pooled.

mean    the average over all tokens of the text, [CLS] and [SEP] too (sentence-transformers)
cls     the state of [CLS]
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from unmask.data.batch import Batch


def first_of_texts(states: Tensor, batch: Batch) -> Tensor:
    """The state of each text's [CLS] in packed rows.  [B, S, D] -> [N, D]"""
    return states[batch.row, batch.start]


def mean_of_texts(states: Tensor, batch: Batch) -> Tensor:
    """The mean state of each text in packed rows.  [B, S, D] -> [N, D]"""
    places: Iterable[tuple[int, int, int]] = zip(
        batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True
    )
    # A slice for each text adds the same numbers in the same order, whoever shares its row.
    return torch.stack(
        [states[row, start : start + length].mean(dim=0) for row, start, length in places]
    )


def mean_of_rows(states: Tensor, real: Tensor) -> Tensor:
    """The mean state of each padded row, of one text each.  [B, S, D], [B, S] -> [B, D]"""
    weights = real[:, :, None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)
