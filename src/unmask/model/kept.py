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
    taken, and moves to a room of its own. So nothing that somebody reads is ever changed.
    """

    places: Tensor  # [B, 2, H, P, d]
    used: int = 0


@dataclass
class Kept:
    """The keys and values of some tokens: the first places of a room."""

    room: Room
    length: int = 0

    @property
    def tokens(self) -> Tensor:
        """Keys, then values.  [B, 2, H, K, d]"""
        return self.room.places[:, :, :, : self.length]

    def add(self, more: Tensor) -> None:
        """Put the keys and values of more tokens behind those that are there.  [B, 2, H, M, d]"""
        length = self.length + more.shape[3]
        if self.room.used != self.length or self.room.places.shape[3] < length:
            batch, _, heads, _, size = more.shape
            places = more.new_empty(batch, 2, heads, max(LEAST, 2 * length), size)
            places[:, :, :, : self.length] = self.tokens
            self.room = Room(places)
        self.room.places[:, :, :, self.length : length] = more
        self.room.used = self.length = length

    def select(self, which: Tensor) -> "Kept":
        """Some of the rows, any number of times each, with as much room.  [M]"""
        places = self.room.places.new_empty(len(which), *self.room.places.shape[1:])
        # Rows copied where they are to be: several times faster than tensor[which] and a move.
        torch.index_select(self.tokens, 0, which, out=places[:, :, :, : self.length])
        return Kept(Room(places, self.length), self.length)
