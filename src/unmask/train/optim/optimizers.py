"""Gradients -> weights: AdamW and Muon, their parameter groups, and their state by name."""

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

AVERAGE = "average"  # key of the running mean of the weights in the optimizer's state


@dataclass(frozen=True)
class Place:
    """Location of a parameter in the network, which decides how the optimizer treats it."""

    depth: int | None = None  # layer in the encoder, embeddings 0; None outside, as in heads
    in_block: bool = False


def place_parameters(
    module: nn.Module, place: Place = Place(), prefix: str = ""
) -> Iterator[tuple[str, nn.Parameter, Place]]:
    """Yield every parameter of a module with its name and place.

    Modules declare their place: an encoder has the attribute `depth`, a block of any stack `level`.
    Both hold for everything inside.
    """
    depth, level = getattr(module, "depth", place.depth), getattr(module, "level", None)
    if level is not None:  # a decoder's blocks have a level too, but no depth in the encoder
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
    """Make an optimizer for a module, without weight decay for biases and norms.

    `layers` is the number of encoder layers, from which layer-wise learning rates count down.
    """
    placed = [(p, place) for _, p, place in place_parameters(module) if p.requires_grad]
    muon = settings.kind == "muon"
    # Hidden matrices only, as in Jordan et al.: embeddings and heads stay with AdamW.
    matrices = [p for p, place in placed if muon and p.ndim == 2 and place.in_block]
    matrix_ids = {id(p) for p in matrices}
    by_rule: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, place in placed:
        if id(parameter) not in matrix_ids:
            decay = settings.weight_decay if parameter.ndim >= 2 else 0.0
            scale = settings.scale(place.depth, layers)
            by_rule.setdefault((decay, scale), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": decay, "scale": scale}
        for (decay, scale), parameters in by_rule.items()
    ]
    betas = settings.beta1, settings.beta2
    arguments = {
        "lr": settings.learning_rate,
        "betas": betas,
        "eps": settings.epsilon,
        "fused": True,
    }
    if not matrices:
        return torch.optim.AdamW(groups, **arguments)  # type: ignore[arg-type]
    part_counts = {id(m.weight): m.parts for m in module.modules() if isinstance(m, JointLinear)}
    muon_group = {
        "params": matrices,
        "parts": [part_counts.get(id(p), 1) for p in matrices],
        "weight_decay": settings.weight_decay,
        "momentum": settings.momentum,
        "factor": settings.muon_factor,
    }
    return Muon([*groups, muon_group], **arguments)  # type: ignore[arg-type]


def average(module: nn.Module, optimizer: Optimizer, weight: float) -> None:
    """Update the running mean of the weights; `weight` is the share of the present weights.

    The mean is kept in the optimizer's state, and so in every checkpoint.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            state: dict[str, Tensor] = optimizer.state[parameter]
            if AVERAGE in state:
                state[AVERAGE].lerp_(parameter, weight)
            elif state:  # empty until the first step; AdamW sets up its tensors only if it is empty
                state[AVERAGE] = parameter.detach().clone()


def mean(parameter: nn.Parameter, optimizer: Optimizer) -> Tensor:
    """Return the running mean of a parameter, or the parameter itself if it has none."""
    return _optimizer_state(parameter, optimizer).get(AVERAGE, parameter)


def read_moments(modules: Mapping[str, nn.Module], optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's tensors by name, such as `exp_avg/heads.pooler.dense.weight`.

    Names instead of torch's parameter numbers, which change with every head that is added. The keys
    of `modules` are the prefixes of the names.
    """
    return {
        f"{key}/{name}": value
        for name, parameter in _named_parameters(modules).items()
        for key, value in _optimizer_state(parameter, optimizer).items()
        if torch.is_tensor(value)
    }


def write_moments(
    modules: Mapping[str, nn.Module], optimizer: Optimizer, moments: dict[str, Tensor]
) -> None:
    """Restore the tensors that `read_moments` returned, sharded like their parameters."""
    parameters = _named_parameters(modules)
    for full_name, value in moments.items():
        key, _, name = full_name.partition("/")
        optimizer.state[parameters[name]][key] = sharded_like(value, parameters[name])


def _named_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    return {
        f"{prefix}{name}": parameter
        for prefix, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def _optimizer_state(parameter: nn.Parameter, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's tensors of a parameter; empty before its first step."""
    # get(): the state is a defaultdict, and reading by [] would add an empty entry.
    state: dict[str, Tensor] = optimizer.state.get(parameter, {})
    return state
