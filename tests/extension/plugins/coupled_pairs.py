"""(b) The two halves of an example find each other among all of the step (in-batch negatives)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

import unmask
from unmask.data.batch import Batch
from unmask.model.network import Network
from unmask.model.shape import Heads, Shape, VectorConfig
from unmask.objectives.base import Companions, Objective, Sums, Term
from unmask.system.settings import Settings


class HalvesSettings(Settings):
    """How wide the vectors are, and how sharp the choice is at first."""

    width: Annotated[int, Field(ge=1)] = 8
    sharpness: Annotated[float, Field(gt=0.0)] = 5.0


class Halves(Objective):
    """Each first half must find its second half, and the other way round."""

    Config = HalvesSettings
    config: HalvesSettings
    coupled = True
    couples: ClassVar[Sequence[str]] = ("whole",)

    def describe(self) -> list[Term]:
        """One term."""
        return [Term("halves", "halves")]

    def heads(self, shape: Shape) -> Heads:
        """A map from states to vectors."""
        return {"half": VectorConfig(width=self.config.width)}

    def build(self, shape: Shape, companions: Companions) -> None:
        """A learned sharpness, used in `couple`."""
        self.sharpness = nn.Parameter(torch.tensor([self.config.sharpness]))

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Count the examples; very short ones have no two halves, and are no negatives either."""
        whole = batch.length >= 8
        return batch.with_labels(int(whole.sum()), "halves", whole=whole)

    def encode(self, network: Network, batch: Batch) -> Tensor:
        """The mean of each half.  -> [N, 2 * K]"""
        states = network.heads["half"](network.states_for("half", batch).flatten(0, 1))
        text, middle = batch.texts().flatten(), (batch.length // 2)[batch.texts().flatten()]
        halves = []
        for second in (False, True):
            chosen = (text >= 0) & ((batch.index.flatten() >= middle) == second)
            total = states.new_zeros(len(batch.row), states.shape[-1])
            total = total.index_add(0, text[chosen], states[chosen])
            halves.append(total / torch.bincount(text[chosen], minlength=len(total))[:, None])
        return torch.cat(halves, dim=-1)

    def couple(self, vectors: Tensor, batch: Batch) -> Sums:
        """A softmax over all halves of the other side.  [N, 2 * K]"""
        vectors = vectors[batch.labels["whole"]]
        first, second = (F.normalize(half, dim=-1) for half in vectors.chunk(2, dim=-1))
        scores = self.sharpness * first @ second.T
        right = torch.arange(len(scores), device=scores.device)
        both = [F.cross_entropy(own, right, reduction="sum") for own in (scores, scores.T)]
        return {"halves": (both[0] + both[1]) / 2}


unmask.register("objective", "halves", Halves)
