"""Hidden states -> pooled vectors and scores: BERT's heads, and the factory of all heads."""

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
    """Weighted mean of all layers with learned weights and scale (ELMo: Peters et al. 2018)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        # Zeros are equal weights after the softmax: the mix begins as the plain mean.
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, layers: list[Tensor]) -> Tensor:
        """Mix the layers.  layers x [..., D] -> [..., D]"""
        weights = self.weights.softmax(dim=0)
        mixed: Tensor = torch.einsum("l,l...->...", weights, torch.stack(layers))
        return self.scale * mixed


class ChosenLayers(nn.Module):
    """Concatenation of chosen layers; without numbers, the last layer."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, layers: list[Tensor]) -> Tensor:
        """Concatenate the chosen layers.  layers x [..., D] -> [..., numbers * D]"""
        if not self.numbers:
            return layers[-1]
        return torch.cat([layers[number] for number in self.numbers], dim=-1)


def mixed_layers(config: ModelConfig, mix: Mix) -> WeightedMix | ChosenLayers:
    """Make the module that mixes an encoder's layers for a head."""
    if mix == "weighted":  # the embeddings are one more layer
        return WeightedMix(config.layers + 1)
    return ChosenLayers(() if mix == "last" else mix)


def mixed_width(config: ModelConfig, mix: Mix) -> int:
    """Return the width of the mixed states that a head reads."""
    return config.width * (len(mix) if isinstance(mix, tuple) else 1)


class Head(nn.Module):
    """Base class of heads: a linear layer on a mix of an encoder's layers."""

    def __init__(self, config: ModelConfig, mix: Mix, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.mix = mixed_layers(config, mix)
        self.dense = nn.Linear(mixed_width(config, mix), width, bias=bias)
        init_weights(self.dense, config.init_std)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear layer to mixed states.  [N, D] -> [N, width]"""
        out: Tensor = self.dense(x)
        return out


class Pooler(Head):
    """BERT's pooler: a linear layer with tanh on the state of [CLS], one vector per text."""

    def __init__(self, config: ModelConfig, mix: Mix = "last") -> None:
        super().__init__(config, mix, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Pool the states of [CLS].  [N, D] -> [N, D]"""
        return torch.tanh(self.dense(x))


class TokenHead(Head):
    """BERT's masked-token head: transforms states for comparison with the token embeddings.

    `Network.token_scores` multiplies the result with the embedding matrix (tied weights). Apply it
    to the states of masked tokens only, because V is much larger than D.
    """

    def __init__(self, config: ModelConfig, mix: Mix = "last") -> None:
        super().__init__(config, mix, config.table_width)
        self.norm = norm_of(config, config.table_width)
        self.bias = nn.Parameter(self.dense.weight.new_zeros(config.vocab_size))
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Transform states to the width of the token embeddings.  [N, D] -> [N, E]"""
        out: Tensor = self.norm(self.activation(self.dense(x)))
        return out


class LabelHead(Head):
    """Linear classifier on pooled texts, text pairs or tokens; for spans, on both ends."""

    def __init__(self, config: ModelConfig, labels: LabelsConfig) -> None:
        super().__init__(config, labels.mix, len(labels.names))
        self.labels = labels
        self.dropout = dropout_of(labels.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Score the labels.  [N, D] -> [N, C]"""
        return super().forward(self.dropout(x))


class VectorHead(Head):
    """Linear projection of states to vectors of another width."""

    def __init__(self, config: ModelConfig, vector: VectorConfig) -> None:
        super().__init__(config, vector.mix, vector.width, bias=vector.bias)


def make_head(config: ModelConfig, head: HeadConfig) -> nn.Module:
    """Make an initialised head for an encoder."""
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
            decoder_class = Decoder if head.cell == "attention" else RecurrentDecoder
            return decoder_class(config, head).apply(partial(init_weights, std=config.init_std))
