"""Where a token is. A scheme acts in one of four places and overrides the hooks it needs.

    embed    learned, sinusoidal    added to the token embeddings
    bias     t5                     added to the scores, the same in all layers
    rotate   rotary                 turns queries and keys, in each layer
    scores,  shaw                   a vector per distance, added to keys (through the scores)
    values                          and to values (through the weights), in each layer

Positions restart with each text of a row; what is computed between two texts is masked anyway.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from unmask.model.config import ModelConfig, Scheme
from unmask.model.init import embedding_table


class Positions(nn.Module):
    """No positions at all: the base of every scheme."""

    reads_weights = False  # True: `scores` and `values` act, which needs the weights spelled out

    def scaled(self, tokens: Tensor) -> Tensor:
        """The token embeddings, to which `embed` is added.  [B, S, D] -> [B, S, D]"""
        return tokens

    def embed(self, index: Tensor) -> Tensor | None:
        """[B, S] -> [B, S, D], or None to add nothing."""
        return None

    def bias(self, index: Tensor, memory_index: Tensor) -> Tensor | None:
        """[B, Q], [B, K] -> [B, H, Q, K], or None to add nothing."""
        return None

    def at(self, layer: int) -> "Positions":
        """The positions as one layer sees them: the same, unless each layer has its own."""
        return self

    def rotate(self, x: Tensor, index: Tensor) -> Tensor:
        """[B, H, S, d] -> [B, H, S, d]"""
        return x

    def turn(self, index: Tensor) -> Tensor | None:
        """What `rotate` multiplies pairs of channels with: [B, S, d/2] of complex numbers."""
        return None

    def scores(self, q: Tensor, index: Tensor, memory_index: Tensor) -> Tensor | None:
        """[B, H, Q, d] -> [B, H, Q, K], or None to add nothing."""
        return None

    def values(self, weights: Tensor, index: Tensor, memory_index: Tensor) -> Tensor:
        """What the weights [B, H, Q, K] gather from the positions -> [B, H, Q, d]."""
        raise NotImplementedError


class Learned(Positions):
    """One trained vector per absolute position (BERT)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = embedding_table(config.max_length, config.table_width)

    def embed(self, index: Tensor) -> Tensor:
        """[B, S] -> [B, S, D]"""
        vectors: Tensor = self.table(index)
        return vectors


class Sinusoidal(Positions):
    """Fixed waves: sine in even dimensions, cosine in odd ones (Vaswani et al. 2017, 3.5).

    They are as wide at the start as at the end, and embeddings begin narrow: so these are scaled
    (3.4), or nobody would hear them.
    """

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.table_width
        angle = _angles(config.max_length, width, 10_000.0)  # [S, D/2]
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # [S, D]
        self.register_buffer("table", table, persistent=False)
        self.scale: float = width**0.5

    def scaled(self, tokens: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]"""
        return tokens * self.scale

    def embed(self, index: Tensor) -> Tensor:
        """[B, S] -> [B, S, D]"""
        return self.table[index]


class Rotary(Positions):
    """Turn each pair of channels by an angle that grows with the position (Su et al. 2021)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, base: float | None = None) -> None:
        super().__init__()
        base = config.rotary_base if base is None else base
        angle = _angles(config.max_length, config.head_width, base)  # [S, d/2]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def rotate(self, x: Tensor, index: Tensor) -> Tensor:
        """[B, H, S, d] -> [B, H, S, d]"""
        cos, sin = self.cos[index][:, None], self.sin[index][:, None]  # [B, 1, S, d/2]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return turned.flatten(-2)

    def turn(self, index: Tensor) -> Tensor:
        """[B, S] -> [B, S, d/2] of complex numbers"""
        return torch.complex(self.cos, self.sin)[index]


class ByLayer(Positions):
    """Positions that differ by layer; `which` says what each layer has, and some may share."""

    def __init__(self, layers: Iterable[Positions], which: Sequence[int]) -> None:
        super().__init__()
        self.layers, self.which = nn.ModuleList(layers), which

    def at(self, layer: int) -> Positions:
        """What one layer has."""
        own = self.layers[self.which[layer]]
        assert isinstance(own, Positions)
        return own


class RotaryByLayer(ByLayer):
    """Rotary positions with another base in some layers (ModernBERT)."""

    def __init__(self, config: ModelConfig) -> None:
        bases = config.rotary_bases
        own = (config.layer(number).rotary_base for number in range(config.layers))
        which = [bases.index(base or config.rotary_base) for base in own]
        super().__init__((Rotary(config, base) for base in bases), which)


class Bucketed(Positions):
    """One trained bias per head and distance; far distances share (Raffel et al. 2019, 2.1).

    Half of the buckets are for keys before the query, half for keys after it; in each half, one
    half again is for the exact nearest distances and the rest grow wider up to `reach`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = embedding_table(config.buckets, config.heads)
        self.reach = config.reach
        self.sides = 1 if config.causal else 2  # a causal model has nothing after the query

    def bias(self, index: Tensor, memory_index: Tensor) -> Tensor:
        """[B, Q], [B, K] -> [B, H, Q, K]"""
        bucket = self.bucket(memory_index[:, None, :] - index[:, :, None])  # [B, Q, K]
        bias: Tensor = self.table(bucket)  # [B, Q, K, H]
        return bias.permute(0, 3, 1, 2)

    def bucket(self, distance: Tensor) -> Tensor:
        """Key position minus query position -> the bucket of that distance, same shape."""
        half = self.table.num_embeddings // self.sides
        base = half * (distance > 0) if self.sides == 2 else torch.zeros_like(distance)
        away = distance.abs() if self.sides == 2 else (-distance).clamp(min=0)
        exact = half // 2
        growth = torch.log(away.clamp(min=1) / exact) / math.log(self.reach / exact)
        wide = exact + (growth * (half - exact)).long()
        return base + torch.where(away < exact, away, wide.clamp(max=half - 1))


class Shaw(ByLayer):
    """A trained vector per distance, added to keys and to values (Shaw et al. 2018).

    Distances are clipped to `reach`; heads share the vectors, layers have their own, unless they
    share all of their weights.
    """

    def __init__(self, config: ModelConfig) -> None:
        own = (ShawLayer(config.reach, config.head_width) for _ in range(config.groups))
        super().__init__(own, [config.group_of(layer) for layer in range(config.layers)])


class ShawLayer(Positions):
    """The vectors of one layer."""

    reads_weights = True

    def __init__(self, reach: int, head_width: int) -> None:
        super().__init__()
        self.reach = reach
        self.keys = embedding_table(2 * reach + 1, head_width)
        self.between = embedding_table(2 * reach + 1, head_width)  # added to the values

    def scores(self, q: Tensor, index: Tensor, memory_index: Tensor) -> Tensor:
        """[B, H, Q, d] -> [B, H, Q, K]"""
        every: Tensor = q @ self.keys.weight.T / q.shape[-1] ** 0.5  # [B, H, Q, 2 * reach + 1]
        which = self._clipped(index, memory_index)[:, None].expand(*q.shape[:2], -1, -1)
        chosen: Tensor = every.gather(-1, which)
        return chosen

    def values(self, weights: Tensor, index: Tensor, memory_index: Tensor) -> Tensor:
        """[B, H, Q, K] -> [B, H, Q, d]"""
        which = self._clipped(index, memory_index)[:, None].expand_as(weights)
        share = weights.new_zeros(*weights.shape[:3], 2 * self.reach + 1)
        share = share.scatter_add(-1, which, weights)  # the weight that falls on each distance
        gathered: Tensor = share @ self.between.weight
        return gathered

    def _clipped(self, index: Tensor, memory_index: Tensor) -> Tensor:
        """[B, Q], [B, K] -> [B, Q, K] in 0 .. 2 * reach"""
        distance = memory_index[:, None, :] - index[:, :, None]
        return distance.clamp(-self.reach, self.reach) + self.reach


def _angles(length: int, channels: int, base: float) -> Tensor:
    """position / base^(2i / channels), in double precision until the last step -> [S, c/2]"""
    # On the CPU even where weights are made without memory: nobody reads these from disk.
    with torch.device("cpu"):
        rate = base ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)
        return (torch.arange(length, dtype=torch.float64)[:, None] * rate).float()


def _rotary(config: ModelConfig) -> Positions:
    """One table if all layers have the same base."""
    base, *others = config.rotary_bases
    return RotaryByLayer(config) if others else Rotary(config, base)


SCHEMES: dict[Scheme, Callable[[ModelConfig], Positions]] = {
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "shaw": Shaw,
    "t5": Bucketed,
    "rotary": _rotary,
    "none": lambda config: Positions(),
}


def make_positions(config: ModelConfig) -> Positions:
    """Return the positions that a config names."""
    return SCHEMES[config.positions](config)
