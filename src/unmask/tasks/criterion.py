"""Answers whose truth is known -> their loss: what a network has learned, as it is evaluated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import torch

from unmask.data.batch import Batch
from unmask.model.network import Network
from unmask.objectives.base import Companions, Objective, Sums


@dataclass(frozen=True)
class Criterion:
    """An objective, with the networks that its loss is computed from."""

    network: Network
    objective: Objective
    companions: Companions = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network, objective: Objective) -> Self | None:
        """The criterion of a published model; None if it needs parts that are never published.

        These are what the objective has learned itself, companions, and other encoders and heads.
        """
        shape = network.shape
        needed: Mapping[str, object] = {**objective.encoders(shape), **objective.heads(shape)}
        if objective.companions() or needed.keys() - {*network.encoders, *network.heads}:
            return None
        with torch.random.fork_rng(devices=[]):  # first values, of no use here
            objective.build(shape, {})
        standard = objective.standard().to(network.table().device).eval()
        return None if standard.state_dict() else cls(network, standard)

    def __call__(self, batch: Batch) -> tuple[float, int]:
        """The sum of the main loss term, and the number of answers in it."""
        batch = self.objective.prepare(batch, 0, 0.0).to(self.network.table().device)
        sums: Sums = self.objective(self.network, batch, self.companions)
        main = self.objective.terms[0]
        return float(sums[main]), batch.counts[main]
