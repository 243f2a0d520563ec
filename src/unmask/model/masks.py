"""Who may look at whom. A mask is boolean, [B or 1, 1, Q, K]; True means "may look".

Masks are built here, joined with `all_of`, and turned into what attention adds to its scores by
`as_scores`. None is the mask that lets everyone look at everything, and costs nothing.
"""

import torch
from torch import Tensor

from unmask.model.config import ModelConfig


def same_text(owner: Tensor, *, shared: bool = False) -> Tensor | None:
    """A token sees the tokens of its own text; padding (owner -1) sees padding.

    None when every row is one text: then there is nobody to be kept apart. A graph that is made
    for all rows says that they are `shared` without looking.
    [B, S] -> [B, 1, S, S]
    """
    if not shared and bool((owner == owner[:, :1]).all()):
        return None
    return (owner[:, :, None] == owner[:, None, :])[:, None]


def other_text(owner: Tensor, memory_owner: Tensor) -> Tensor:
    """Each text of a row sees its own counterpart in the other rows; padding sees everything.

    [B, T], [B, S] -> [B, 1, T, S]
    """
    own = owner[:, :, None] == memory_owner[:, None, :]
    return (own | (owner < 0)[:, :, None])[:, None]


def causal(index: Tensor, memory_index: Tensor | None = None) -> Tensor:
    """Each token sees itself and what came before it, among the same tokens or others.

    [B, Q], [B, K] -> [B, 1, Q, K]
    """
    memory_index = index if memory_index is None else memory_index
    return (index[:, :, None] >= memory_index[:, None, :])[:, None]


def window(index: Tensor, reach: int, memory_index: Tensor | None = None) -> Tensor:
    """Each token sees those at most `reach` places away, on both sides.

    [B, Q], [B, K] -> [B, 1, Q, K]
    """
    memory_index = index if memory_index is None else memory_index
    return ((index[:, :, None] - memory_index[:, None, :]).abs() <= reach)[:, None]


def all_of(*masks: Tensor | None) -> Tensor | None:
    """What every one of the masks allows."""
    allowed: Tensor | None = None
    for mask in masks:
        if mask is not None:
            allowed = mask if allowed is None else allowed & mask
    return allowed


def of(config: ModelConfig, owner: Tensor, index: Tensor, *, shared: bool = False) -> Tensor | None:
    """The mask that a config asks for in all layers.  [B, S], [B, S] -> [B, 1, S, S]"""
    return all_of(
        same_text(owner, shared=shared),
        causal(index) if config.causal else None,
        window(index, config.window) if config.window else None,
    )


def as_scores(allowed: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What to add to attention scores: the bias of positions, and -inf where looking is barred.

    Made once for all layers that have the same mask.
    [B or 1, 1, Q, K], [B or 1, H, Q, K] -> [B or 1, H or 1, Q, K]
    """
    if allowed is None:
        return None if bias is None else bias.to(dtype)
    if bias is None:
        bias = torch.zeros((), dtype=dtype, device=allowed.device)
    return bias.to(dtype).masked_fill(~allowed, float("-inf"))
