"""Encoder + heads: what a model folder holds. Rows go in, hidden states and scores come out."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.errors import SettingsError
from unmask.model import fast
from unmask.model.config import DecoderConfig, HeadsConfig, ModelConfig
from unmask.model.decoder import Decoder
from unmask.model.encoder import Encoder
from unmask.model.heads import LabelHead, Pooler, TokenHead
from unmask.model.recurrent import RecurrentDecoder
from unmask.model.start import start


class Network(nn.Module):
    """An encoder and the heads that its folder names; a head that is not there is None."""

    def __init__(self, config: ModelConfig, heads: HeadsConfig) -> None:
        super().__init__()
        self.config, self.heads = config, heads
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if heads.pooler else None
        self.token_head = TokenHead(config) if heads.tokens else None
        self.pair_head = LabelHead(config, 2) if heads.pair else None
        self.label_head = None
        if heads.labels:
            count, layers = len(heads.label_names), max(len(heads.layers), 1)
            self.label_head = LabelHead(config, count, heads.label_dropout, layers=layers)
        self.label_heads = nn.ModuleDict()
        for name, own in heads.several.items():
            self.label_heads[name] = LabelHead(config, len(own.label_names), own.label_dropout)
        self.decoder = decoder_of(config, heads.decoder) if heads.decoder else None

    def only(self, name: str) -> "Network":
        """The network of one of several heads: the same weights, nothing is copied."""
        with torch.device("meta"):
            alone = Network(self.config, self.heads.only(name))
        alone.encoder, alone.label_head = self.encoder, self.label_heads[name]  # type: ignore[assignment]
        alone.pooler = self.pooler if alone.heads.pooler else None
        return alone.train(self.training)

    def pool(self, first: Tensor) -> Tensor:
        """One vector per text, from the state of its [CLS].  [N, D] -> [N, D]"""
        assert self.pooler is not None, "this network has no pooler"
        vectors: Tensor = self.pooler(first)
        return vectors

    def label_scores(self, states: Tensor) -> Tensor:
        """Scores of the labels, for the states of chosen tokens.  [N, D] -> [N, C]"""
        assert self.label_head is not None, "this network has no label head"
        if self.heads.labels == "text" and not self.heads.layers:
            states = self.pool(states)
        scores: Tensor = self.label_head(states)
        return scores

    def scores_of_labels(self, trace: list[Tensor]) -> Tensor:
        """The same of each text or each token of padded rows, from the states of all layers.

        (layers + 1) x [B, S, D] -> [B, C] or [B, S, C]
        """
        layers = self.heads.layers
        states = torch.cat([trace[i] for i in layers], dim=-1) if layers else trace[-1]
        return self.label_scores(states[:, 0] if self.heads.labels == "text" else states)

    def pair_scores(self, first: Tensor) -> Tensor:
        """Does the second text follow? From the states of [CLS].  [N, D] -> [N, 2]"""
        assert self.pair_head is not None, "this network has no pair head"
        scores: Tensor = self.pair_head(self.pool(first))
        return scores

    def guess(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, for the states of chosen tokens.  [N, D] -> [N, V]"""
        assert self.token_head is not None, "this network has no token head"
        states = self.token_head(hidden)
        return F.linear(states, self.encoder.tokens.weight, self.token_head.bias)

    def guess_loss(self, hidden: Tensor, answers: Tensor) -> Tensor:
        """How wrong the guesses are, summed over chosen tokens.  [N, D], [N] -> []"""
        assert self.token_head is not None, "this network has no token head"
        states, bias = self.token_head(hidden), self.token_head.bias
        return fast.token_loss(states, self.encoder.tokens.weight, bias, answers)

    @property
    def words(self) -> Tensor:
        """The vectors of the words that the decoder says.  [V, D]"""
        assert self.decoder is not None, "this network has no decoder"
        own = self.decoder.tokens
        return self.encoder.tokens.weight if own is None else own.weight

    def word_scores(self, states: Tensor) -> Tensor:
        """Scores over the decoder's words.  [..., D] -> [..., V]"""
        assert self.decoder is not None, "this network has no decoder"
        return F.linear(states, self.words, self.decoder.bias)

    def word_loss(self, states: Tensor, answers: Tensor, smoothing: float = 0.0) -> Tensor:
        """How wrong the next words are, summed.  [N, D], [N] -> []"""
        assert self.decoder is not None, "this network has no decoder"
        return fast.token_loss(states, self.words, self.decoder.bias, answers, smoothing)


def decoder_of(config: ModelConfig, own: DecoderConfig) -> Decoder | RecurrentDecoder:
    """The decoder that a config names, with first weights."""
    if own.shared and own.vocab_size != config.vocab_size:
        raise SettingsError(
            f"decoder: {own.vocab_size:,} words, and the encoder has {config.vocab_size:,}; in one "
            "table (shared) there are as many of both. Change vocab_size, or share nothing."
        )
    made = (Decoder if own.cell == "attention" else RecurrentDecoder)(config, own)
    made.apply(partial(start, std=config.init_std))
    return made


def count_parameters(module: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in module.parameters())
