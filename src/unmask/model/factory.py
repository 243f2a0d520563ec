"""Config and seed -> a network with its first values: the only place where training gets one.

Every value is drawn by the seed and the name of its parameter inside its part (the encoder, the
pooler, a head, the decoder). So neither the order in which modules are made nor the parts that
stand beside one another change what a part begins with.
"""

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from unmask.model.config import ModelConfig
from unmask.model.encoder import Encoder
from unmask.model.network import NamedModules, Network
from unmask.model.shape import (
    LABELS,
    MAIN,
    PAIR,
    POOLER,
    TOKENS,
    HeadConfig,
    Heads,
    LabelsConfig,
    Mix,
    Shape,
)
from unmask.system.errors import SettingsError

# Parts whose values have been drawn by another name since before they had this one.
PARTS = {MAIN: "encoder", TOKENS: "token_head", PAIR: "pair_head", LABELS: "label_head"}
SEVERAL = "label_heads"  # in which each of several tasks has its name


def make_network(shape: Shape, seed: int, *, start: Network | None = None) -> Network:
    """Make a network; what it has in common with `start`, apart from labels, is copied.

    A head of labels is always new, of one task or several: it belongs to the labels of its data.
    """
    network = Network(shape)
    draw_values(network, seed)
    if start is not None:
        own: dict[str, Tensor] = network.state_dict()
        given: dict[str, Tensor] = start.state_dict()
        new = tuple(f"heads.{name}." for name in (LABELS, *shape.several()))
        own |= {n: given[n] for n in own if n in given and not n.startswith(new)}
        network.load_state_dict(own)
    return network


def draw_values(network: Network, seed: int) -> None:
    """Draw the first value of every weight by the seed and its name; biases and norms stay."""
    for part, module, std in _parts(network):
        draw_part(module, part, seed, std)


def draw_part(module: nn.Module, part: str, seed: int, std: float) -> None:
    """Draw the values of one part, by its name and the names inside it."""
    owners: Iterator[tuple[str, nn.Module]] = module.named_modules()
    for path, owner in owners:
        for name, parameter in owner.named_parameters(recurse=False):
            key = hashlib.sha256(f"{seed}/{part}/{path}.{name}".encode()).digest()
            number: int = int.from_bytes(key[:8], "big") % 2**63
            generator = torch.Generator().manual_seed(number)
            _draw(owner, name, parameter, std, generator)


def _parts(network: Network) -> Iterator[tuple[str, nn.Module, float]]:
    """The parts of a network by names that stay when modules move, and how wide to draw them."""
    for name, config in network.shape.encoders.items():
        part, encoder = PARTS.get(name, name), network.encoder_of(name)
        yield part, encoder.embeddings, config.init_std
        rest = nn.ModuleDict({"blocks": encoder.blocks, "last_norm": encoder.last_norm})
        yield part, rest, config.init_std
    several = network.shape.several()
    for name, head in network.shape.heads.items():
        std, module = network.shape.encoders[head.encoder].init_std, network.heads[name]
        if name in several:
            yield SEVERAL, NamedModules({name: module}), std
        else:
            yield PARTS.get(name, name), module, std


def _draw(
    owner: nn.Module, name: str, parameter: nn.Parameter, std: float, generator: torch.Generator
) -> None:
    if isinstance(owner, nn.RNNBase):  # as torch does, but by name
        bound: float = owner.get_parameter("weight_hh_l0").shape[1] ** -0.5
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    elif isinstance(owner, nn.Linear | nn.Embedding) and name == "weight" and std:
        nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std, generator=generator)


def with_layers(heads: Heads, mix: Mix, count: int) -> Heads:
    """Let the labels read these layers of `count`; then no pooler is needed."""
    labels = heads.get(LABELS)
    if mix == "last" or not isinstance(labels, LabelsConfig):
        return heads
    for layer in mix if isinstance(mix, tuple) else ():
        if not -count - 1 <= layer <= count:
            raise SettingsError(
                f"model.head_layers has {layer}, and the model has {count} blocks; need numbers "
                f"from 0 (the embeddings) to {count}, or from -{count + 1} to -1."
            )
    return {LABELS: labels.model_copy(update={"mix": mix})}


def freeze(network: Network, blocks: int, *, pooler: bool) -> None:
    """Keep the embeddings and the lowest layers as they are; -1 means the whole encoder.

    With the whole encoder a trained pooler is frozen too. Layers above the highest one that a
    head reads receive no gradient and are frozen in any case.
    """
    encoder, config, count = network.encoder, network.config, network.config.layers
    blocks_of = list(encoder.blocks)
    for block in blocks_of[_blocks_up_to(_highest(network), config) :]:
        block.requires_grad_(False)
    if not blocks:
        return
    if blocks > count or blocks < -1:
        raise SettingsError(
            f"model.frozen is {blocks}, and the model has {count} blocks; need a number of them, "
            "or -1 for all."
        )
    if 0 < blocks < count and config.group_of(blocks - 1) == config.group_of(blocks):
        raise SettingsError(
            f"model.frozen is {blocks}, and the layers {blocks - 1} and {blocks} share their "
            f"weights (layer_groups = {config.groups}). Freeze all layers of a group, or none."
        )
    lowest = _blocks_up_to(count if blocks == -1 else blocks, config)
    parts = [encoder.embeddings, *blocks_of[:lowest]]
    if blocks == -1:
        parts.append(encoder.last_norm)
        if pooler and POOLER in network.heads:
            parts.append(network.heads[POOLER])
    for part in parts:
        part.requires_grad_(False)


def _blocks_up_to(layer: int, config: ModelConfig) -> int:
    """How many blocks so many layers from the bottom have: fewer, where layers share them."""
    return config.group_of(layer - 1) + 1 if layer else 0


def _highest(network: Network) -> int:
    """The highest layer of the main encoder that a head reads; the last if there is no head."""
    count, found = network.config.layers, []
    for head in map(network.shape.reads, network.shape.heads):
        if head.encoder == MAIN:
            numbers = head.mix if isinstance(head.mix, tuple) else (count,)
            found += [number % (count + 1) for number in numbers]
    return max(found, default=count)


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
