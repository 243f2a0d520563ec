"""Hidden states -> hidden states: one Transformer block, attention followed by feed-forward.

post-norm (BERT)    x = norm(x + part(x))
pre-norm            x = x + part(norm(x)), and one more norm after the last block
"""

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from unmask.model.attention import Attention, JointLinear, select_places
from unmask.model.config import Activation, ModelConfig
from unmask.model.decoding.cache import KVCache
from unmask.model.kernels import training
from unmask.model.positions import Positions

ReadSource = Callable[[Attention, Tensor], Tensor]  # cross-attention of a decoder block

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def norm_of(config: ModelConfig, width: int) -> nn.Module:
    """Make a layer norm or RMS norm, as the config has it."""
    if config.norm_kind == "rms":
        return nn.RMSNorm(width, eps=config.norm_epsilon)
    return nn.LayerNorm(width, eps=config.norm_epsilon, bias=config.norm_bias)


def last_norm_of(config: ModelConfig) -> nn.Module:
    """Make the norm after the last block: with post-norm none, as every block ends with one."""
    return norm_of(config, config.width) if config.norm == "pre" else nn.Identity()


def dropout_of(rate: float) -> nn.Module:
    """Make a dropout layer, or an `Identity` for a rate of 0."""
    return nn.Dropout(rate) if rate else nn.Identity()


def before_each_block(network: nn.Module, call: Callable[[], None]) -> list[RemovableHandle]:
    """Call a function before each block of a network runs, until the handles are removed."""

    def hook(block: nn.Module, inputs: object) -> None:
        call()

    blocks = [module for module in network.modules() if isinstance(module, Block)]
    return [block.register_forward_pre_hook(hook) for block in blocks]


class FeedForward(nn.Module):
    """Position-wise feed-forward network: linear, activation, linear.

    If gated (GLU, Shazeer 2020): activation(xW) * xV, then the last linear layer.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.gated
        halves = 2 if config.gated else 1
        self.inner = JointLinear(config.width, config.inner_width, parts=halves, bias=config.bias)
        self.outer = nn.Linear(config.inner_width, config.width, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each token by itself.  [B, S, D] -> [B, S, D]"""
        inner: Tensor = self.inner(x)
        if self.gated:
            gate, linear = inner.chunk(2, dim=-1)
            inner = self.activation(gate) * linear
        else:
            inner = self.activation(inner)
        out: Tensor = self.outer(inner)
        return out

    def part(self, channels: Tensor) -> "FeedForward":
        """Return a network of some inner channels: their share of the output, without its bias."""
        # Without the bias of the last layer, which the network of the other channels adds.
        out = copy.deepcopy(self)
        width = self.outer.in_features
        rows = torch.cat([channels + half * width for half in range(self.inner.parts)])
        out.inner.weight = nn.Parameter(self.inner.weight.detach()[rows])
        out.outer.weight = nn.Parameter(self.outer.weight.detach()[:, channels])
        if self.inner.bias is not None:
            out.inner.bias = nn.Parameter(self.inner.bias.detach()[rows])
            out.outer.bias = nn.Parameter(torch.zeros_like(self.outer.bias))
        return out


class Block(nn.Module):
    """Self-attention and feed-forward, each with a residual connection, a norm and dropout.

    A decoder block has cross-attention to another text in between (`cross`).
    """

    def __init__(self, config: ModelConfig, layer: int, *, cross: bool = False) -> None:
        super().__init__()
        self.attention = Attention(config, layer)
        self.cross = Attention(config, layer) if cross else None
        self.feed = FeedForward(config)
        has_norm = config.layer(layer).attention_norm
        self.attention_norm = norm_of(config, config.width) if has_norm else nn.Identity()
        self.cross_norm = norm_of(config, config.width) if cross else None
        self.feed_norm = norm_of(config, config.width)
        self.dropout = dropout_of(config.dropout)
        self.pre = config.norm == "pre"
        self.level = layer + 1  # read by the optimizer, for layer-wise learning rates

    def forward(
        self,
        x: Tensor,  # [B, S, D]
        *,
        added: Tensor | None,
        positions: Positions,
        index: Tensor,
        places: Tensor | None = None,
        cache: KVCache | None = None,
        memory_index: Tensor | None = None,
        cross_attend: ReadSource | None = None,
        layer: int | None = None,
    ) -> Tensor:  # [B, S, D]
        """Run the block; with `places`, keep only the states there after attention.  -> [N, D]

        `cross_attend` performs the cross-attention of a decoder. `Attention.forward` documents the
        other arguments.
        """
        layer_arguments = {"added": added, "positions": positions, "index": index, "layer": layer}
        cache_arguments = {"cache": cache, "memory_index": memory_index}
        attend = partial(self.attention, **layer_arguments, **cache_arguments, places=places)
        x = self._add(x, attend, self.attention_norm, places)
        # From here on x has N states if places are given: feed-forward, the larger part of the
        # work, is spared for all other tokens.
        if cross_attend is not None and self.cross is not None and self.cross_norm is not None:
            x = self._add(x, partial(cross_attend, self.cross), self.cross_norm)
        return self._add(x, self.feed, self.feed_norm)

    def _add(
        self,
        x: Tensor,
        part: Callable[[Tensor], Tensor],
        norm: nn.Module,
        places: Tensor | None = None,
    ) -> Tensor:
        if self.pre:
            return training.plus_dropped(select_places(x, places), part(norm(x)), self.dropout)
        out: Tensor = norm(training.plus_dropped(select_places(x, places), part(x), self.dropout))
        return out
