"""Next-sentence and sentence-order prediction: pooled [CLS] -> does the second segment follow?

With data.pairs = "nsp", a wrong second segment comes from another document (BERT, section 3.1).
With "sop", the two segments are swapped (ALBERT, section 3.1). The objective is the same for both.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from unmask.data.batch import Batch
from unmask.data.corpus.examples import NO_PAIR
from unmask.model.network import Network
from unmask.model.shape import PAIR, PAIRS, POOLER, Heads, PoolerConfig, Shape
from unmask.objectives.base import CORRECT, PlaceObjective, Sums, Term, per_record
from unmask.system.settings import Settings

TERM = LABEL = "pair"


class PairSettings(Settings):
    """Empty: the examples determine the kind of pairs."""


class PairOrder(PlaceObjective):
    """Binary classification of segment pairs from the pooled [CLS].

    Labels: LABEL [N] is IS_NEXT, NOT_NEXT, or NO_PAIR for an example of one segment. With
    data.pairs = "off", as in RoBERTa, this objective is not used.
    """

    Config = PairSettings
    needs_pairs = True
    reads_head = PAIR

    def describe(self) -> list[Term]:
        """Describe the single loss term."""
        return [Term(TERM, "sentence pairs", choices=2)]

    def heads(self, shape: Shape) -> Heads:
        """Return the pooler and the next-sentence head."""
        return {POOLER: PoolerConfig(), PAIR: PAIRS}

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Count the pairs with a label; the examples have the labels already."""
        return batch.with_labels(int((batch.labels[LABEL] != NO_PAIR).sum()), TERM)

    def places(self, batch: Batch) -> Tensor:
        """Return the flat index of each text's [CLS].  -> [N]"""
        return batch.begins

    def read(self, network: Network, states: Tensor, batch: Batch, *, each: bool = False) -> Sums:
        """Compute the loss of classifying the pairs.  states [N, D]"""
        logits = network.pair_scores(states)  # [N, 2]
        labels = batch.labels[LABEL]  # [N]
        if each:
            losses = F.cross_entropy(logits, labels, ignore_index=NO_PAIR, reduction="none")
            texts = torch.arange(len(labels), device=labels.device)
            return {TERM: per_record(losses, texts, batch)}
        # Packed rows have examples of one segment too. Where no pair has a label, the sum is 0; a
        # mean would be NaN.
        sums = {TERM: F.cross_entropy(logits, labels, ignore_index=NO_PAIR, reduction="sum")}
        if not network.training:
            sums[TERM + CORRECT] = ((logits.argmax(dim=-1) == labels) & (labels != NO_PAIR)).sum()
        return sums
