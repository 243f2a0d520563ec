"""Shape and seed -> an initialised network: the only place where training makes networks.

Each weight is drawn from a generator seeded by (seed, part, parameter name), where a part is an
encoder, the pooler, another head or the decoder. Initial values therefore depend neither on the
order in which modules are created nor on the other parts of the network.
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

# Older names of some parts, kept as part of the random keys: with the new names, a seed would give
# other initial weights than it gave before.
SEED_NAMES = {MAIN: "encoder", TOKENS: "token_head", PAIR: "pair_head", LABELS: "label_head"}
MULTI_TASK = "label_heads"  # the part of all label heads of a multi-task network


def make_network(shape: Shape, seed: int, *, start: Network | None = None) -> Network:
    """Make an initialised network, and copy from `start` the weights that both networks have.

    Label heads are never copied: their outputs are the labels of another data set, even where the
    number of labels happens to be equal.
    """
    network = Network(shape)
    draw_values(network, seed)
    if start is not None:
        state: dict[str, Tensor] = network.state_dict()
        start_state: dict[str, Tensor] = start.state_dict()
        not_copied = tuple(f"heads.{name}." for name in (LABELS, *shape.several()))
        state |= {
            name: start_state[name]
            for name in state
            if name in start_state and not name.startswith(not_copied)
        }
        network.load_state_dict(state)
    return network


def draw_values(network: Network, seed: int) -> None:
    """Initialise all weights from the seed and their names; biases and norms keep their values."""
    for part, module, std in _parts(network):
        draw_part(module, part, seed, std)


def draw_part(module: nn.Module, part: str, seed: int, std: float) -> None:
    """Initialise the weights of one part from the seed, its name and the names inside it."""
    # A generator per parameter: one generator for all would tie each value to the order of modules.
    owners: Iterator[tuple[str, nn.Module]] = module.named_modules()
    for path, owner in owners:
        for name, parameter in owner.named_parameters(recurse=False):
            key = hashlib.sha256(f"{seed}/{part}/{path}.{name}".encode()).digest()
            number: int = int.from_bytes(key[:8], "big") % 2**63
            generator = torch.Generator().manual_seed(number)
            _draw(owner, name, parameter, std, generator)


def _parts(network: Network) -> Iterator[tuple[str, nn.Module, float]]:
    """Yield (name of the part, module, standard deviation) for all parts of a network."""
    # Parameter names start inside the yielded module, so they do not change when it moves within
    # the network. That is why the embeddings of an encoder are yielded separately.
    for name, config in network.shape.encoders.items():
        part, encoder = SEED_NAMES.get(name, name), network.encoder_of(name)
        yield part, encoder.embeddings, config.init_std
        other_modules = nn.ModuleDict({"blocks": encoder.blocks, "last_norm": encoder.last_norm})
        yield part, other_modules, config.init_std
    task_heads = network.shape.several()
    for name, head in network.shape.heads.items():
        std, module = network.shape.encoders[head.encoder].init_std, network.heads[name]
        if name in task_heads:
            yield MULTI_TASK, NamedModules({name: module}), std
        else:
            yield SEED_NAMES.get(name, name), module, std


def _draw(
    owner: nn.Module, name: str, parameter: nn.Parameter, std: float, generator: torch.Generator
) -> None:
    if isinstance(owner, nn.RNNBase):  # torch's own initialisation of recurrent layers
        bound: float = owner.get_parameter("weight_hh_l0").shape[1] ** -0.5
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    elif isinstance(owner, nn.Linear | nn.Embedding) and name == "weight" and std:
        nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std, generator=generator)


def with_layers(heads: Heads, mix: Mix, count: int) -> Heads:
    """Make the label head read the given layers, of `count`; it then needs no pooler."""
    labels = heads.get(LABELS)
    if mix == "last" or not isinstance(labels, LabelsConfig):
        return heads
    for layer in mix if isinstance(mix, tuple) else ():
        if not -count - 1 <= layer <= count:
            raise SettingsError(
                f"model.head_layers has {layer}, but the model has {count} layers; need numbers "
                f"from 0 (the embeddings) to {count}, or from -{count + 1} to -1."
            )
    return {LABELS: labels.model_copy(update={"mix": mix})}


def freeze(network: Network, blocks: int, *, pooler: bool) -> None:
    """Freeze the embeddings and the lowest `blocks` layers; -1 freezes the whole encoder.

    `pooler` freezes the pooler along with the whole encoder. Layers above the highest one that a
    head reads are frozen in any case.
    """
    encoder, config, count = network.encoder, network.config, network.config.layers
    all_blocks = list(encoder.blocks)
    # Layers that no head reads get no gradient, and distributed wrappers wait for the gradient of
    # every parameter that is trained.
    for block in all_blocks[_blocks_up_to(_highest_read_layer(network), config) :]:
        block.requires_grad_(False)
    if not blocks:
        return
    if blocks > count or blocks < -1:
        raise SettingsError(
            f"model.frozen is {blocks}, but the model has {count} layers; need a number of layers "
            f"up to {count}, or -1 for the whole encoder."
        )
    if 0 < blocks < count and config.group_of(blocks - 1) == config.group_of(blocks):
        raise SettingsError(
            f"model.frozen is {blocks}, but layers {blocks - 1} and {blocks} share their weights "
            f"(layer_groups = {config.groups}). Freeze all layers of a group, or none."
        )
    frozen_blocks = _blocks_up_to(count if blocks == -1 else blocks, config)
    parts = [encoder.embeddings, *all_blocks[:frozen_blocks]]
    if blocks == -1:
        parts.append(encoder.last_norm)
        if pooler and POOLER in network.heads:
            parts.append(network.heads[POOLER])
    for part in parts:
        part.requires_grad_(False)


def _blocks_up_to(layer: int, config: ModelConfig) -> int:
    """Return the number of blocks that the lowest `layer` layers use; layers may share blocks."""
    return config.group_of(layer - 1) + 1 if layer else 0


def _highest_read_layer(network: Network) -> int:
    """Return the highest layer of the main encoder that a head reads; without heads, the last."""
    count, layers = network.config.layers, []
    for head in map(network.shape.reads, network.shape.heads):
        if head.encoder == MAIN:
            numbers = head.mix if isinstance(head.mix, tuple) else (count,)
            layers += [number % (count + 1) for number in numbers]  # negative ones from the end
    return max(layers, default=count)


def part_of(network: Network, names: Sequence[str]) -> Network:
    """Return a network of the named encoders and heads, which shares its weights with `network`.

    Each head brings along its encoder, and the pooler if it reads it. In the new network, a single
    encoder is called `main`, and the label head of a single task `labels`.
    """
    heads = _heads_with_pooler(network.shape, names)
    read_encoders = {head.encoder for head in heads.values()}
    encoders = [name for name in network.encoders if name in names]
    encoders += [
        name for name in network.encoders if name in read_encoders and name not in encoders
    ]
    if len(encoders) != 1 and MAIN not in encoders:
        listed = ", ".join(encoders) or "none"
        raise SettingsError(
            f"a model of {', '.join(names)} has the encoders {listed}; need one called '{MAIN}', "
            f"or a single one. Add '{MAIN}', or publish each encoder in its own folder."
        )
    new_encoders = {name: MAIN if len(encoders) == 1 else name for name in encoders}
    tasks = [
        name for name, head in heads.items() if isinstance(head, LabelsConfig) and name != PAIR
    ]
    new_heads = {name: LABELS if tasks == [name] else name for name in heads}
    configs = {}
    for name in encoders:
        config = network.shape.encoders[name]
        lender = new_encoders[config.borrows] if config.borrows in encoders else None
        configs[new_encoders[name]] = config.model_copy(update={"borrows": lender})
    head_configs = {
        new_heads[name]: head.model_copy(update={"encoder": new_encoders[head.encoder]})
        for name, head in heads.items()
    }
    with torch.device("meta"):  # no memory: all weights are replaced below
        part = Network(Shape(encoders=configs, heads=head_configs))
    for name in encoders:
        _share_weights(part.encoder_of(new_encoders[name]), network, name)
    for name in heads:
        part.heads[new_heads[name]] = network.heads[name]
    return part.train(network.training)


def _heads_with_pooler(shape: Shape, names: Sequence[str]) -> dict[str, HeadConfig]:
    """Return the configs of the named heads, and of the pooler if one of them reads it."""
    heads = {name: head for name, head in shape.heads.items() if name in names}
    if any(isinstance(head, LabelsConfig) and head.pooled for head in heads.values()):
        return {POOLER: shape.heads[POOLER], **heads}
    return heads


def _share_weights(new: Encoder, network: Network, name: str) -> None:
    """Give the encoder `new` the modules of the encoder `name`, including its token embeddings."""
    old = network.encoder_of(name)
    new.blocks, new.last_norm = old.blocks, old.last_norm
    target, source = new.embeddings, old.embeddings
    target.segments, target.positions = source.segments, source.positions
    target.norm, target.project = source.norm, source.project
    lender = network.shape.encoders[name].borrows
    # An encoder whose lender stays behind has a table of its own here: it takes the lender's.
    if target.tokens is not None:
        target.tokens = network.encoder_of(lender).embeddings.tokens if lender else source.tokens
