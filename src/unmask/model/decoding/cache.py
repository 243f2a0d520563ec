"""Key/value cache: stores keys and values of earlier tokens while text is generated.

It is for generation, not for training, because it grows by writing in place.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

MIN_CAPACITY = 16  # smallest capacity, in tokens


@dataclass
class KVStorage:
    """Storage of keys and values with spare capacity, so that appending a token copies no others.

    Several caches may share a storage. The first `used` tokens are never overwritten: a cache of
    exactly this length may append in place, a shorter one must move to a storage of its own.
    """

    # Two tensors rather than one: malloc returns blocks above 32 MB to the system. A tensor of both
    # would reach that size sooner, and be mapped again in every step of a beam search.

    keys: Tensor  # [B, H, P, d]
    values: Tensor  # [B, H, P, d]
    used: int = 0


@dataclass
class KVCache:
    """Keys and values of the first `length` tokens of a storage."""

    storage: KVStorage
    length: int = 0

    @property
    def keys(self) -> Tensor:
        """Keys of all cached tokens.  [B, H, K, d]"""
        return self.storage.keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """Values of all cached tokens.  [B, H, K, d]"""
        return self.storage.values[:, :, : self.length]

    def add(self, keys: Tensor, values: Tensor) -> None:
        """Append the keys and values of more tokens.  2 x [B, H, M, d]"""
        length = self.length + keys.shape[2]
        # Move if another cache has appended to this storage, or if it is full. Doubling the
        # capacity makes moves rare.
        if self.storage.used != self.length or self.storage.keys.shape[2] < length:
            batch, heads, _, size = keys.shape
            shape = (batch, heads, max(MIN_CAPACITY, 2 * length), size)
            storage = KVStorage(keys.new_empty(shape), values.new_empty(shape))
            storage.keys[:, :, : self.length] = self.keys
            storage.values[:, :, : self.length] = self.values
            self.storage = storage
        self.storage.keys[:, :, self.length : length] = keys
        self.storage.values[:, :, self.length : length] = values
        self.storage.used = self.length = length

    def select(self, indices: Tensor) -> "KVCache":
        """Copy some sequences, possibly repeated, to a storage of the same capacity.  [M]"""
        shape = (len(indices), *self.storage.keys.shape[1:])
        storage = KVStorage(self.keys.new_empty(shape), self.values.new_empty(shape), self.length)
        chosen = KVCache(storage, self.length)
        # Copied straight to their destination: several times as fast as tensor[indices] and a move.
        torch.index_select(self.keys, 0, indices, out=chosen.keys)
        torch.index_select(self.values, 0, indices, out=chosen.values)
        return chosen


@dataclass(frozen=True)
class EncoderCache:
    """State of a causal encoder: the tokens of N texts so far, and the cache of every layer.

    Texts may have different lengths. A text that gets fewer tokens in a step than the others is
    padded there. Padding stays in the cache, but no token attends to it, and positions skip it.
    """

    layers: tuple[KVCache, ...]  # one for each layer, also where layers share their weights
    index: Tensor  # [N, K] position of each token; [1, K] without padding
    owner: Tensor | None = None  # [N, K] 0 for real tokens, -1 for padding; None without padding

    @property
    def length(self) -> int:
        """Tokens per text, padding included."""
        return self.index.shape[1]

    def longer(self, count: int, lengths: Tensor | None = None) -> "EncoderCache":
        """Append `count` tokens to each text, `lengths` [N] of them real and the rest padding.

        Each layer appends the keys and values of the new tokens itself, when it runs.
        """
        steps = torch.arange(count, device=self.index.device)[None]
        real = None if lengths is None else steps < lengths[:, None]
        layers = tuple(replace(cache) for cache in self.layers)  # `add` changes a cache
        # Without padding all texts have the same positions, and attention needs no mask.
        if self.owner is None and (real is None or bool(real.all())):
            return EncoderCache(layers, torch.cat([self.index, self.length + steps], dim=1))
        rows = len(layers[0].keys)
        previous_owner = self.owner
        if previous_owner is None:
            previous_owner = self.index.new_zeros(rows, self.length)
        if real is None:
            real = torch.ones_like(steps, dtype=torch.bool).expand(rows, -1)
        # Positions count real tokens only, as if each text were alone.
        index = (previous_owner >= 0).sum(dim=1, keepdim=True) + steps
        return EncoderCache(
            layers,
            torch.cat([self.index.expand(rows, -1), index], dim=1),
            torch.cat([previous_owner, real.long() - 1], dim=1),  # True -> 0, False -> -1
        )

    def select(self, indices: Tensor, group_size: int = 1) -> "EncoderCache":
        """Select texts, possibly repeated; `group_size` is ignored, as nothing is shared.  [M]"""
        layers = tuple(cache.select(indices) for cache in self.layers)
        if self.owner is None:
            return replace(self, layers=layers)
        return EncoderCache(layers, self.index[indices], self.owner[indices])
