"""Labelled batch -> loss and number of labels, as evaluations measure it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import torch

from unmask.data.batch import Batch
from unmask.model.network import Network
from unmask.objectives.base import Companions, Objective, Sums


@dataclass(frozen=True)
class Criterion:
    """An objective, with the networks that its loss needs."""

    network: Network
    objective: Objective
    companions: Companions = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network, objective: Objective) -> Self | None:
        """Return the criterion of a published model; None if its loss needs unpublished parts.

        Such parts are trained parameters of the objective, companions, and further encoders and
        heads.
        """
        shape = network.shape
        needed: Mapping[str, object] = {**objective.encoders(shape), **objective.heads(shape)}
        if objective.companions() or needed.keys() - {*network.encoders, *network.heads}:
            return None
        # `build` draws initial weights. Nothing uses them here, but drawing them must not change
        # the random state of the caller.
        with torch.random.fork_rng(devices=[]):
            objective.build(shape, {})
        standard = objective.standard().to(network.table().device).eval()
        # Parameters of the objective were trained and not published. Here they are freshly drawn,
        # and a loss computed with them would mean nothing.
        return None if standard.state_dict() else cls(network, standard)

    def __call__(self, batch: Batch) -> tuple[float, int]:
        """Return the summed main term of the loss and the number of labels in the sum."""
        # Key 0 and progress 0: the loss of the same batch is the same at any point of a run.
        batch = self.objective.prepare(batch, 0, 0.0).to(self.network.table().device)
        sums: Sums = self.objective(self.network, batch, self.companions)
        main = self.objective.terms[0]
        return float(sums[main]), batch.counts[main]
