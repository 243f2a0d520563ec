"""Attention weights of every head -> weights between words or between texts, and rollout.

    weights [L, H, S, S]    layer, head, from, to; every row of a head sums to 1

Attention weights show where a head looks, not why the model predicts what it predicts. Two further
measures help: rollout, computed here, follows attention through all layers; gradient times input
(`inspect.attribution`) estimates how much each token contributes to the prediction.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unmask.system.errors import SettingsError, unknown_name
from unmask.tasks.alignment import merged_weights
from unmask.tasks.results import Result
from unmask.text.detokenize import merge_word_pieces

Table = NDArray[np.float32]
BETWEEN = {"all": (None, None), "first to second": (0, 1), "second to first": (1, 0)}


@dataclass(frozen=True, repr=False)
class AttentionMaps(Result):
    """Attention weights of all layers and heads for one text or pair, with its tokens."""

    tokens: list[str]
    segments: list[int]
    special: list[bool]
    weights: Table  # [L, H, S, S]

    @property
    def words(self) -> list[int]:
        """The index of the word that each token belongs to, counted from 0."""
        return merge_word_pieces(self.tokens)[1]

    def hidden(self) -> "AttentionMaps":
        """Remove [CLS] and [SEP], and rescale what is left of each row to sum to 1."""
        keep = np.flatnonzero(~np.array(self.special))
        weights = self.weights[:, :, keep][:, :, :, keep]
        return replace(
            self,
            tokens=[self.tokens[i] for i in keep],
            segments=[self.segments[i] for i in keep],
            special=[False] * len(keep),
            weights=_normalize_rows(weights),
        )

    def merged(self) -> "AttentionMaps":
        """Merge tokens into words: sum the attention that goes in, average what goes out."""
        tokens, words = merge_word_pieces(self.tokens)
        # All tokens of a word are in the same text, so its first token tells the segment.
        first = [words.index(word) for word in range(len(tokens))]
        return replace(
            self,
            tokens=tokens,
            segments=[self.segments[i] for i in first],
            special=[self.special[i] for i in first],
            weights=merged_weights(self.weights, words, words),
        )

    def between(self, which: str) -> Table:
        """Select the weights from one text to the other, without rescaling: [L, H, from, to]."""
        if which not in BETWEEN:
            raise SettingsError(unknown_name("texts", which, tuple(BETWEEN)))
        source, target = (
            np.array([wanted is None or segment == wanted for segment in self.segments])
            for wanted in BETWEEN[which]
        )
        return self.weights[:, :, source][:, :, :, target]

    def rollout(self) -> Table:
        """Compute attention rollout (Abnar and Zuidema 2020).  -> [S, S]

        Row i has the share of each input token in the last hidden state of token i. Heads are
        averaged; the residual connection counts as half of each layer.
        """
        size = len(self.tokens)
        rollout = identity = np.eye(size, dtype=np.float32)
        layer_weights: Table
        for layer_weights in self.weights.mean(axis=1):
            # Rescaled for the sake of hidden(), which can leave rows of zeros.
            rollout = _normalize_rows(0.5 * layer_weights + 0.5 * identity) @ rollout
        return rollout


def _normalize_rows(weights: Table) -> Table:
    """Scale rows to sum to 1."""
    # A head that attends to [CLS] and [SEP] alone leaves a row of zeros, which must not become NaN.
    total: Table = weights.sum(axis=-1, keepdims=True)
    normalized: Table = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return normalized
