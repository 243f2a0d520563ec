"""Matrix products in 8 bits, with what they need to know of their inputs.

Weights have a scale for each output channel, inputs one scale for all. In every BERT a few input
channels are far wider than the others, and would leave those a handful of steps. So a layer divides
each input by a factor, which its weights take over. Inside the feed-forward part, where there are
most channels, the few wide ones are a small feed-forward part of their own instead, in full
precision. Either way the rest has all 256 steps.

    x W + b  ~  s_x s_w (round(x / f / s_x) round(f W / s_w)) + b
    feed(x)  =  feed[all but wide](x) + feed[wide](x), only the first in 8 bits

Weights use 7 bits. Processors without instructions for int8 add two products in 16 bits, where more
would overflow; for one scale per channel it is enough.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from unmask.model.block import Block, FeedForward
from unmask.model.network import Network

FAR, WIDE = 2.5, 8  # a wide channel, beside the middle one; how many there are at most
MOST, STEPS = 63, 255  # of a weight, of an input


@dataclass
class InputRange:
    """The range of every input channel of a layer, so far."""

    low: Tensor
    high: Tensor

    def widen(self, x: Tensor) -> None:
        """[..., K]"""
        flat = x.detach().flatten(0, -2)
        self.low = torch.minimum(self.low, flat.amin(dim=0))
        self.high = torch.maximum(self.high, flat.amax(dim=0))

    @property
    def reach(self) -> Tensor:
        """[K]"""
        return torch.maximum(self.low.abs(), self.high.abs())

    def wide(self) -> Tensor:
        """The channels that are far wider than the middle one, at most so many.  -> [W]"""
        reach = self.reach
        widest = reach.topk(min(WIDE, len(reach))).indices.sort().values
        return widest[reach[widest] > FAR * reach.median()]

    def without(self, channels: Tensor) -> "InputRange":
        """As if nothing had been seen there."""
        return InputRange(
            self.low.index_fill(0, channels, 0.0), self.high.index_fill(0, channels, 0.0)
        )


class Int8Linear(nn.Module):
    """A linear layer in 8 bits.

    Run by torch it is as exact and as slow as full precision; exported, a runtime multiplies bytes.
    """

    weight: Tensor  # [K, N] int8
    weight_scale: Tensor  # [N]
    bias: Tensor  # [N]
    shrink: Tensor  # [K] one over the factors, or [0]: there are none
    scale: Tensor  # []
    zero: Tensor  # [] uint8

    def __init__(self, linear: nn.Linear, seen: InputRange, *, factors: bool = True) -> None:
        super().__init__()
        full = linear.weight.detach()  # [N, K]
        factor = torch.ones(linear.in_features)
        if factors and len(seen.wide()):
            factor = (seen.reach.clamp(min=1e-5) / full.abs().amax(dim=0).clamp(min=1e-5)).sqrt()
        low = float((seen.low / factor).min().clamp(max=0.0))
        high = float((seen.high / factor).max().clamp(min=0.0))
        scale = max((high - low) / STEPS, 1e-8)
        weight = full * factor
        weight_scale = (weight.abs().amax(dim=1) / MOST).clamp(min=1e-12)
        bias = full.new_zeros(len(full)) if linear.bias is None else linear.bias.detach().clone()
        parts = {
            "weight": (weight / weight_scale[:, None]).round().to(torch.int8).T.contiguous(),
            "weight_scale": weight_scale,
            "bias": bias,
            "shrink": 1.0 / factor if (factor != 1.0).any() else torch.zeros(0),
            "scale": torch.tensor(scale),
            "zero": torch.tensor(round(-low / scale), dtype=torch.uint8),
        }
        for name, tensor in parts.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]"""
        if len(self.shrink):
            x = x * self.shrink
        return self._exported(x) if torch.onnx.is_in_onnx_export() else self._spelled_out(x)

    def _spelled_out(self, x: Tensor) -> Tensor:
        zero = self.zero.float()
        bytes_ = ((x / self.scale).round() + zero).clamp(0, STEPS) - zero
        return bytes_ @ self.weight.float() * (self.scale * self.weight_scale) + self.bias

    def _exported(self, x: Tensor) -> Tensor:
        """The same as two operators of ONNX Runtime."""
        operator = torch.onnx.ops.symbolic
        inputs = x, self.scale, self.zero
        bytes_ = operator("QuantizeLinear", inputs, dtype=torch.uint8, shape=x.shape)
        return operator(
            "com.microsoft::MatMulIntegerToFloat",
            (bytes_, self.weight, self.scale, self.weight_scale, self.zero, None, self.bias),
            dtype=torch.float32,
            shape=(*x.shape[:-1], self.weight.shape[1]),
            version=1,
        )


class Int8FeedForward(nn.Module):
    """A feed-forward part in 8 bits, but for the wide channels inside it."""

    def __init__(self, feed: FeedForward, inner: InputRange, outer: InputRange) -> None:
        super().__init__()
        wide = outer.wide()
        self.few = feed.part(wide) if len(wide) else None
        self.rest = copy.deepcopy(feed)
        with torch.no_grad():
            self.rest.outer.weight[:, wide] = 0.0
        last = Int8Linear(self.rest.outer, outer.without(wide), factors=False)
        self.rest.register_module("inner", Int8Linear(feed.inner, inner))
        self.rest.register_module("outer", last)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        out: Tensor = self.rest(x)
        return out if self.few is None else out + self.few(x)


@contextmanager
def observing(network: Network) -> Iterator[dict[str, InputRange]]:
    """Inside the block, note what the linear layers of the blocks are given."""
    seen: dict[str, InputRange] = {}
    handles = []

    def watch(own: InputRange, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        own.widen(inputs[0])

    layers: Iterator[tuple[str, nn.Module]] = network.encoder.blocks.named_modules()
    for name, layer in layers:
        if isinstance(layer, nn.Linear):
            seen[name] = InputRange(torch.zeros(layer.in_features), torch.zeros(layer.in_features))
            handles.append(layer.register_forward_pre_hook(partial(watch, seen[name])))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def quantized(network: Network, seen: dict[str, InputRange]) -> Network:
    """A copy whose blocks multiply in 8 bits."""
    out = copy.deepcopy(network)
    for number, block in enumerate(out.encoder.blocks):
        assert isinstance(block, Block), "only the blocks of a Transformer can be in 8 bits"
        own = block.attention
        for name, linear in (("qkv", own.qkv), ("output", own.output)):
            own.register_module(name, Int8Linear(linear, seen[f"{number}.attention.{name}"]))
        inner, outer = (seen[f"{number}.feed.{name}"] for name in ("inner", "outer"))
        block.register_module("feed", Int8FeedForward(block.feed, inner, outer))
    return out
