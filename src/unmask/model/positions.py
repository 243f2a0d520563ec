"""Position encodings: positions of tokens -> embeddings, score biases or rotations.

A scheme acts in one of four places and overrides the hooks that it needs:

    embed    learned, sinusoidal    added to the token embeddings
    bias     t5                     added to the attention scores, once for all layers
    rotate   rotary                 rotates queries and keys, in each layer
    scores,  shaw                   a vector per distance, added to keys (through the scores)
    values                          and to values (through the weights), in each layer

Positions restart at 0 with each text of a packed row. Distances between two texts are meaningless,
and harmless, because the mask forbids attention between them.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from unmask.model.config import ModelConfig, Scheme
from unmask.model.init import embedding_table


class Positions(nn.Module):
    """Base class of all schemes; by itself, no position encoding."""

    # True where `values` is needed: a fused kernel has no attention weights to give it.
    reads_weights = False

    def scaled(self, tokens: Tensor) -> Tensor:
        """Scale the token embeddings before `embed` is added.  [B, S, D] -> [B, S, D]"""
        return tokens

    def embed(self, index: Tensor) -> Tensor | None:
        """Return vectors to add to the token embeddings, or None.  [B, S] -> [B, S, D]"""
        return None

    def bias(self, index: Tensor, memory_index: Tensor) -> Tensor | None:
        """Return a bias of the scores of all layers, or None.  [B, Q], [B, K] -> [B, H, Q, K]"""
        return None

    def at(self, layer: int) -> "Positions":
        """Return the positions of one layer; most schemes have the same in all layers."""
        return self

    def rotate(self, x: Tensor, index: Tensor) -> Tensor:
        """Rotate queries or keys by their positions.  [B, H, S, d] -> [B, H, S, d]"""
        return x

    def turn(self, index: Tensor) -> Tensor | None:
        """Return `rotate` as complex factors of channel pairs, or None.  [B, S] -> [B, S, d/2]"""
        return None

    def scores(self, q: Tensor, index: Tensor, memory_index: Tensor) -> Tensor | None:
        """Return what queries add to one layer's scores, or None.  [B, H, Q, d] -> [B, H, Q, K]"""
        return None

    def values(self, weights: Tensor, index: Tensor, memory_index: Tensor) -> Tensor:
        """Return the weighted sum of position vectors.  [B, H, Q, K] -> [B, H, Q, d]"""
        raise NotImplementedError


class Learned(Positions):
    """One trained vector per absolute position (BERT)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = embedding_table(config.max_length, config.table_width)

    def embed(self, index: Tensor) -> Tensor:
        """Look up the vectors of positions.  [B, S] -> [B, S, D]"""
        vectors: Tensor = self.table(index)
        return vectors


class Sinusoidal(Positions):
    """Fixed waves: sine in even dimensions, cosine in odd ones (Vaswani et al. 2017, 3.5).

    Token embeddings are scaled by the square root of the width (3.4). Sinusoids have a size of 0.7
    from the start; beside them, initial embeddings of 0.02 would hardly count.
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
        """Multiply by the square root of the width.  [B, S, D] -> [B, S, D]"""
        return tokens * self.scale

    def embed(self, index: Tensor) -> Tensor:
        """Look up the waves at each position.  [B, S] -> [B, S, D]"""
        return self.table[index]


class Rotary(Positions):
    """Rotate each pair of channels by an angle that grows with the position (Su et al. 2021)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, base: float | None = None) -> None:
        super().__init__()
        base = config.rotary_base if base is None else base
        angle = _angles(config.max_length, config.head_width, base)  # [S, d/2]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def rotate(self, x: Tensor, index: Tensor) -> Tensor:
        """Rotate channel pairs (0, 1), (2, 3), ...  [B, H, S, d] -> [B, H, S, d]"""
        cos, sin = self.cos[index][:, None], self.sin[index][:, None]  # [B, 1, S, d/2]
        even, odd = x[..., 0::2], x[..., 1::2]
        rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return rotated.flatten(-2)

    def turn(self, index: Tensor) -> Tensor:
        """Return cos + i sin of the angles.  [B, S] -> [B, S, d/2], complex"""
        return torch.complex(self.cos, self.sin)[index]


class ByLayer(Positions):
    """Positions that differ by layer: layer i uses `layers[layer_indices[i]]`.

    Several layers can share one entry.
    """

    def __init__(self, layers: Iterable[Positions], layer_indices: Sequence[int]) -> None:
        super().__init__()
        self.layers, self.layer_indices = nn.ModuleList(layers), layer_indices

    def at(self, layer: int) -> Positions:
        """Return the positions of one layer."""
        positions = self.layers[self.layer_indices[layer]]
        assert isinstance(positions, Positions)
        return positions


class RotaryByLayer(ByLayer):
    """Rotary positions with another base in some layers (ModernBERT)."""

    def __init__(self, config: ModelConfig) -> None:
        bases = config.rotary_bases  # one table per distinct base, however many layers there are
        layer_bases = (config.layer(number).rotary_base for number in range(config.layers))
        layer_indices = [bases.index(base or config.rotary_base) for base in layer_bases]
        super().__init__((Rotary(config, base) for base in bases), layer_indices)


class Bucketed(Positions):
    """One trained bias per head and bucket of distances (T5: Raffel et al. 2019, 2.1).

    Half of the buckets are for keys before the query, half for keys after it. Of each half, one
    half has a bucket for each of the nearest distances; the rest grow logarithmically up to
    `reach`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = embedding_table(config.buckets, config.heads)
        self.reach = config.reach
        self.sides = 1 if config.causal else 2  # no key after the query in a causal model

    def bias(self, index: Tensor, memory_index: Tensor) -> Tensor:
        """Look up the bias of each distance.  [B, Q], [B, K] -> [B, H, Q, K]"""
        bucket = self.bucket(memory_index[:, None, :] - index[:, :, None])  # [B, Q, K]
        bias: Tensor = self.table(bucket)  # [B, Q, K, H]
        return bias.permute(0, 3, 1, 2)

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance, key position minus query position; same shape."""
        half = self.table.num_embeddings // self.sides
        base = half * (distance > 0) if self.sides == 2 else torch.zeros_like(distance)
        # In a causal model, keys after the query are masked and may have any bucket.
        away = distance.abs() if self.sides == 2 else (-distance).clamp(min=0)
        exact = half // 2
        # `where` below computes both branches: the clamp keeps the unused logarithm finite.
        growth = torch.log(away.clamp(min=1) / exact) / math.log(self.reach / exact)
        far = exact + (growth * (half - exact)).long()
        return base + torch.where(away < exact, away, far.clamp(max=half - 1))


class Shaw(ByLayer):
    """A trained vector per distance, added to keys and to values (Shaw et al. 2018).

    Distances are clipped to `reach`. Heads share the vectors; each layer has its own, except that
    layers of one group share them like all other weights.
    """

    def __init__(self, config: ModelConfig) -> None:
        layers = (ShawLayer(config.reach, config.head_width) for _ in range(config.groups))
        super().__init__(layers, [config.group_of(layer) for layer in range(config.layers)])


class ShawLayer(Positions):
    """Shaw's distance vectors of one layer."""

    reads_weights = True

    def __init__(self, reach: int, head_width: int) -> None:
        super().__init__()
        self.reach = reach
        self.keys = embedding_table(2 * reach + 1, head_width)
        self.between = embedding_table(2 * reach + 1, head_width)  # added to the values

    def scores(self, q: Tensor, index: Tensor, memory_index: Tensor) -> Tensor:
        """Return q a / sqrt(d), where a is the distance's vector.  [B, H, Q, d] -> [B, H, Q, K]"""
        # Scores of all distances once, then a lookup: a vector for each pair of tokens would take
        # d times the memory of the scores.
        all_scores: Tensor = q @ self.keys.weight.T / q.shape[-1] ** 0.5  # [B, H, Q, 2 * reach + 1]
        rows = self._table_rows(index, memory_index)[:, None].expand(*q.shape[:2], -1, -1)
        chosen: Tensor = all_scores.gather(-1, rows)
        return chosen

    def values(self, weights: Tensor, index: Tensor, memory_index: Tensor) -> Tensor:
        """Sum the value vectors of all distances by weight.  [B, H, Q, K] -> [B, H, Q, d]"""
        # As in `scores`: add up the weights of each distance first, then one matrix product.
        rows = self._table_rows(index, memory_index)[:, None].expand_as(weights)
        weight_by_row = weights.new_zeros(*weights.shape[:3], 2 * self.reach + 1)
        weight_by_row = weight_by_row.scatter_add(-1, rows, weights)
        gathered: Tensor = weight_by_row @ self.between.weight
        return gathered

    def _table_rows(self, index: Tensor, memory_index: Tensor) -> Tensor:
        """Return rows of the tables, 0 to 2 * reach.  [B, Q], [B, K] -> [B, Q, K]"""
        distance = memory_index[:, None, :] - index[:, :, None]
        return distance.clamp(-self.reach, self.reach) + self.reach


def _angles(length: int, channels: int, base: float) -> Tensor:
    """Return position / base^(2i / channels) for every position and pair of channels.  [S, c/2]"""
    # On the CPU, also where weights are made on the device "meta": these tables are in no file.
    # In double precision, so that an angle is rounded once only, at the end.
    with torch.device("cpu"):
        frequency = base ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)
        return (torch.arange(length, dtype=torch.float64)[:, None] * frequency).float()


def _rotary(config: ModelConfig) -> Positions:
    """Make rotary positions: one table if all layers have the same base, else one per base."""
    base, *other_bases = config.rotary_bases
    return RotaryByLayer(config) if other_bases else Rotary(config, base)


SCHEMES: dict[Scheme, Callable[[ModelConfig], Positions]] = {
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "shaw": Shaw,
    "t5": Bucketed,
    "rotary": _rotary,
    "none": lambda config: Positions(),
}


def make_positions(config: ModelConfig) -> Positions:
    """Make the position encoding that a config names."""
    return SCHEMES[config.positions](config)
