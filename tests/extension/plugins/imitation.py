"""(d) Masked language modelling while imitating the hidden states of a frozen, wider model."""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

import unmask
from unmask.data.batch import Batch
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.objectives.base import Companions, Sums, Term
from unmask.objectives.mlm import MaskedLM, MaskSettings


class ImitateSettings(MaskSettings):
    """Who is imitated, and how much that counts."""

    teacher: str
    weight: Annotated[float, Field(gt=0.0)] = 1.0


class Imitate(MaskedLM):
    """A linear map, which only training needs, takes the student's states to the teacher's."""

    Config = ImitateSettings
    config: ImitateSettings

    def describe(self) -> list[Term]:
        """The usual term, and the distance to the teacher."""
        return [*super().describe(), Term("distance", "the teacher's states")]

    @property
    def weights(self) -> dict[str, float]:
        """As the settings say."""
        return {"distance": self.config.weight}

    def companions(self) -> dict[str, str]:
        """The teacher."""
        return {"teacher": self.config.teacher}

    def build(self, shape: Shape, companions: Companions) -> None:
        """From the student's width to the teacher's."""
        self.map = nn.Linear(shape.main.width, companions["teacher"].config.width)

    def standard(self) -> "Imitate":
        """As it is trained."""
        return self

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Every real token is imitated."""
        batch = super().prepare(batch, key, progress)
        return batch.with_labels(int((batch.owner >= 0).sum()), "distance")

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """One pass of each network."""
        states = network.encode(batch).flatten(0, 1)
        with torch.no_grad():
            truth = companions["teacher"].encode(batch).flatten(0, 1)
        real = (batch.owner >= 0).flatten()
        gap = (self.map(states[real]) - truth[real]).square().mean(dim=-1).sum()
        return {**self.read(network, states[self.places(batch)], batch), "distance": gap}


unmask.register("objective", "imitate", Imitate)
