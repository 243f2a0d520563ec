"""Pair order: does the second segment follow the first? (BERT, section 3.1; ALBERT, 3.1)

With examples of kind "nsp" a wrong second segment comes from another document; with "sop" the two
are swapped. The question put to the network is the same.
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
    """Nothing to choose: the examples decide what is asked."""


class PairOrder(PlaceObjective):
    """A yes or no from the pooled [CLS].

    Needs: labels LABEL [N], FOLLOWS, DIFFERS or UNSAID for an example of one segment.
    Relations: leave it out with examples of kind "off", as RoBERTa does.
    """

    Config = PairSettings
    needs_pairs = True
    reads_head = PAIR

    def describe(self) -> list[Term]:
        """One term."""
        return [Term(TERM, "pairs", choices=2)]

    def heads(self, shape: Shape) -> Heads:
        """A head for pairs, on the pooler."""
        return {POOLER: PoolerConfig(), PAIR: PAIRS}

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Count the pairs that have an answer; the examples bring it."""
        return batch.with_labels(int((batch.labels[LABEL] != NO_PAIR).sum()), TERM)

    def places(self, batch: Batch) -> Tensor:
        """The first token of each text.  -> [N]"""
        return batch.begins

    def read(self, network: Network, states: Tensor, batch: Batch, *, each: bool = False) -> Sums:
        """states [N, D]"""
        scores = network.pair_scores(states)  # [N, 2]
        answers = batch.labels[LABEL]  # [N]
        if each:
            losses = F.cross_entropy(scores, answers, ignore_index=NO_PAIR, reduction="none")
            texts = torch.arange(len(answers), device=answers.device)
            return {TERM: per_record(losses, texts, batch)}
        sums = {TERM: F.cross_entropy(scores, answers, ignore_index=NO_PAIR, reduction="sum")}
        if not network.training:
            sums[TERM + CORRECT] = ((scores.argmax(dim=-1) == answers) & (answers != NO_PAIR)).sum()
        return sums
