"""Packed rows <-> a row for each text, for what must read a text from its beginning.

Texts are numbered as they lie: row by row, and in each row from left to right.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TextPlaces:
    """Where the texts of packed rows are."""

    shape: tuple[int, int]  # of the rows: B, S
    place: Tensor  # [R] of the flat rows: the real tokens
    text: Tensor  # [R] whose token it is
    index: Tensor  # [R] which of its text
    length: Tensor  # [N]

    def apart(self, x: Tensor) -> Tensor:
        """A row for each text, zero behind its end.  [B, S, ...] -> [N, L, ...]"""
        longest = int(self.length.max())
        out = x.new_zeros(len(self.length), longest, *x.shape[2:])
        return out.index_put((self.text, self.index), x.flatten(0, 1)[self.place])

    def together(self, x: Tensor) -> Tensor:
        """Back into packed rows, zero between texts.  [N, L, ...] -> [B, S, ...]"""
        out = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[2:])
        out = out.index_put((self.place,), x[self.text, self.index])
        return out.view(*self.shape, *x.shape[2:])

    def real(self) -> Tensor:
        """Where the rows of single texts hold a token.  -> [N, L] bool"""
        steps = torch.arange(int(self.length.max()), device=self.length.device)
        real: Tensor = steps < self.length[:, None]
        return real


def texts_left(which: Tensor, before: int, each: int, count: int) -> Tensor | None:
    """The texts of chosen rows, in groups of `each`; None if all `count` texts stay as they are.

    There were `before` rows of each text. Groups may move, repeat or leave, but the rows of one
    are of one text.  [N] -> [N // each]
    """
    texts = (which // before).view(len(which) // each, each)
    assert bool((texts == texts[:, :1]).all()), "rows of different texts in one group"
    texts = texts[:, 0]
    stay = torch.arange(count, device=which.device)
    return None if torch.equal(texts, stay) else texts


def texts_of(owner: Tensor, index: Tensor) -> TextPlaces:
    """Find the texts of packed rows: a text begins where its index is 0.  [B, S], [B, S]"""
    real = (owner >= 0).flatten()
    begins = real & (index == 0).flatten()
    (place,) = real.nonzero(as_tuple=True)
    text = (begins.cumsum(0) - 1)[place]
    length = torch.bincount(text)
    return TextPlaces((owner.shape[0], owner.shape[1]), place, text, index.flatten()[place], length)
