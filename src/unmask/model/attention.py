"""Multi-head attention: hidden states, additive masks and positions -> hidden states.

This is the only place where information moves between tokens: within a text by self-attention,
from another text by cross-attention. Masks and position encodings are made elsewhere and passed in.
Attention weights are not returned; register a listener to read or change them (`listening`,
`recording`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.model.config import ModelConfig
from unmask.model.decoding.cache import KVCache
from unmask.model.kernels import training
from unmask.model.positions import Positions
from unmask.model.shape import Scoring

L = TypeVar("L")
Listener = Callable[[int, Tensor], Tensor]  # layer, weights [B, H, Q, K] -> weights


class JointLinear(nn.Linear):
    """Several linear layers with the same input, computed as one matrix product.

    The number of parts is kept for optimizers that treat a matrix as a whole (Muon).
    """

    def __init__(self, width: int, part_width: int, *, parts: int, bias: bool = True) -> None:
        super().__init__(width, parts * part_width, bias=bias)
        self.parts = parts


class Observable(nn.Module):
    """Base class of modules with attention weights, which a listener can read or change."""

    def __init__(self, layer: int = 0) -> None:
        super().__init__()
        self.layer = layer
        self.listener: Listener | None = None


class Attention(Observable):
    """Scaled dot-product attention with H heads (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(layer)
        self.heads = config.heads
        self.inner_width = config.heads * config.head_width  # H * d, which may differ from D
        self.qkv = JointLinear(config.width, self.inner_width, parts=3, bias=config.bias)
        self.output = nn.Linear(self.inner_width, config.width, bias=config.bias)
        self.dropout = config.attention_dropout

    def forward(
        self,
        x: Tensor,  # [B, Q, D]
        *,
        added: Tensor | None,  # [B or 1, H or 1, Q, K] to the scores; -inf forbids attention
        positions: Positions,
        index: Tensor,  # [B, Q] position of each token
        places: Tensor | None = None,  # [N] flat indices of the queries whose output is needed
        cache: KVCache
        | None = None,  # earlier tokens, which x attends to; keys and values of x are appended
        memory_index: Tensor | None = None,  # [B or 1, K] positions of the cached tokens and of x
        layer: int | None = None,  # reported to listeners where layers share these weights
    ) -> Tensor:  # [B, Q, D], or [N, D] where places are given
        """Self-attention, over cached earlier tokens too if `cache` is given."""
        if cache is None and self._can_use_fast_kernel(x, added, positions):
            joined_qkv: Tensor = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, S, 3, H, d]
            dropout = self.dropout if self.training else 0.0
            attended = training.self_attend(joined_qkv, added, dropout, positions.turn(index))
        else:
            parts: tuple[Tensor, ...] = self.qkv(x).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            q, k = positions.rotate(q, index), positions.rotate(k, index)
            # Keys are cached after their rotation, which depends on their own position alone.
            if cache is not None:
                cache.add(k, v)
                k, v = cache.keys, cache.values
            if memory_index is None:
                memory_index = index
                if cache is not None:
                    memory_index = torch.arange(cache.length, device=x.device)[None]
            position_scores = positions.scores(q, index, memory_index)  # [B, H, Q, K] or None
            if position_scores is not None:
                added = position_scores if added is None else added + position_scores
            values = partial(positions.values, index=index, memory_index=memory_index)
            position_values = values if positions.reads_weights else None
            attended = self._attend(q, k, v, added, position_values, layer).flatten(2)
        # Only attention itself needs all tokens: the output layer is computed for chosen ones.
        output: Tensor = self.output(select_places(attended, places))
        return output

    def keep(self, states: Tensor) -> Tensor:
        """Compute keys and values of another text for `read`.  [B, K, D] -> [B, 2, H, K, d]"""
        both = self._project(states, self.inner_width)
        joined: Tensor = both.unflatten(-1, (2, self.heads, -1))
        return joined.permute(0, 2, 3, 1, 4)

    def read(self, x: Tensor, source: Tensor, added: Tensor | None) -> Tensor:
        """Cross-attention to another text, whose keys and values are from `keep`.

        n consecutive sequences may attend to the same text, as the n beams of a translation do.
        [B * n, Q, D], [B, 2, H, K, d], [B or 1, 1, Q or 1, K] -> [B * n, Q, D]
        """
        # The n sequences of a text become n times as many queries, so that its keys and values
        # are never copied for each beam.
        q = self._project(x, 0, self.inner_width)
        q = q.view(len(source), -1, self.heads, source.shape[-1]).transpose(1, 2)
        k, v = source.unbind(1)
        attended = self._attend(q, k, v, added).reshape(*x.shape[:-1], self.inner_width)
        output: Tensor = self.output(attended)
        return output

    def _project(self, x: Tensor, begin: int, end: int | None = None) -> Tensor:
        """Apply a slice of `qkv`: queries alone, or keys and values alone."""
        weight, bias = self.qkv.weight, self.qkv.bias
        return F.linear(x, weight[begin:end], None if bias is None else bias[begin:end])

    def _attend(
        self,
        q: Tensor,  # [B, H, Q, d]
        k: Tensor,  # [B, H, K, d]
        v: Tensor,  # [B, H, K, d]
        added: Tensor | None,
        values: Callable[[Tensor], Tensor] | None = None,  # weights -> more to add to the output
        layer: int | None = None,
    ) -> Tensor:  # [B, Q, H, d]
        if self.listener is None and values is None:
            dropout = self.dropout if self.training else 0.0
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout)
        else:  # written out, because a listener or the positions need the weights
            weights = self._weights(q, k, added, layer)  # [B, H, Q, K]
            attended = weights @ v  # [B, H, Q, d]
            if values is not None:
                attended = attended + values(weights)
        return attended.transpose(1, 2)

    def _can_use_fast_kernel(self, x: Tensor, added: Tensor | None, positions: Positions) -> bool:
        """Whether the fast kernel can compute this call."""
        needs_weights = self.listener is not None or positions.reads_weights
        # T5's position biases are trained through `added`, which gets no gradient in the kernel.
        trains_bias = added is not None and added.requires_grad
        return not needs_weights and not trains_bias and training.usable(x, training=self.training)

    def _weights(self, q: Tensor, k: Tensor, added: Tensor | None, layer: int | None) -> Tensor:
        scores: Tensor = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # [B, H, Q, K]
        scores = scores if added is None else scores + added
        # A query that may attend to nothing gets zeros, as in the fused kernel. Softmax over -inf
        # alone would be NaN, in the gradient too. So the scores are replaced before it, and the
        # weights after it.
        fully_masked = (scores == float("-inf")).all(dim=-1, keepdim=True)
        weights = scores.masked_fill(fully_masked, 0.0).softmax(dim=-1)
        weights = weights.masked_fill(fully_masked, 0.0)
        if self.listener is not None:
            weights = self.listener(self.layer if layer is None else layer, weights)
        return F.dropout(weights, self.dropout, self.training)


class Alignment(Observable):
    """Attention of a recurrent decoder to the encoder's states.

    Scoring is "additive" (Bahdanau et al. 2015), or "dot" or "general" (Luong et al. 2015).
    """

    def __init__(self, width: int, scoring: Scoring) -> None:
        super().__init__()
        self.key = nn.Linear(width, width, bias=False) if scoring != "dot" else None
        self.query = nn.Linear(width, width) if scoring == "additive" else None
        self.score = nn.Linear(width, 1, bias=False) if scoring == "additive" else None

    def keys(self, states: Tensor) -> Tensor:
        """Compute the keys of the source, once for all steps.  [N, K, D] -> [N, K, D]"""
        keys: Tensor = states if self.key is None else self.key(states)
        return keys

    def forward(self, query: Tensor, keys: Tensor, states: Tensor, real: Tensor) -> Tensor:
        """Attend from `query` to the real states.

        [N, Q, D], [N, K, D], [N, K, D], [N, K] -> [N, Q, D]
        """
        if self.query is None or self.score is None:
            scores = query @ keys.transpose(1, 2)  # [N, Q, K]
        else:
            hidden = torch.tanh(self.query(query)[:, :, None] + keys[:, None])  # [N, Q, K, D]
            scores = self.score(hidden)[..., 0]
        weights = scores.masked_fill(~real[:, None], float("-inf")).softmax(dim=-1)
        if self.listener is not None:  # listeners expect a dimension of heads; here there is one
            weights = self.listener(self.layer, weights[:, None])[:, 0]
        out: Tensor = weights @ states
        return out


def select_places(x: Tensor, places: Tensor | None) -> Tensor:
    """Select states by their flat indices; without `places`, return x unchanged.

    [B, S, D], [N] -> [N, D]
    """
    return x if places is None else x.flatten(0, 1)[places]


class HasListener(Protocol[L]):
    """A module with a listener of some type."""

    listener: L | None


@contextmanager
def set_listener(modules: Sequence[HasListener[L]], listener: L) -> Iterator[None]:
    """Set the listener of all modules inside the block, and restore the former ones after it."""
    previous_listeners = [module.listener for module in modules]
    for module in modules:
        module.listener = listener
    try:
        yield
    finally:
        for module, previous in zip(modules, previous_listeners, strict=True):
            module.listener = previous


@contextmanager
def listening(model: nn.Module, listener: Listener) -> Iterator[None]:
    """Pass the weights of every attention in `model` through `listener` inside the block.

    The listener gets the layer number and the weights [B, H, Q, K], and returns the weights that
    the layer continues with: unchanged ones to observe, others to intervene.
    """
    modules = [module for module in model.modules() if isinstance(module, Observable)]
    with set_listener(modules, listener):
        yield


@contextmanager
def recording(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the attention weights [B, H, Q, K] of all layers inside the block, in order.

    A listener that is already set runs first, so that the list has the weights that it returned.
    """
    weights: list[Tensor] = []

    def record(previous: Listener | None, layer: int, layer_weights: Tensor) -> Tensor:
        weights.append(layer_weights if previous is None else previous(layer, layer_weights))
        return weights[-1]

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, Observable):
                listener: Listener = partial(record, module.listener)
                stack.enter_context(set_listener([module], listener))
        yield weights


def ablating(heads: dict[int, list[int]]) -> Listener:
    """Return a listener that ablates attention heads, given by number for each layer."""

    def ablate(layer: int, weights: Tensor) -> Tensor:
        ablated = torch.tensor(heads.get(layer, []), dtype=torch.long, device=weights.device)
        return weights.index_fill(1, ablated, 0.0)

    return ablate
