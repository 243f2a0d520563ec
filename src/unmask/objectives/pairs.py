"""Pair order: does the second segment follow the first? (BERT, section 3.1; ALBERT, 3.1)

With examples of kind "nsp" a wrong second segment comes from another document; with "sop" the two
are swapped. The question put to the network is the same.
"""

from torch import Tensor
from torch.nn import functional as F

from unmask.data.batches import Batch
from unmask.data.examples import UNSAID
from unmask.model.network import Network
from unmask.objectives.base import RIGHT, Reader, Sums
from unmask.settings import Settings
from unmask.text.vocabulary import Vocabulary


class PairSettings(Settings):
    """Nothing to choose: the examples decide what is asked."""


class PairOrder(Reader):
    """A yes or no from the pooled [CLS].

    Needs: labels pair [N], FOLLOWS, DIFFERS or UNSAID for an example of one segment.
    Relations: leave it out with examples of kind "off", as RoBERTa does.
    """

    term = "pair"
    asks = "pairs"
    heads = {"pooler": True, "pair": True}
    settings = PairSettings
    choices = 2

    def __init__(self, settings: PairSettings, vocabulary: Vocabulary) -> None:
        self.how = settings

    def begin(self, network: Network, frequencies: object) -> None:
        """Everything must be learned."""

    def prepare(self, batch: Batch, root: int) -> Batch:
        """Count the pairs that have an answer; the examples bring it."""
        return batch.with_labels(int((batch.labels["pair"] != UNSAID).sum()), "pair")

    def places(self, batch: Batch) -> Tensor:
        """The first token of each text.  -> [N]"""
        return batch.begins

    def read(self, network: Network, states: Tensor, batch: Batch) -> Sums:
        """states [N, D]"""
        scores = network.pair_scores(states)  # [N, 2]
        answers = batch.labels["pair"]  # [N]
        loss = F.cross_entropy(scores, answers, ignore_index=UNSAID, reduction="sum")
        sums = {"pair": loss}
        if not network.training:
            sums["pair" + RIGHT] = (scores.argmax(dim=-1) == answers).sum()
        return sums
