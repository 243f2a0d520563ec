"""A step of training as the loop takes it: its gradient, and the move of the optimizer."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from unmask.system.distributed import Processes
from unmask.train.steps import step_for
from unmask.train.steps.base import MicroBatch, StepResult, StepSite, TrainingModule


def take_step(
    module: TrainingModule,
    pieces: Sequence[MicroBatch],
    optimizer: Optimizer,
    processes: Processes = Processes(),
    **site: Any,
) -> StepResult | None:
    """Compute the gradient of these batches and use it, unless it is not finite or given up."""
    result = step_for(module.objective)(module, pieces, StepSite(processes, **site))
    if result is not None and result.taken:
        optimizer.step()
    return result
