"""Micro-batches of a step -> its gradient: the only files that compute gradients in training."""

from unmask.objectives.base import Objective
from unmask.train.steps.base import Step
from unmask.train.steps.coupled import Coupled
from unmask.train.steps.summed import Summed


def step_for(objective: Objective, *, shard: bool = False) -> Step:
    """Choose the kind of step that an objective needs."""
    return Coupled(objective, shard=shard) if objective.coupled else Summed(objective)
