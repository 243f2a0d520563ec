"""Matrix products in 8 bits, with what they need to know of their inputs.

Weights have a scale for each output channel, inputs one scale for all. In every BERT a few input
channels are far wider than the others, and would leave those a handful of steps. A layer with no
more inputs than outputs divides each input by a factor, which its weights take over; another one
multiplies the wide channels in full precision. Either way the rest has all 256 steps, and the
smaller side of the layer pays for it.

    x W + b  ~  s_x s_w (round(x / f / s_x) round(f W / s_w)) + b
    x W + b  ~  s_x s_w (round(x / s_x) round(W / s_w)) + b + x[wide] W[wide]

Weights use 7 bits. Processors without instructions for int8 add two products in 16 bits, where more
would overflow; for one scale per channel it is enough.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask.model.network import Network

FAR, WIDE = 2.5, 8  # a wide channel, beside the middle one; how many there are at most
MOST, STEPS = 63, 255  # of a weight, of an input


@dataclass
class Seen:
    """The range of every input channel of a layer, so far."""

    low: Tensor
    high: Tensor

    def widen(self, x: Tensor) -> None:
        """[..., K]"""
        flat = x.detach().flatten(0, -2)
        self.low = torch.minimum(self.low, flat.amin(dim=0))
        self.high = torch.maximum(self.high, flat.amax(dim=0))


class Int8Linear(nn.Module):
    """A linear layer in 8 bits.

    Run by torch it is as exact and as slow as full precision; exported, a runtime multiplies bytes.
    """

    weight: Tensor  # [K, N] int8
    weight_scale: Tensor  # [N]
    bias: Tensor  # [N]
    shrink: Tensor  # [K] one over the factors, or [0]: there are none
    wide: Tensor  # [W] input channels
    wide_weight: Tensor  # [W, N]
    scale: Tensor  # []
    zero: Tensor  # [] uint8

    def __init__(self, linear: nn.Linear, seen: Seen) -> None:
        super().__init__()
        reach = torch.maximum(seen.low.abs(), seen.high.abs())
        far = reach > FAR * reach.median()
        full = linear.weight.detach()  # [N, K]
        factor = torch.ones_like(reach)
        wide = torch.zeros(0, dtype=torch.long)
        if far.any() and linear.out_features >= linear.in_features:
            factor = (reach.clamp(min=1e-5) / full.abs().amax(dim=0).clamp(min=1e-5)).sqrt()
        elif far.any():
            wide = reach.topk(min(WIDE, len(reach))).indices.sort().values
            wide = wide[far[wide]]
        rest = torch.ones_like(far)
        rest[wide] = False
        low = float((seen.low / factor * rest).min().clamp(max=0.0))
        high = float((seen.high / factor * rest).max().clamp(min=0.0))
        scale = max((high - low) / STEPS, 1e-8)
        weight = full * factor * rest
        weight_scale = (weight.abs().amax(dim=1) / MOST).clamp(min=1e-12)
        parts = {
            "weight": (weight / weight_scale[:, None]).round().to(torch.int8).T.contiguous(),
            "weight_scale": weight_scale,
            "bias": linear.bias.detach().clone(),
            "shrink": 1.0 / factor if (factor != 1.0).any() else torch.zeros(0),
            "wide": wide,
            "wide_weight": full[:, wide].T.contiguous(),
            "scale": torch.tensor(scale),
            "zero": torch.tensor(round(-low / scale), dtype=torch.uint8),
        }
        for name, tensor in parts.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]"""
        if len(self.shrink):
            x = x * self.shrink
        product = self._exported(x) if torch.onnx.is_in_onnx_export() else self._spelled_out(x)
        if not len(self.wide):
            return product
        few = x.index_select(-1, self.wide).flatten(0, -2)
        return torch.addmm(product.flatten(0, -2), few, self.wide_weight).view(product.shape)

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


def linears(network: Network) -> dict[str, nn.Linear]:
    """The layers of the blocks, in which nearly all work is done."""
    return {
        name: module
        for name, module in network.encoder.blocks.named_modules()
        if isinstance(module, nn.Linear)
    }


@contextmanager
def observing(network: Network) -> Iterator[dict[str, Seen]]:
    """Inside the block, note what those layers are given."""
    seen: dict[str, Seen] = {}
    handles = []
    for name, layer in linears(network).items():
        seen[name] = Seen(torch.zeros(layer.in_features), torch.zeros(layer.in_features))

        def watch(module: nn.Module, inputs: tuple[Tensor], own: Seen = seen[name]) -> None:
            own.widen(inputs[0])

        handles.append(layer.register_forward_pre_hook(watch))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def quantized(network: Network, seen: dict[str, Seen]) -> Network:
    """A copy whose blocks multiply in 8 bits."""
    out = copy.deepcopy(network)
    for name, layer in linears(out).items():
        above, _, last = name.rpartition(".")
        setattr(out.encoder.blocks.get_submodule(above), last, Int8Linear(layer, seen[name]))
    return out
