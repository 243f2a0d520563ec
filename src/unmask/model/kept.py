"""Keys and values that need not be computed again: of a memory, or of the words so far.

For saying something, not for training: what grows is written in place.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 16  # places of a room


class Room:
    """Places for more than is there, so that one more token costs one token (but beams move all).

    Whoever has the first `used` places may write the next ones; whoever comes later finds them
    taken, and moves to a room of its own. So nothing that somebody reads is ever changed.
    """

    def __init__(self, like: Tensor, batch: int, places: int) -> None:
        _, heads, _, size = like.shape
        self.places = like.new_empty(batch, heads, places, size)
        self.used = 0

    def put(self, x: Tensor, at: int) -> None:
        """Write some tokens, the first of them in place `at`.  [B, H, K, d]"""
        self.used = at + x.shape[2]
        self.places[:, :, at : self.used] = x


@dataclass(frozen=True)
class Growing:
    """A tensor that more is put behind, and perhaps a room that it lies in."""

    tensor: Tensor  # [B, H, K, d]
    room: Room | None = None

    def and_then(self, more: Tensor) -> "Growing":
        """What is there and what follows.  [B, H, M, d]"""
        before, room = self.tensor.shape[2], self.room
        length = before + more.shape[2]
        if room is None or room.used != before or room.places.shape[2] < length:
            room = Room(more, len(more), max(LEAST, 2 * length))
            room.put(self.tensor, 0)
        room.put(more, before)
        return Growing(room.places[:, :, :length], room)

    def select(self, which: Tensor) -> "Growing":
        """The same for some of the rows, with as much room.  [M]"""
        if self.room is None:
            return Growing(self.tensor.index_select(0, which))
        room = Room(self.tensor, len(which), self.room.places.shape[2])
        room.used = self.tensor.shape[2]
        chosen = room.places[:, :, : room.used]
        # Rows copied where they are to be: several times faster than tensor[which] and a move.
        torch.index_select(self.tensor, 0, which, out=chosen)
        return Growing(chosen, room)


@dataclass(frozen=True)
class Kept:
    """What attention compares and reads, and where each token stands."""

    growing_keys: Growing
    growing_values: Growing
    index: Tensor  # [B, K]

    @property
    def keys(self) -> Tensor:
        """[B, H, K, d]"""
        return self.growing_keys.tensor

    @property
    def values(self) -> Tensor:
        """[B, H, K, d]"""
        return self.growing_values.tensor

    def select(self, which: Tensor) -> "Kept":
        """The same for some of the rows, any number of times each.  [M]"""
        keys, values = self.growing_keys.select(which), self.growing_values.select(which)
        return Kept(keys, values, self.index.index_select(0, which))

    def and_then(self, keys: Tensor, values: Tensor, index: Tensor) -> "Kept":
        """These, and those of what follows."""
        return Kept(
            self.growing_keys.and_then(keys),
            self.growing_values.and_then(values),
            torch.cat([self.index, index], dim=1),
        )


def kept(keys: Tensor, values: Tensor, index: Tensor) -> Kept:
    """Keys and values as they are, without room for more.  2 x [B, H, K, d], [B, K]"""
    return Kept(Growing(keys), Growing(values), index)
