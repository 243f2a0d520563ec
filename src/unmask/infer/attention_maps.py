"""What a model attends to: the weights of every head, and what can be read off them.

    weights [L, H, S, S]    layer, head, from, to; every row of a head sums to 1

Weights say where a head looks. They do not say why the model answers as it does: beside them stand
the rollout, which follows them through all layers, and the gradient times the input, which asks
what a change of a token would do to the answer.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unmask.system.errors import SettingsError, unknown_name
from unmask.tasks.alignment import merged_weights
from unmask.text.detokenize import merge_word_pieces

Table = NDArray[np.float32]
BETWEEN = {"all": (None, None), "first to second": (0, 1), "second to first": (1, 0)}


@dataclass(frozen=True)
class AttentionMaps:
    """What each head of each layer looks at: weights[layer][head][from, to]."""

    tokens: list[str]
    segments: list[int]
    special: list[bool]
    weights: Table  # [L, H, S, S]

    @property
    def words(self) -> list[int]:
        """The word that each token is a piece of, counted from 0."""
        return merge_word_pieces(self.tokens)[1]

    def hidden(self) -> "AttentionMaps":
        """Without [CLS] and [SEP], as if nobody could have looked there."""
        keep = np.flatnonzero(~np.array(self.special))
        weights = self.weights[:, :, keep][:, :, :, keep]
        return replace(
            self,
            tokens=[self.tokens[i] for i in keep],
            segments=[self.segments[i] for i in keep],
            special=[False] * len(keep),
            weights=_to_one(weights),
        )

    def merged(self) -> "AttentionMaps":
        """Of words: a word is looked at with all its pieces together, and looks as their mean."""
        tokens, words = merge_word_pieces(self.tokens)
        first = [words.index(word) for word in range(len(tokens))]
        return replace(
            self,
            tokens=tokens,
            segments=[self.segments[i] for i in first],
            special=[self.special[i] for i in first],
            weights=merged_weights(self.weights, words, words),
        )

    def between(self, which: str) -> Table:
        """The weights from one text to the other, [L, H, from, to]; nothing is made to sum to 1."""
        if which not in BETWEEN:
            raise SettingsError(unknown_name("texts", which, tuple(BETWEEN)))
        source, target = (
            np.array([part is None or segment == part for segment in self.segments])
            for part in BETWEEN[which]
        )
        return self.weights[:, :, source][:, :, :, target]

    def rollout(self) -> Table:
        """How much of each first token is in each last one.  -> [S, S]

        Abnar and Zuidema (2020): heads averaged, half of each step stays where it is.
        """
        size = len(self.tokens)
        out = stays = np.eye(size, dtype=np.float32)
        step: Table
        for step in self.weights.mean(axis=1):
            out = _to_one(0.5 * step + 0.5 * stays) @ out
        return out


def _to_one(weights: Table) -> Table:
    """Rows that sum to 1; a row of zeros stays."""
    total: Table = weights.sum(axis=-1, keepdims=True)
    out: Table = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return out
