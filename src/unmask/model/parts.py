"""A network -> a network of some of its encoders and heads, with the same weights."""

from collections.abc import Sequence

import torch

from unmask.model.encoder import Encoder
from unmask.model.network import Network
from unmask.model.shape import LABELS, MAIN, PAIR, POOLER, HeadConfig, LabelsConfig, Shape
from unmask.system.errors import SettingsError


def part_of(network: Network, names: Sequence[str]) -> Network:
    """The network of the encoders and heads that are named; nothing is copied.

    A head brings its encoder and the pooler that it reads. A single encoder is called `main` in the
    part, and the labels of a single task `labels`.
    """
    heads = _heads(network.shape, names)
    read = {own.encoder for own in heads.values()}
    encoders = [name for name in network.encoders if name in names]
    encoders += [n for n in network.encoders if n in read and n not in encoders]
    if len(encoders) != 1 and MAIN not in encoders:
        own = ", ".join(encoders) or "none"
        raise SettingsError(
            f"a model of {', '.join(names)} has the encoders {own}; need one that is called "
            f"'{MAIN}', or a single one. Add '{MAIN}', or publish each encoder in its own folder."
        )
    new = {name: MAIN if len(encoders) == 1 else name for name in encoders}
    tasks = [n for n, own in heads.items() if isinstance(own, LabelsConfig) and n != PAIR]
    called = {name: LABELS if tasks == [name] else name for name in heads}
    configs = {}
    for name in encoders:
        config = network.shape.encoders[name]
        lender = new[config.borrows] if config.borrows in encoders else None
        configs[new[name]] = config.model_copy(update={"borrows": lender})
    moved = {
        called[name]: own.model_copy(update={"encoder": new[own.encoder]})
        for name, own in heads.items()
    }
    with torch.device("meta"):
        part = Network(Shape(encoders=configs, heads=moved))
    for name in encoders:
        _share(part.encoder_of(new[name]), network, name)
    for name in heads:
        part.heads[called[name]] = network.heads[name]
    return part.train(network.training)


def _heads(shape: Shape, names: Sequence[str]) -> dict[str, HeadConfig]:
    """The heads that are named, and the pooler if one of them reads it."""
    heads = {name: own for name, own in shape.heads.items() if name in names}
    if any(isinstance(own, LabelsConfig) and own.pooled for own in heads.values()):
        return {POOLER: shape.heads[POOLER], **heads}
    return heads


def _share(new: Encoder, network: Network, name: str) -> None:
    """Give an encoder the parts of another one, and the token embeddings that this one uses."""
    old = network.encoder_of(name)
    new.blocks, new.last_norm = old.blocks, old.last_norm
    own, others = new.embeddings, old.embeddings
    own.segments, own.positions, own.norm = others.segments, others.positions, others.norm
    own.project = others.project
    lender = network.shape.encoders[name].borrows
    if own.tokens is not None:
        own.tokens = network.encoder_of(lender).embeddings.tokens if lender else others.tokens
