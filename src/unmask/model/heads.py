"""Hidden states -> scores: the small layers that stand on an encoder, and what makes any head."""

from functools import partial

import torch
from torch import Tensor, nn

from unmask.model.block import ACTIVATIONS, dropout_of, norm_of
from unmask.model.config import ModelConfig
from unmask.model.decoding.decoder import Decoder
from unmask.model.decoding.recurrent import RecurrentDecoder
from unmask.model.init import init_weights
from unmask.model.shape import (
    DecoderConfig,
    HeadConfig,
    LabelsConfig,
    Mix,
    PoolerConfig,
    TokensConfig,
    VectorConfig,
)


class WeightedMix(nn.Module):
    """A mean of the layers with learned weights, times a learned scale (Peters et al. 2018)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, layers: list[Tensor]) -> Tensor:
        """layers x [..., D] -> [..., D]"""
        shares = self.weights.softmax(dim=0)
        mixed: Tensor = torch.einsum("l,l...->...", shares, torch.stack(layers))
        return self.scale * mixed


class ChosenLayers(nn.Module):
    """Some layers side by side; the last one alone, if no numbers are given."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, layers: list[Tensor]) -> Tensor:
        """layers x [..., D] -> [..., numbers * D]"""
        if not self.numbers:
            return layers[-1]
        return torch.cat([layers[number] for number in self.numbers], dim=-1)


def mixed_layers(config: ModelConfig, mix: Mix) -> WeightedMix | ChosenLayers:
    """Make what joins the layers of an encoder for a head."""
    if mix == "weighted":
        return WeightedMix(config.layers + 1)
    return ChosenLayers(() if mix == "last" else mix)


def mixed_width(config: ModelConfig, mix: Mix) -> int:
    """How wide the states are that a head reads."""
    return config.width * (len(mix) if isinstance(mix, tuple) else 1)


class Head(nn.Module):
    """A linear layer on some layers of an encoder: what all heads have in common."""

    def __init__(self, config: ModelConfig, mix: Mix, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.mix = mixed_layers(config, mix)
        self.dense = nn.Linear(mixed_width(config, mix), width, bias=bias)
        init_weights(self.dense, config.init_std)

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, width]"""
        out: Tensor = self.dense(x)
        return out


class Pooler(Head):
    """A tanh layer on the state of [CLS]: one vector for the whole text."""

    def __init__(self, config: ModelConfig, mix: Mix = "last") -> None:
        super().__init__(config, mix, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, D]"""
        return torch.tanh(self.dense(x))


class TokenHead(Head):
    """Which token was it? A state that the token embeddings themselves are compared with.

    Run it only on the states of masked tokens: V is much wider than D.
    """

    def __init__(self, config: ModelConfig, mix: Mix = "last") -> None:
        super().__init__(config, mix, config.table_width)
        self.norm = norm_of(config, config.table_width)
        self.bias = nn.Parameter(self.dense.weight.new_zeros(config.vocab_size))
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, E]"""
        out: Tensor = self.norm(self.activation(self.dense(x)))
        return out


class LabelHead(Head):
    """A linear reading: of a pooled text, of each token, of the two ends of a span, of a pair."""

    def __init__(self, config: ModelConfig, labels: LabelsConfig) -> None:
        super().__init__(config, labels.mix, len(labels.names))
        self.labels = labels
        self.dropout = dropout_of(labels.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, C]"""
        return super().forward(self.dropout(x))


class VectorHead(Head):
    """A linear map of states to vectors of another width."""

    def __init__(self, config: ModelConfig, vector: VectorConfig) -> None:
        super().__init__(config, vector.mix, vector.width, bias=vector.bias)


def make_head(config: ModelConfig, head: HeadConfig) -> nn.Module:
    """The head of a config, with first weights, for an encoder."""
    match head:
        case PoolerConfig():
            return Pooler(config, head.mix)
        case TokensConfig():
            return TokenHead(config, head.mix)
        case LabelsConfig():
            return LabelHead(config, head)
        case VectorConfig():
            return VectorHead(config, head)
        case DecoderConfig():
            kind = Decoder if head.cell == "attention" else RecurrentDecoder
            return kind(config, head).apply(partial(init_weights, std=config.init_std))
