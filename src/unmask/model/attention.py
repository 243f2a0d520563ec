"""Multi-head attention: the only place where one token reads another.

In self-attention the tokens of a text read each other; in cross-attention they read the states of
another text. What is added to the scores says who may be read. Every mask and every position scheme
comes from outside. The weights are not returned: register a listener to read or change them
(`listening`, `recording`).
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
    """Several layers of one input, computed as one product."""

    def __init__(self, width: int, each: int, *, parts: int, bias: bool = True) -> None:
        super().__init__(width, parts * each, bias=bias)
        self.parts = parts


class Observable(nn.Module):
    """Whatever has weights that somebody may listen to."""

    def __init__(self, layer: int = 0) -> None:
        super().__init__()
        self.layer = layer
        self.listener: Listener | None = None


class Attention(Observable):
    """Scaled dot-product attention with H heads (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(layer)
        self.heads = config.heads
        self.inner_width = config.heads * config.head_width  # of all heads: H * d
        self.qkv = JointLinear(config.width, self.inner_width, parts=3, bias=config.bias)
        self.output = nn.Linear(self.inner_width, config.width, bias=config.bias)
        self.dropout = config.attention_dropout

    def forward(
        self,
        x: Tensor,  # [B, Q, D]
        *,
        added: Tensor | None,  # [B or 1, H or 1, Q, K] to the scores; -inf bars
        positions: Positions,
        index: Tensor,  # [B, Q] position of each token
        places: Tensor | None = None,  # [N] of all B x Q queries, those whose answer is wanted
        kept: KVCache
        | None = None,  # the tokens before x, which are read too; x is put behind them
        memory_index: Tensor | None = None,  # [B or 1, K] positions of those tokens and of x
        layer: int | None = None,  # its number, where several layers share these weights
    ) -> Tensor:  # [B, Q, D], or [N, D] where places are given
        """Let the tokens read each other."""
        if kept is None and self._may_be_fast(x, added, positions):
            joined: Tensor = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, S, 3, H, d]
            rate = self.dropout if self.training else 0.0
            mixed = training.self_attend(joined, added, rate, positions.turn(index))
        else:
            parts: tuple[Tensor, ...] = self.qkv(x).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            q, k = positions.rotate(q, index), positions.rotate(k, index)
            if kept is not None:
                kept.add(k, v)
                k, v = kept.keys, kept.values
            if memory_index is None:
                memory_index = index
                if kept is not None:
                    memory_index = torch.arange(kept.length, device=x.device)[None]
            shift = positions.scores(q, index, memory_index)  # [B, H, Q, K] or None
            if shift is not None:
                added = shift if added is None else added + shift
            values = partial(positions.values, index=index, memory_index=memory_index)
            more = values if positions.reads_weights else None
            mixed = self._mixed(q, k, v, added, more, layer).flatten(2)
        output: Tensor = self.output(select_places(mixed, places))
        return output

    def keep(self, states: Tensor) -> Tensor:
        """The keys and values of another text, for `read`.  [B, K, D] -> [B, 2, H, K, d]"""
        both = self._projected(states, self.inner_width)
        joined: Tensor = both.unflatten(-1, (2, self.heads, -1))
        return joined.permute(0, 2, 3, 1, 4)

    def read(self, x: Tensor, source: Tensor, added: Tensor | None) -> Tensor:
        """Let tokens read another text, by what `keep` made of it.

        Several rows in a row may read the same text.
        [B * n, Q, D], [B, 2, H, K, d], [B or 1, 1, Q or 1, K] -> [B * n, Q, D]
        """
        q = self._projected(x, 0, self.inner_width)
        q = q.view(len(source), -1, self.heads, source.shape[-1]).transpose(1, 2)
        k, v = source.unbind(1)
        mixed = self._mixed(q, k, v, added).reshape(*x.shape[:-1], self.inner_width)
        output: Tensor = self.output(mixed)
        return output

    def _projected(self, x: Tensor, first: int, last: int | None = None) -> Tensor:
        """The queries alone, or the keys and values: some of the numbers that `qkv` makes."""
        weight, bias = self.qkv.weight, self.qkv.bias
        return F.linear(x, weight[first:last], None if bias is None else bias[first:last])

    def _mixed(
        self,
        q: Tensor,  # [B, H, Q, d]
        k: Tensor,  # [B, H, K, d]
        v: Tensor,  # [B, H, K, d]
        added: Tensor | None,
        values: Callable[[Tensor], Tensor] | None = None,  # weights -> more to read
        layer: int | None = None,
    ) -> Tensor:  # [B, Q, H, d]
        if self.listener is None and values is None:
            rate = self.dropout if self.training else 0.0
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=rate)
        else:  # the same sum written out, because someone reads the weights
            weights = self._weights(q, k, added, layer)  # [B, H, Q, K]
            mixed = weights @ v  # [B, H, Q, d]
            if values is not None:
                mixed = mixed + values(weights)
        return mixed.transpose(1, 2)

    def _may_be_fast(self, x: Tensor, added: Tensor | None, positions: Positions) -> bool:
        """Nothing is asked that only the spelled-out way can do."""
        asked = self.listener is not None or positions.reads_weights
        trained = added is not None and added.requires_grad
        return not asked and not trained and training.usable(x, training=self.training)

    def _weights(self, q: Tensor, k: Tensor, added: Tensor | None, layer: int | None) -> Tensor:
        scores: Tensor = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # [B, H, Q, K]
        scores = scores if added is None else scores + added
        # A query that may see nothing reads zero, as in the fused kernel. Softmax over -inf alone
        # would be NaN, in the gradient too, so such a query gets any scores and loses its weights.
        blind = (scores == float("-inf")).all(dim=-1, keepdim=True)
        weights = scores.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)
        if self.listener is not None:
            weights = self.listener(self.layer if layer is None else layer, weights)
        return F.dropout(weights, self.dropout, self.training)


class Alignment(Observable):
    """How much a recurrent decoder's state has to do with each state of the encoder.

    additive: Bahdanau et al. 2015; dot and general: Luong et al. 2015.
    """

    def __init__(self, width: int, scoring: Scoring) -> None:
        super().__init__()
        self.key = nn.Linear(width, width, bias=False) if scoring != "dot" else None
        self.query = nn.Linear(width, width) if scoring == "additive" else None
        self.score = nn.Linear(width, 1, bias=False) if scoring == "additive" else None

    def keys(self, states: Tensor) -> Tensor:
        """What of the source is compared; the same at every step.  [N, K, D] -> [N, K, D]"""
        keys: Tensor = states if self.key is None else self.key(states)
        return keys

    def forward(self, query: Tensor, keys: Tensor, states: Tensor, real: Tensor) -> Tensor:
        """[N, Q, D], [N, K, D], [N, K, D], [N, K] -> [N, Q, D]"""
        if self.query is None or self.score is None:
            scores = query @ keys.transpose(1, 2)  # [N, Q, K]
        else:
            mixed = torch.tanh(self.query(query)[:, :, None] + keys[:, None])  # [N, Q, K, D]
            scores = self.score(mixed)[..., 0]
        weights = scores.masked_fill(~real[:, None], float("-inf")).softmax(dim=-1)
        if self.listener is not None:
            weights = self.listener(self.layer, weights[:, None])[:, 0]
        out: Tensor = weights @ states
        return out


def select_places(x: Tensor, places: Tensor | None) -> Tensor:
    """The states in some places of all rows; all of them, as they are, without places.

    [B, S, D], [N] -> [N, D]
    """
    return x if places is None else x.flatten(0, 1)[places]


class HasListener(Protocol[L]):
    """A module with something to listen to."""

    listener: L | None


@contextmanager
def set_listener(modules: Sequence[HasListener[L]], listener: L) -> Iterator[None]:
    """Inside the block, the modules have this listener."""
    before = [module.listener for module in modules]
    for module in modules:
        module.listener = listener
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            module.listener = old


@contextmanager
def listening(model: nn.Module, listener: Listener) -> Iterator[None]:
    """Inside the block, every attention in `model` passes its weights through `listener`.

    The listener gets the layer's number and its weights [B, H, Q, K], and returns the weights to
    go on with: the same to look, others to change them.
    """
    with set_listener([own for own in model.modules() if isinstance(own, Observable)], listener):
        yield


@contextmanager
def recording(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the weights in the order the layers run: one [B, H, Q, K] tensor each.

    A listener that is there already goes first.
    """
    weights: list[Tensor] = []

    def keep(before: Listener | None, layer: int, seen: Tensor) -> Tensor:
        weights.append(seen if before is None else before(layer, seen))
        return weights[-1]

    with ExitStack() as stack:
        for own in model.modules():
            if isinstance(own, Observable):
                listener: Listener = partial(keep, own.listener)
                stack.enter_context(set_listener([own], listener))
        yield weights


def ablating(heads: dict[int, list[int]]) -> Listener:
    """Return a listener that silences heads: layer -> the numbers of its mute heads."""

    def mute(layer: int, weights: Tensor) -> Tensor:
        silent = torch.tensor(heads.get(layer, []), dtype=torch.long, device=weights.device)
        return weights.index_fill(1, silent, 0.0)

    return mute
