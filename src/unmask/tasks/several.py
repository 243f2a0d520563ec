"""Several tasks on one encoder, each with a head of its own: the objective of such a run."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unmask.data.batches import Batch
from unmask.model.config import HeadsConfig, LabelsConfig
from unmask.model.network import Network
from unmask.objectives.base import Sums
from unmask.tasks.base import Task
from unmask.tasks.engine import scores_of


class SeveralTasks:
    """The loss of the task that a batch belongs to, which the name of its answers tells."""

    chance = None

    def __init__(self, tasks: Mapping[str, Task], network: Network) -> None:
        self.tasks, self.terms = tasks, list(tasks)
        self.networks = {name: network.only(name) for name in tasks}

    def __call__(self, network: Network, batch: Batch) -> Sums:
        """The loss of one task; the heads of the others get a gradient of zero."""
        (name,) = batch.counts
        own = self.networks[name].train(network.training)
        loss = self.tasks[name].loss(scores_of(own, batch), batch)
        idle = [
            p
            for other, head in network.label_heads.items()
            if other != name
            for p in head.parameters()
        ]
        idle += network.pooler.parameters() if network.pooler else []
        shared: Tensor = ZeroGradients.apply(loss, *idle)  # type: ignore[no-untyped-call]
        return {name: shared}


class ZeroGradients(torch.autograd.Function):
    """The identity on a loss, with a gradient of zero for the parameters beside it.

    DDP and FSDP wait for the gradients of all parameters, and weight decay applies to those that a
    batch does not use. Unlike adding zero times a parameter, a NaN in one of them stays there.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *idle: Tensor) -> Tensor:
        """[] -> []"""
        ctx.shapes = [(tensor.shape, tensor.dtype, tensor.device) for tensor in idle]
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """The gradient as it is, and zeros."""
        return gradients[0], *(torch.zeros(s, dtype=d, device=c) for s, d, c in ctx.shapes)


def heads_of(tasks: Mapping[str, Task]) -> HeadsConfig:
    """A head for each task; a pooler if one of them reads it."""
    fields = set(LabelsConfig.model_fields)
    several = {
        name: LabelsConfig(**task.heads.model_dump(include=fields)) for name, task in tasks.items()
    }
    return HeadsConfig(pooler=any(h.labels == "text" for h in several.values()), several=several)
