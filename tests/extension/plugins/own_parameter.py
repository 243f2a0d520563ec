"""(a) Masked language modelling with a learned temperature, which is drawn towards 1."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

import unmask
from unmask.data.batch import Batch
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.objectives.base import Companions, Sums, Term
from unmask.objectives.mlm import ANSWERS, MaskedLM, MaskSettings


class TemperedSettings(MaskSettings):
    """How hot the predictions begin, and how much it costs to stay away from 1."""

    start: Annotated[float, Field(gt=0.0)] = 2.0
    pull: Annotated[float, Field(ge=0.0)] = 0.5


class Tempered(MaskedLM):
    """Scores are divided by a temperature that only training knows."""

    Config = TemperedSettings
    config: TemperedSettings

    def build(self, shape: Shape, companions: Companions) -> None:
        """One number, as a tensor of one dimension."""
        self.temperature = nn.Parameter(torch.tensor([self.config.start]))

    def describe(self) -> list[Term]:
        """The usual term, and the distance from 1."""
        return [*super().describe(), Term("pull", "temperature")]

    @property
    def weights(self) -> dict[str, float]:
        """The distance counts as much as the settings say."""
        return {"pull": self.config.pull}

    def standard(self) -> "Tempered":
        """As it is trained: the temperature belongs to the question."""
        return self

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Each masked token pulls once."""
        batch = super().prepare(batch, key, progress)
        return batch.with_labels(len(batch.labels[ANSWERS]), "pull")

    def read(self, network: Network, states: Tensor, batch: Batch, *, each: bool = False) -> Sums:
        """Divide the scores before the softmax."""
        answers = batch.labels[ANSWERS]
        scores = network.token_scores(states) / self.temperature
        pull = (self.temperature - 1.0).square().sum() * len(answers)
        return {"mlm": F.cross_entropy(scores, answers, reduction="sum"), "pull": pull}


unmask.register("objective", "tempered", Tempered)
