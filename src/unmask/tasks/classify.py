"""Text classification: one label for a text or a pair of texts (BERT, section 4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from unmask.data.batches import Batch
from unmask.model.config import HeadsConfig
from unmask.model.network import Network
from unmask.objectives.base import RIGHT, Sums


@dataclass(frozen=True)
class Label:
    """An answer a person can read."""

    name: str
    probability: float


class Classify:
    """A linear reading of the pooled [CLS].

    Needs: labels label [N], the number of each text's label.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    @property
    def heads(self) -> HeadsConfig:
        """What a network needs for it."""
        return HeadsConfig(pooler=True, labels="text", label_names=self.names)

    def prepare(self, batch: Batch, root: int) -> Batch:
        """Count the texts; the labels are there."""
        return batch.with_labels(len(batch.labels["label"]), "label")

    def scores(self, network: Network, batch: Batch) -> Tensor:
        """One number for each text and label.  -> [N, C]"""
        assert network.label_head is not None, "this network has no label head"
        hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
        scores: Tensor = network.label_head(network.pooled(hidden, batch.row, batch.start))
        return scores

    def __call__(self, network: Network, batch: Batch) -> Sums:
        """Summed cross-entropy; in evaluation also how many were right."""
        scores, answers = self.scores(network, batch), batch.labels["label"]
        sums = {"label": F.cross_entropy(scores, answers, reduction="sum")}
        if not network.training:
            sums["label" + RIGHT] = (scores.argmax(dim=-1) == answers).sum()
        return sums

    def answer(self, network: Network, batch: Batch) -> list[Label]:
        """The most probable label of each text."""
        best = self.scores(network, batch).softmax(dim=-1).max(dim=-1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [Label(self.names[i], p) for i, p in pairs]
