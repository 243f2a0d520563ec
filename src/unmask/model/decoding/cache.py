"""The key/value cache: keys and values of the words so far are not computed again for the next.

For generating text, not for training: what grows is written in place.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

LEAST = 16  # places of a room


@dataclass
class GrowingTensor:
    """Places for more than is there, so that one more token costs one token (but beams move all).

    Whoever has the first `used` places may write the next ones; whoever comes later finds them
    taken, and moves to a room of its own. So nothing that somebody reads is ever changed. Keys and
    values are two tensors: malloc returns blocks above 32 MB to the system, and one tensor of both
    would sooner be such a block, to be mapped again with every step of a beam search.
    """

    keys: Tensor  # [B, H, P, d]
    values: Tensor  # [B, H, P, d]
    used: int = 0


@dataclass
class KVCache:
    """The keys and values of some tokens: the first places of a room."""

    room: GrowingTensor
    length: int = 0

    @property
    def keys(self) -> Tensor:
        """[B, H, K, d]"""
        return self.room.keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """[B, H, K, d]"""
        return self.room.values[:, :, : self.length]

    def add(self, keys: Tensor, values: Tensor) -> None:
        """Put more tokens behind those that are there.  2 x [B, H, M, d]"""
        length = self.length + keys.shape[2]
        if self.room.used != self.length or self.room.keys.shape[2] < length:
            batch, heads, _, size = keys.shape
            shape = (batch, heads, max(LEAST, 2 * length), size)
            room = GrowingTensor(keys.new_empty(shape), values.new_empty(shape))
            room.keys[:, :, : self.length] = self.keys
            room.values[:, :, : self.length] = self.values
            self.room = room
        self.room.keys[:, :, self.length : length] = keys
        self.room.values[:, :, self.length : length] = values
        self.room.used = self.length = length

    def select(self, which: Tensor) -> "KVCache":
        """Some of the rows, any number of times each, with as much room.  [M]"""
        shape = (len(which), *self.room.keys.shape[1:])
        room = GrowingTensor(self.keys.new_empty(shape), self.values.new_empty(shape), self.length)
        chosen = KVCache(room, self.length)
        # Rows copied where they are to be: several times faster than tensor[which] and a move.
        torch.index_select(self.keys, 0, which, out=chosen.keys)
        torch.index_select(self.values, 0, which, out=chosen.values)
        return chosen


@dataclass(frozen=True)
class EncoderCache:
    """The tokens of N texts that a causal encoder has read so far, with the cache of every layer.

    Texts may have different lengths. A text that gets fewer tokens in a step than the others is
    padded there. Padding stays in the cache, but no token attends to it, and positions skip it.
    """

    layers: tuple[KVCache, ...]  # shared weights have a cache in each layer
    index: Tensor  # [N, K] position of each token; [1, K] where there is no padding
    owner: Tensor | None = None  # [N, K] as in packed rows: -1 is padding; None: there is none

    @property
    def length(self) -> int:
        """Tokens of each row, padding included."""
        return self.index.shape[1]

    def longer(self, count: int, lengths: Tensor | None = None) -> "EncoderCache":
        """Append `count` tokens to each text, `lengths` [N] of them real and the rest padding.

        Their keys and values are not in the cache yet: each layer adds its own.
        """
        steps = torch.arange(count, device=self.index.device)[None]
        real = None if lengths is None else steps < lengths[:, None]
        layers = tuple(replace(kept) for kept in self.layers)  # these will grow
        if self.owner is None and (real is None or bool(real.all())):
            return EncoderCache(layers, torch.cat([self.index, self.length + steps], dim=1))
        rows = len(layers[0].keys)
        before = self.owner
        if before is None:
            before = self.index.new_zeros(rows, self.length)
        if real is None:
            real = torch.ones_like(steps, dtype=torch.bool).expand(rows, -1)
        index = (before >= 0).sum(dim=1, keepdim=True) + steps
        return EncoderCache(
            layers,
            torch.cat([self.index.expand(rows, -1), index], dim=1),
            torch.cat([before, real.long() - 1], dim=1),
        )

    def select(self, which: Tensor, each: int = 1) -> "EncoderCache":
        """Some of the rows, any number of times each.  [M]"""
        layers = tuple(kept.select(which) for kept in self.layers)
        if self.owner is None:
            return replace(self, layers=layers)
        return EncoderCache(layers, self.index[which], self.owner[which])
