"""Gradients -> weights: the optimizer with its groups, and the rate over the course of a run."""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.settings import Settings

Kind = Literal["linear", "cosine", "constant"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class OptimizerSettings(Settings):
    """AdamW (Loshchilov and Hutter 2019), as BERT used it."""

    rate: Annotated[float, Field(gt=0.0)] = 1e-4
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-6
    decay: Annotated[float, Field(ge=0.0)] = 0.01  # of matrices and tables, not of the rest
    clip: Annotated[float, Field(gt=0.0)] = 1.0  # the longest gradient that is followed


class ScheduleSettings(Settings):
    """How long a run is, in steps or by the clock, and the rate on the way."""

    kind: Kind = "linear"
    warmup: Fraction = 0.01  # share of the run until the full rate
    floor: Fraction = 0.0  # share of the rate that is left at the end
    steps: Annotated[int, Field(ge=1)] | None = None
    minutes: Annotated[float, Field(gt=0.0)] | None = None

    @model_validator(mode="after")
    def _one_length(self) -> "ScheduleSettings":
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("a run has steps or minutes; give one of the two.")
        return self

    def progress(self, step: int, seconds: float) -> float:
        """How much of the run is behind us, from 0 to 1."""
        if self.steps is not None:
            return min(step / self.steps, 1.0)
        assert self.minutes is not None
        return min(seconds / (60 * self.minutes), 1.0)

    def factor(self, progress: float) -> float:
        """What the rate is multiplied with."""
        if progress < self.warmup:
            return progress / self.warmup
        gone = (progress - self.warmup) / max(1.0 - self.warmup, 1e-9)
        left = {
            "linear": 1.0 - gone,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * gone)),
            "constant": 1.0,
        }[self.kind]
        return self.floor + (1.0 - self.floor) * left


def make_optimizer(module: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW on the parameters of a module; biases and norms do not decay."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    decayed = [p for _, p in named if p.ndim >= 2]
    others = [p for _, p in named if p.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": settings.decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Use this rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def read_moments(module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by name: `exp_avg/encoder.norm.weight`."""
    return {
        f"{key}/{name}": value
        for name, parameter in module.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if torch.is_tensor(value)
    }


def write_moments(module: nn.Module, optimizer: Optimizer, moments: dict[str, Tensor]) -> None:
    """Give an optimizer back what `read_moments` read."""
    for name, parameter in module.named_parameters():
        state = {
            key.partition("/")[0]: value
            for key, value in moments.items()
            if key.partition("/")[2] == name
        }
        if state:
            optimizer.state[parameter] = state
