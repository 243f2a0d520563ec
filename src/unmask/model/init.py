"""Initial weights: BERT's truncated normal distribution."""

import torch
from torch import nn


def embedding_table(count: int, width: int) -> nn.Embedding:
    """Make an embedding layer whose weights are not initialised yet."""
    # `nn.Embedding` alone would draw the whole table from a normal distribution first, and
    # `init_weights` or a model folder would overwrite it.
    vectors: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(count, width), freeze=False)
    return vectors


def init_weights(module: nn.Module, std: float) -> None:
    """Draw weights from a normal distribution cut at two standard deviations; zero the biases.

    Norms are left as torch makes them, the identity. Weights on the device "meta" are left alone:
    they have no memory yet and are about to be read from a file.
    """
    if not isinstance(module, nn.Linear | nn.Embedding) or module.weight.is_meta:
        return
    if std:
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    else:  # `trunc_normal_` divides by the deviation
        nn.init.zeros_(module.weight)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
