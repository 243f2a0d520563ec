"""Objective and shape -> the network to train, and the frozen companions of the objective."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from unmask.checkpoint.fetch import locate
from unmask.checkpoint.folder import load_folder
from unmask.checkpoint.integrity import fingerprint
from unmask.data import counter_rng
from unmask.model.factory import draw_part, make_network
from unmask.model.init import init_weights as zero_start
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.objectives.base import Companions, Objective, TextStatistics
from unmask.system.settings import validate

_PARAMETERS = 203  # key of the draws for an objective's own parameters


@dataclass(frozen=True)
class Learner:
    """The network to train for an objective, and the objective's frozen companions."""

    network: Network
    companions: Companions
    digests: Mapping[str, str]  # sha256 of each companion


def learner_of(
    objective: Objective,
    shape: Shape,
    seed: int,
    *,
    start: Network | None = None,
    statistics: TextStatistics | None = None,
) -> Learner:
    """Make the network and parameters that an objective needs, and load its companions.

    Weights that the network has in common with `start` are copied (see `make_network`). Objectives
    may use the `statistics` of a corpus for initial values.
    """
    table = {
        "encoders": {**shape.encoders, **objective.encoders(shape)},
        "heads": {**shape.heads, **objective.heads(shape)},
    }
    shape = validate(Shape, table, where="objective")
    folders = {name: load_folder(locate(path)) for name, path in objective.companions().items()}
    companions = {name: folder.network for name, folder in folders.items()}
    std = shape.main.init_std
    with torch.random.fork_rng(devices=[]):  # for layers that draw outside draw_part
        torch.manual_seed(counter_rng.key(seed, _PARAMETERS) % 2**63)
        objective.build(shape, companions)
    # Biases become zero; then weights are drawn by name, so that adding one changes no other.
    objective.apply(partial(zero_start, std=std))
    draw_part(objective, "objective", seed, std)
    digests = {name: fingerprint(folder.path) for name, folder in folders.items()}
    network = make_network(shape, seed, start=start)
    objective.begin(network, statistics or TextStatistics())
    return Learner(network, companions, digests)
