"""Keys and values of the words so far, which need not be computed again for the next word.

For generating text, not for training: what grows is written in place.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 16  # places of a room


@dataclass
class Room:
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
class Kept:
    """The keys and values of some tokens: the first places of a room."""

    room: Room
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
            room = Room(keys.new_empty(shape), values.new_empty(shape))
            room.keys[:, :, : self.length] = self.keys
            room.values[:, :, : self.length] = self.values
            self.room = room
        self.room.keys[:, :, self.length : length] = keys
        self.room.values[:, :, self.length : length] = values
        self.room.used = self.length = length

    def select(self, which: Tensor) -> "Kept":
        """Some of the rows, any number of times each, with as much room.  [M]"""
        shape = (len(which), *self.room.keys.shape[1:])
        room = Room(self.keys.new_empty(shape), self.values.new_empty(shape), self.length)
        chosen = Kept(room, self.length)
        # Rows copied where they are to be: several times faster than tensor[which] and a move.
        torch.index_select(self.keys, 0, which, out=chosen.keys)
        torch.index_select(self.values, 0, which, out=chosen.values)
        return chosen
