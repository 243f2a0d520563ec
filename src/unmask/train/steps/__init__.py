"""Batches of a step -> its gradient: the only files that compute gradients."""

from unmask.objectives.base import Objective
from unmask.train.steps.base import Step
from unmask.train.steps.coupled import Coupled
from unmask.train.steps.summed import Summed


def step_for(objective: Objective, *, shard: bool = False) -> Step:
    """The step that an objective needs."""
    return Coupled(objective, shard=shard) if objective.coupled else Summed(objective)
