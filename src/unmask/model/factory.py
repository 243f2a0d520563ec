"""Config and seed -> a network with its first values: the only place where training gets one.

Every value is drawn by the seed and the name of its parameter inside its part (the encoder, the
pooler, a head, the decoder). So neither the order in which modules are made nor the parts that
stand beside one another change what a part begins with.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import nn

from unmask.errors import SettingsError
from unmask.model.config import HeadsConfig, ModelConfig
from unmask.model.network import Network


def make_network(
    config: ModelConfig, heads: HeadsConfig, seed: int, *, start: Network | None = None
) -> Network:
    """Make a network; what it has in common with `start`, apart from label heads, is copied.

    A label head is always new: it belongs to the labels of one data set.
    """
    network = Network(config, heads)
    draw_values(network, seed)
    if start is not None:
        own = network.state_dict()
        copied = {
            name: tensor
            for name, tensor in start.state_dict().items()
            if name in own and not name.startswith("label_head")
        }
        network.load_state_dict({**own, **copied})
    return network


def draw_values(network: Network, seed: int) -> None:
    """Draw the first value of every weight by the seed and its name; biases and norms stay."""
    std = network.config.init_std
    for part, module in network.named_children():
        for path, owner in module.named_modules():
            for name, parameter in owner.named_parameters(recurse=False):
                key = hashlib.sha256(f"{seed}/{part}/{path}.{name}".encode()).digest()
                number = int.from_bytes(key[:8], "big") % 2**63
                generator = torch.Generator().manual_seed(number)
                _draw(owner, name, parameter, std, generator)


def _draw(
    owner: nn.Module, name: str, parameter: nn.Parameter, std: float, generator: torch.Generator
) -> None:
    if isinstance(owner, nn.RNNBase):  # as torch does, but by name
        bound = owner.get_parameter("weight_hh_l0").shape[1] ** -0.5
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    elif isinstance(owner, nn.Linear | nn.Embedding) and name == "weight" and std:
        nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std, generator=generator)


def with_layers(heads: HeadsConfig, layers: Sequence[int], count: int) -> HeadsConfig:
    """Let the label head read these layers of `count`, side by side; the usual ones if none."""
    if not layers:
        return heads
    for layer in layers:
        if not -count - 1 <= layer <= count:
            raise SettingsError(
                f"model.head_layers has {layer}, and the model has {count} blocks; need numbers "
                f"from 0 (the embeddings) to {count}, or from -{count + 1} to -1."
            )
    return heads.model_copy(update={"layers": tuple(layers), "pooler": False})


def freeze(network: Network, blocks: int, *, pooler: bool) -> None:
    """Keep the embeddings and the lowest blocks as they are; -1 means the whole encoder.

    With the whole encoder a trained pooler is frozen too. Blocks above the highest layer that a
    head reads receive no gradient and are frozen in any case.
    """
    layers = [layer % (network.config.layers + 1) for layer in network.heads.layers]
    for block in network.encoder.blocks[max(layers, default=network.config.layers) :]:
        block.requires_grad_(False)
    if not blocks:
        return
    if blocks > network.config.layers or blocks < -1:
        raise SettingsError(
            f"model.frozen is {blocks}, and the model has {network.config.layers} blocks; need a "
            "number of them, or -1 for all."
        )
    encoder = network.encoder
    parts = [encoder.tokens, encoder.segments, encoder.positions, encoder.norm]
    parts += list(encoder.blocks[: blocks if blocks > 0 else None])
    if blocks == -1:
        parts += [encoder.last_norm, *([network.pooler] if network.pooler and pooler else [])]
    for part in parts:
        part.requires_grad_(False)
