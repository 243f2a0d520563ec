"""Network and ranges of its inputs -> a network whose blocks multiply in int8.

Weights have one scale per output channel, inputs a single scale, fixed beforehand. In every BERT, a
few input channels have a far larger range than the others, which would be left with a handful of
the 256 steps. There are two remedies. A layer can divide each input channel by a factor and
multiply its weights by it. Inside the feed-forward network, which has most channels, the few wide
channels become a small feed-forward network of their own in full precision.

    x W + b  ~  s_x s_w (round(x / f / s_x) round(f W / s_w)) + b
    feed(x)  =  feed[all but wide](x) + feed[wide](x), only the first in 8 bits

Weights use 7 bits. CPUs without int8 instructions add two products in 16 bits, which 8-bit weights
would overflow (255 * 63 * 2 < 32,768). With one scale per channel, 7 bits are enough.
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

WIDE_RATIO, MAX_WIDE = (
    2.5,
    8,
)  # a wide channel has 2.5 times the median range; at most 8 are treated as wide
WEIGHT_MAX, STEPS = (
    63,
    255,
)  # largest quantised weight (7 bits, signed) and input (8 bits, unsigned)


@dataclass
class InputRange:
    """Observed range of each input channel of a layer."""

    low: Tensor
    high: Tensor

    def widen(self, x: Tensor) -> None:
        """Extend the ranges by those of another input.  [..., K]"""
        flat = x.detach().flatten(0, -2)
        self.low = torch.minimum(self.low, flat.amin(dim=0))
        self.high = torch.maximum(self.high, flat.amax(dim=0))

    @property
    def reach(self) -> Tensor:
        """Largest absolute value of each channel.  [K]"""
        return torch.maximum(self.low.abs(), self.high.abs())

    def wide(self) -> Tensor:
        """Return the channels with a range far above the median, at most `MAX_WIDE`.  -> [W]"""
        reach = self.reach
        widest = reach.topk(min(MAX_WIDE, len(reach))).indices.sort().values
        return widest[reach[widest] > WIDE_RATIO * reach.median()]

    def without(self, channels: Tensor) -> "InputRange":
        """Return the ranges with those of some channels reset to zero."""
        return InputRange(
            self.low.index_fill(0, channels, 0.0), self.high.index_fill(0, channels, 0.0)
        )


class Int8Linear(nn.Module):
    """Linear layer with int8 weights and uint8 inputs.

    In torch it computes the quantised result in float32 products, no faster than full precision.
    Exported to ONNX, it becomes operators that multiply bytes.
    """

    weight: Tensor  # [K, N] int8
    weight_scale: Tensor  # [N]
    bias: Tensor  # [N]
    shrink: Tensor  # [K] inverse factors of the input channels, or [0] if there are none
    scale: Tensor  # []
    zero: Tensor  # [] uint8

    def __init__(self, linear: nn.Linear, observed: InputRange, *, factors: bool = True) -> None:
        super().__init__()
        full_weight = linear.weight.detach()  # [N, K]
        factor = torch.ones(linear.in_features)
        if factors and len(observed.wide()):  # the extra pass over the inputs is only worth it then
            # The root of the ratio moves half of a channel's width, on a log scale, from the inputs
            # to the weights.
            largest_weight = full_weight.abs().amax(dim=0)
            factor = (observed.reach.clamp(min=1e-5) / largest_weight.clamp(min=1e-5)).sqrt()
        # The range includes 0, so that the zero point is a byte and 0 is represented exactly.
        low = float((observed.low / factor).min().clamp(max=0.0))
        high = float((observed.high / factor).max().clamp(min=0.0))
        scale = max((high - low) / STEPS, 1e-8)
        weight = full_weight * factor
        weight_scale = (weight.abs().amax(dim=1) / WEIGHT_MAX).clamp(min=1e-12)
        bias = (
            full_weight.new_zeros(len(full_weight))
            if linear.bias is None
            else linear.bias.detach().clone()
        )
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
        """Apply the layer.  [..., K] -> [..., N]"""
        if len(self.shrink):
            x = x * self.shrink
        return self._exported(x) if torch.onnx.is_in_onnx_export() else self._simulated(x)

    def _simulated(self, x: Tensor) -> Tensor:
        # Whole numbers in float32 stand for the bytes that the exported operators multiply.
        zero = self.zero.float()
        quantized_x = ((x / self.scale).round() + zero).clamp(0, STEPS) - zero
        return quantized_x @ self.weight.float() * (self.scale * self.weight_scale) + self.bias

    def _exported(self, x: Tensor) -> Tensor:
        """Emit two operators of ONNX Runtime that quantise the inputs and multiply bytes."""
        operator = torch.onnx.ops.symbolic
        inputs = x, self.scale, self.zero
        quantized_x = operator("QuantizeLinear", inputs, dtype=torch.uint8, shape=x.shape)
        return operator(
            "com.microsoft::MatMulIntegerToFloat",
            (quantized_x, self.weight, self.scale, self.weight_scale, self.zero, None, self.bias),
            dtype=torch.float32,
            shape=(*x.shape[:-1], self.weight.shape[1]),
            version=1,
        )


class Int8FeedForward(nn.Module):
    """Feed-forward network in int8, except for its wide inner channels."""

    def __init__(self, feed: FeedForward, inner: InputRange, outer: InputRange) -> None:
        super().__init__()
        wide = outer.wide()
        self.few = feed.part(wide) if len(wide) else None
        # `few` computes the wide channels from the same input. Reading them out of the large part
        # would keep runtimes from fusing its activation with the quantisation after it. The large
        # part keeps its shape, with zero weights for those channels.
        self.rest = copy.deepcopy(feed)
        with torch.no_grad():
            self.rest.outer.weight[:, wide] = 0.0
        # Wide channels exceed the range without them and are clipped; their weights are zero.
        last = Int8Linear(self.rest.outer, outer.without(wide), factors=False)
        self.rest.register_module("inner", Int8Linear(feed.inner, inner))
        self.rest.register_module("outer", last)

    def forward(self, x: Tensor) -> Tensor:
        """Add the outputs of both parts.  [..., D] -> [..., D]"""
        out: Tensor = self.rest(x)
        return out if self.few is None else out + self.few(x)


@contextmanager
def observing(network: Network) -> Iterator[dict[str, InputRange]]:
    """Record the input ranges of all linear layers in the main encoder's blocks.

    The ranges cover every pass that runs inside the `with` block.
    """
    ranges: dict[str, InputRange] = {}
    handles = []

    def record(layer_range: InputRange, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        layer_range.widen(inputs[0])

    layers: Iterator[tuple[str, nn.Module]] = network.encoder.blocks.named_modules()
    for name, layer in layers:
        if isinstance(layer, nn.Linear):
            ranges[name] = InputRange(
                torch.zeros(layer.in_features), torch.zeros(layer.in_features)
            )
            handles.append(layer.register_forward_pre_hook(partial(record, ranges[name])))
    try:
        yield ranges
    finally:
        for handle in handles:
            handle.remove()


def quantized(network: Network, ranges: dict[str, InputRange]) -> Network:
    """Return a copy of a network whose main encoder's blocks multiply in int8."""
    out = copy.deepcopy(network)
    for number, block in enumerate(out.encoder.blocks):
        assert isinstance(block, Block), "only Transformer blocks can be quantised to int8"
        attention = block.attention
        for name, linear in (("qkv", attention.qkv), ("output", attention.output)):
            attention.register_module(
                name, Int8Linear(linear, ranges[f"{number}.attention.{name}"])
            )
        inner, outer = (ranges[f"{number}.feed.{name}"] for name in ("inner", "outer"))
        block.register_module("feed", Int8FeedForward(block.feed, inner, outer))
    return out
