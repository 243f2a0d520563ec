"""Owners and positions of tokens -> attention masks: boolean, [B or 1, 1, Q, K], True allows.

`all_of` combines masks, and `as_scores` turns a mask into the additive scores that attention
takes. None is the mask that allows everything; it costs nothing.
"""

import torch
from torch import Tensor

from unmask.model.config import ModelConfig


def same_text(owner: Tensor, *, shared: bool = False) -> Tensor | None:
    """Allow attention between tokens of the same text; padding (owner -1) attends to padding.

    Returns None if no packed row has more than one owner. `shared` skips this check.
    [B, S] -> [B, 1, S, S]
    """
    # An exported graph has no branches: it would keep the one that the example rows took, so it
    # is made with `shared`, which holds for all rows.
    if not shared and bool((owner == owner[:, :1]).all()):
        return None
    return (owner[:, :, None] == owner[:, None, :])[:, None]


def other_text(owner: Tensor, memory_owner: Tensor) -> Tensor:
    """Allow attention from each text to its counterpart, the text with the same owner and row.

    [B, T], [B, S] -> [B, 1, T, S]
    """
    # Padding may find no padding on the other side. It attends to everything, so that no query is
    # without keys and no softmax is over -inf alone.
    same_owner = owner[:, :, None] == memory_owner[:, None, :]
    return (same_owner | (owner < 0)[:, :, None])[:, None]


def causal(index: Tensor, memory_index: Tensor | None = None) -> Tensor:
    """Allow attention to keys at the query's own position or before it.

    [B, Q], [B, K] -> [B, 1, Q, K]
    """
    # By position in the text, not in the row: packed texts and padded caches need no other rule.
    memory_index = index if memory_index is None else memory_index
    return (index[:, :, None] >= memory_index[:, None, :])[:, None]


def window(index: Tensor, reach: int, memory_index: Tensor | None = None) -> Tensor:
    """Allow attention to keys at most `reach` positions away, on both sides.

    [B, Q], [B, K] -> [B, 1, Q, K]
    """
    memory_index = index if memory_index is None else memory_index
    return ((index[:, :, None] - memory_index[:, None, :]).abs() <= reach)[:, None]


def all_of(*masks: Tensor | None) -> Tensor | None:
    """Combine masks: allow what every mask allows; None allows everything."""
    allowed: Tensor | None = None
    for mask in masks:
        if mask is not None:
            allowed = mask if allowed is None else allowed & mask
    return allowed


def of(config: ModelConfig, owner: Tensor, index: Tensor, *, shared: bool = False) -> Tensor | None:
    """Return the mask that a config needs in all layers.  [B, S], [B, S] -> [B, 1, S, S]"""
    return all_of(
        same_text(owner, shared=shared),
        causal(index) if config.causal else None,
        window(index, config.window) if config.window else None,
    )


def as_scores(allowed: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Join a mask and a position bias into scores to add: -inf where attention is not allowed.

    [B or 1, 1, Q, K], [B or 1, H, Q, K] -> [B or 1, H or 1, Q, K]
    """
    # The caller makes this once for all layers with the same mask: given a boolean mask, torch's
    # fused kernel would convert it to scores again in every layer.
    if allowed is None:
        return None if bias is None else bias.to(dtype)
    if bias is None:
        bias = torch.zeros((), dtype=dtype, device=allowed.device)
    return bias.to(dtype).masked_fill(~allowed, float("-inf"))
