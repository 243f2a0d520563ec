"""Weights before training: BERT's start, a narrow normal distribution."""

import torch
from torch import nn


def embedding_table(count: int, width: int) -> nn.Embedding:
    """Trained vectors, looked up by number; `start` fills them, so nothing else needs to."""
    vectors: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(count, width), freeze=False)
    return vectors


def init_weights(module: nn.Module, std: float) -> None:
    """Draw weights from a normal distribution cut at two deviations; biases are zero.

    A norm starts neutral by itself. Weights without memory (meta) are about to be read from disk.
    """
    if not isinstance(module, nn.Linear | nn.Embedding) or module.weight.is_meta:
        return
    if std:
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    else:
        nn.init.zeros_(module.weight)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
