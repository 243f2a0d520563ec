"""Gradients -> weights: AdamW with its groups, Muon, and their tensors by name."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.model.attention import Joined
from unmask.train.muon import Muon
from unmask.train.schedule import OptimizerSettings

AVERAGE = "average"  # a running mean of the weights, among the optimizer's tensors


def make_optimizer(
    module: nn.Module,
    settings: OptimizerSettings,
    *,
    shard: bool = False,
    scale: Callable[[str], float] = lambda name: 1.0,
) -> torch.optim.AdamW:
    """An optimizer for the parameters of a module; biases and norms do not decay.

    `scale` says by a parameter's name how its rate compares with that of the others.
    """
    if shard:
        settings.refuse_shares()
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    inside = {name: p for name, p in named if p.ndim == 2 and ".blocks." in name}
    turned = inside if settings.kind == "muon" else {}
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in named:
        if name not in turned:
            how = settings.decay if parameter.ndim >= 2 else 0.0, scale(name)
            group = {"params": [], "weight_decay": how[0], "scale": how[1]}
            groups.setdefault(how, group)["params"].append(parameter)
    rules = {
        "lr": settings.rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.epsilon,
        "fused": True,
    }
    if not turned:
        return torch.optim.AdamW(list(groups.values()), **rules)  # type: ignore[arg-type]
    own = {"momentum": settings.momentum, "factor": settings.factor, "decay": settings.decay}
    parts = {id(m.weight): m.parts for m in module.modules() if isinstance(m, Joined)}
    matrices = [(p, parts.get(id(p), 1)) for p in turned.values()]
    return Muon(list(groups.values()), matrices, **own, **rules)  # type: ignore[arg-type]


def average(module: nn.Module, optimizer: Optimizer, weight: float) -> None:
    """Keep a running mean of the weights, to which the newest ones count so much.

    It lies with the optimizer's tensors, and so in every checkpoint.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            state = optimizer.state[parameter]
            if AVERAGE in state:
                state[AVERAGE].lerp_(parameter, weight)
            elif state:  # an optimizer wants to find its own tensors first
                state[AVERAGE] = parameter.detach().clone()


def mean(parameter: nn.Parameter, optimizer: Optimizer) -> Tensor:
    """The mean of a parameter, or the parameter where there is none."""
    found: Tensor = optimizer.state.get(parameter, {}).get(AVERAGE, parameter)
    return found


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Use this rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)


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
