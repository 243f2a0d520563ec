"""Gradients -> weights: AdamW with its groups, Muon, and their tensors by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.model.attention import JointLinear
from unmask.system.distributed import sharded_like
from unmask.train.optim.muon import Muon
from unmask.train.optim.schedules import OptimizerSettings

AVERAGE = "average"  # a running mean of the weights, among the optimizer's tensors


@dataclass(frozen=True)
class Place:
    """Where a parameter stands: what decides how the optimizer treats it."""

    depth: int | None = None  # inside the encoder: blocks up to it; None outside, as heads are
    in_block: bool = False


def place_parameters(
    module: nn.Module, place: Place = Place(), prefix: str = ""
) -> Iterator[tuple[str, nn.Parameter, Place]]:
    """Every parameter of a module with its name and place, by the attributes of the modules.

    An encoder has a `depth`, a block of any stack a `level`; both hold for all that is inside.
    """
    depth, level = getattr(module, "depth", place.depth), getattr(module, "level", None)
    if level is not None:
        place = Place(None if depth is None else level, in_block=True)
    else:
        place = replace(place, depth=depth)
    for name, parameter in module.named_parameters(prefix, recurse=False):
        yield name, parameter, place
    for name, inner in module.named_children():
        yield from place_parameters(inner, place, f"{prefix}.{name}" if prefix else name)


def make_optimizer(
    module: nn.Module, settings: OptimizerSettings, *, layers: int = 0
) -> torch.optim.AdamW:
    """Make an optimizer for the parameters of a module; biases and norms do not decay.

    `layers` is the number of blocks of the encoder, from which layer-wise rates count down.
    """
    named = [(p, place) for _, p, place in place_parameters(module) if p.requires_grad]
    muon = settings.kind == "muon"
    turned = [p for p, place in named if muon and p.ndim == 2 and place.in_block]
    apart = {id(p) for p in turned}
    alike: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, place in named:
        if id(parameter) not in apart:
            decay = settings.decay if parameter.ndim >= 2 else 0.0
            scale = settings.scale(place.depth, layers)
            alike.setdefault((decay, scale), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": own, "weight_decay": decay, "scale": scale}
        for (decay, scale), own in alike.items()
    ]
    betas = settings.beta1, settings.beta2
    rules = {"lr": settings.rate, "betas": betas, "eps": settings.epsilon, "fused": True}
    if not turned:
        return torch.optim.AdamW(groups, **rules)  # type: ignore[arg-type]
    parts = {id(m.weight): m.parts for m in module.modules() if isinstance(m, JointLinear)}
    last = {
        "params": turned,
        "parts": [parts.get(id(p), 1) for p in turned],
        "weight_decay": settings.decay,
        "momentum": settings.momentum,
        "factor": settings.factor,
    }
    return Muon([*groups, last], **rules)  # type: ignore[arg-type]


def average(module: nn.Module, optimizer: Optimizer, weight: float) -> None:
    """Keep a running mean of the weights, to which the newest ones count so much.

    It lies with the optimizer's tensors, and so in every checkpoint.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            state: dict[str, Tensor] = optimizer.state[parameter]
            if AVERAGE in state:
                state[AVERAGE].lerp_(parameter, weight)
            elif state:  # an optimizer expects to make its own tensors first
                state[AVERAGE] = parameter.detach().clone()


def mean(parameter: nn.Parameter, optimizer: Optimizer) -> Tensor:
    """The mean of a parameter, or the parameter where there is none."""
    return _state(parameter, optimizer).get(AVERAGE, parameter)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Use this rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)


def read_moments(modules: Mapping[str, nn.Module], optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by name, as `exp_avg/heads.pooler.dense.weight`.

    Each module has a prefix, with which the names of its parameters begin.
    """
    return {
        f"{key}/{name}": value
        for name, parameter in _named(modules).items()
        for key, value in _state(parameter, optimizer).items()
        if torch.is_tensor(value)
    }


def write_moments(
    modules: Mapping[str, nn.Module], optimizer: Optimizer, moments: dict[str, Tensor]
) -> None:
    """Give an optimizer back what `read_moments` read."""
    parameters = _named(modules)
    for key, value in moments.items():
        kind, _, name = key.partition("/")
        optimizer.state[parameters[name]][kind] = sharded_like(value, parameters[name])


def _named(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    return {
        f"{prefix}{name}": parameter
        for prefix, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def _state(parameter: nn.Parameter, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors for a parameter, if there are any yet."""
    found: dict[str, Tensor] = optimizer.state.get(parameter, {})
    return found
