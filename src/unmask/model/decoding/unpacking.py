"""Packed rows <-> one text per row, for layers that must read each text from its beginning.

Texts are numbered in reading order: row by row, and in each row from left to right.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TextPlaces:
    """Where each text of packed rows lies."""

    shape: tuple[int, int]  # of the packed rows: B, S
    place: Tensor  # [R] flat indices of the real tokens
    text: Tensor  # [R] the text of each real token
    index: Tensor  # [R] the position of each real token in its text
    length: Tensor  # [N] of each text

    def apart(self, x: Tensor) -> Tensor:
        """Unpack into one text per row, padded with zeros.  [B, S, ...] -> [N, L, ...]"""
        longest = int(self.length.max())
        out = x.new_zeros(len(self.length), longest, *x.shape[2:])
        return out.index_put((self.text, self.index), x.flatten(0, 1)[self.place])

    def together(self, x: Tensor) -> Tensor:
        """Pack again, with zeros for padding.  [N, L, ...] -> [B, S, ...]"""
        out = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[2:])
        out = out.index_put((self.place,), x[self.text, self.index])
        return out.view(*self.shape, *x.shape[2:])

    def real(self) -> Tensor:
        """Mask of real tokens in unpacked rows.  -> [N, L] bool"""
        steps = torch.arange(int(self.length.max()), device=self.length.device)
        real: Tensor = steps < self.length[:, None]
        return real


def selected_texts(indices: Tensor, per_text: int, group_size: int, count: int) -> Tensor | None:
    """Return the text of each group of selected sequences; None if all `count` texts are kept.

    Every text had `per_text` sequences. Groups of `group_size` sequences may move, repeat or be
    skipped, but a group never mixes texts.  [N] -> [N // group_size]
    """
    texts = (indices // per_text).view(len(indices) // group_size, group_size)
    assert bool((texts == texts[:, :1]).all()), "a group mixes sequences of different texts"
    texts = texts[:, 0]
    # None spares the caller a copy of all that sequences of a text share, the source's states.
    unchanged = torch.arange(count, device=indices.device)
    return None if torch.equal(texts, unchanged) else texts


def texts_of(owner: Tensor, index: Tensor) -> TextPlaces:
    """Find the texts of packed rows: a text begins where its index is 0.  [B, S], [B, S]"""
    real = (owner >= 0).flatten()
    # `real`, because padding has the index 0 too.
    begins = real & (index == 0).flatten()
    (place,) = real.nonzero(as_tuple=True)
    text = (begins.cumsum(0) - 1)[place]
    length = torch.bincount(text)
    return TextPlaces((owner.shape[0], owner.shape[1]), place, text, index.flatten()[place], length)
