"""Gradients -> weights: AdamW with its groups, and its tensors by name."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.train.schedule import OptimizerSettings


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
