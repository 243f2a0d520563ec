"""Packed rows -> hidden states and scores: encoders and heads, which a model folder holds.

Most networks have a single encoder, `main`. Heads are found by name; each reads the hidden states
of the encoder and the layers that its config names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.model.config import ModelConfig
from unmask.model.decoding.cache import EncoderCache
from unmask.model.decoding.decoder import Decoder
from unmask.model.decoding.recurrent import RecurrentDecoder
from unmask.model.encoder import Encoder
from unmask.model.heads import Head, LabelHead, Pooler, TokenHead, make_head
from unmask.model.kernels import training
from unmask.model.shape import DECODER, LABELS, MAIN, PAIR, POOLER, TOKENS, Shape

M = TypeVar("M", bound=nn.Module)
TokenPredictor = TokenHead | Decoder | RecurrentDecoder  # heads with a score for each token


class PackedRows(Protocol):
    """The inputs of an encoder: a batch of packed rows."""

    @property
    def tokens(self) -> Tensor:
        """Token ids.  [B, S]"""

    @property
    def segments(self) -> Tensor:
        """Segment ids.  [B, S]"""

    @property
    def index(self) -> Tensor:
        """Position of each token in its text.  [B, S]"""

    @property
    def owner(self) -> Tensor:
        """Number of each token's text in its row, -1 for padding.  [B, S]"""


@dataclass(frozen=True)
class PlainRows:
    """Encoder inputs as four tensors [B, S], for callers without a `Batch`."""

    tokens: Tensor
    segments: Tensor
    index: Tensor
    owner: Tensor


class NamedModules(nn.ModuleDict):
    """A `ModuleDict` that allows any name; torch's refuses names of its methods, as `half`."""

    # Safe because modules here are reached by item, never as attributes.
    def __setitem__(self, key: str, module: nn.Module) -> None:
        self._modules[key] = module


class Network(nn.Module):
    """Encoders and heads as described by a shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.encoders = NamedModules(
            {name: Encoder(config) for name, config in shape.encoders.items()}
        )
        self.heads = NamedModules(
            {
                name: make_head(shape.encoders[head.encoder], head)
                for name, head in shape.heads.items()
            }
        )

    @property
    def config(self) -> ModelConfig:
        """The config of the main encoder."""
        return self.shape.main

    @property
    def encoder(self) -> Encoder:
        """The main encoder."""
        return self.encoder_of(MAIN)

    def encoder_of(self, name: str) -> Encoder:
        """Return an encoder by name."""
        return _module_of_class(self.encoders, name, Encoder)

    def blocks(self) -> Iterator[nn.Module]:
        """Iterate over the blocks of all encoders."""
        for name in self.encoders:
            yield from self.encoder_of(name).blocks

    def head(self, name: str, kind: type[M]) -> M:
        """Return a head by name; it must be of the given class."""
        return _module_of_class(self.heads, name, kind)

    def table(self, encoder: str = MAIN) -> Tensor:
        """Return the token embeddings that an encoder uses, own or borrowed.  [V, E]"""
        config = self.shape.encoders[encoder]
        return self.encoder_of(config.borrows or encoder).embeddings.table

    def lent(self, encoder: str) -> Tensor | None:
        """Return the token embeddings that an encoder borrows; None if it has its own."""
        # Passed in each call, so that the matrix is a parameter of the lending encoder only.
        return self.table(encoder) if self.shape.encoders[encoder].borrows else None

    def encode(
        self,
        rows: PackedRows,
        *,
        encoder: str = MAIN,
        places: Tensor | None = None,
        trace: list[Tensor] | None = None,
        shared: bool = False,
    ) -> Tensor:
        """Run one encoder; `Encoder.forward` documents `places`, `trace` and `shared`."""
        options = {"places": places, "trace": trace, "shared": shared, "lent": self.lent(encoder)}
        inputs = rows.tokens, rows.segments, rows.index, rows.owner
        states: Tensor = self.encoder_of(encoder)(*inputs, **options)
        return states

    def states_for(
        self,
        name: str | None,
        rows: PackedRows,
        *,
        places: Tensor | None = None,
        shared: bool = False,
    ) -> Tensor:
        """Run an encoder and return the states that a head reads; None: the main encoder's last.

        [B, S, W], or [N, W] for `places`, flat indices of tokens
        """
        config = self.shape.reads(name)
        if config.mix == "last":
            return self.encode(rows, encoder=config.encoder, places=places, shared=shared)
        # Lower layers are needed too, and those have no `places`: select after the pass instead.
        trace: list[Tensor] = []
        self.encode(rows, encoder=config.encoder, trace=trace, shared=shared)
        if places is not None:
            trace = [states.flatten(0, 1)[places] for states in trace]
        return self.mixed(trace, name)

    def states_for_each(
        self, names: Sequence[str | None], rows: PackedRows, places: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the states that each of several heads reads, with one pass per encoder.

        Flat indices [P] per head -> [P, W] per head
        """
        head_inputs = [self.shape.reads(name) for name in names]
        states_of_head: dict[int, Tensor] = {}
        for encoder in dict.fromkeys(config.encoder for config in head_inputs):
            head_indices = [i for i, config in enumerate(head_inputs) if config.encoder == encoder]
            if all(head_inputs[i].mix == "last" for i in head_indices):
                # One selection for all heads: the last block finishes the states of no other token.
                all_places = torch.cat([places[i] for i in head_indices])
                states = self.encode(rows, encoder=encoder, places=all_places)
                parts: Sequence[Tensor] = states.split([len(places[i]) for i in head_indices])
                states_of_head.update(zip(head_indices, parts, strict=True))
                continue
            trace: list[Tensor] = []
            self.encode(rows, encoder=encoder, trace=trace)
            for i in head_indices:
                chosen = [states.flatten(0, 1)[places[i]] for states in trace]
                states_of_head[i] = self.mixed(chosen, names[i])
        return [states_of_head[i] for i in range(len(names))]

    def mixed(self, trace: list[Tensor], name: str | None) -> Tensor:
        """Mix the states of all layers into those that a head reads.

        (layers + 1) x [..., D] -> [..., W]
        """
        if name is None or self.shape.reads(name).mix == "last":
            return trace[-1]
        states: Tensor = self.head(self.shape.reader(name), Head).mix(trace)
        return states

    def pool(self, first: Tensor) -> Tensor:
        """Pool the states of [CLS] into one vector per text.  [N, W] -> [N, D]"""
        vectors: Tensor = self.head(POOLER, Pooler)(first)
        return vectors

    def label_scores(self, states: Tensor, name: str = LABELS) -> Tensor:
        """Return label scores for the states of chosen tokens.  [N, D] -> [N, C]"""
        head = self.head(name, LabelHead)
        scores: Tensor = head(self.pool(states) if head.labels.pooled else states)
        return scores

    def scores_of_labels(self, trace: list[Tensor], name: str = LABELS) -> Tensor:
        """Return label scores per text or per token of unpacked rows, from all layers' states.

        (layers + 1) x [B, S, D] -> [B, C] or [B, S, C]
        """
        states, label_kind = self.mixed(trace, name), self.head(name, LabelHead).labels.on
        return self.label_scores(states[:, 0] if label_kind == "text" else states, name)

    def pair_scores(self, first: Tensor) -> Tensor:
        """Return next-sentence scores for the states of [CLS].  [N, D] -> [N, 2]"""
        return self.label_scores(first, PAIR)

    def token_scores(self, states: Tensor, name: str = TOKENS) -> Tensor:
        """Return vocabulary scores, by a token head or a decoder.  [..., D] -> [..., V]"""
        states, table, bias = self._output_layer(states, name)
        return F.linear(states, table, bias)

    def token_loss(
        self, states: Tensor, answers: Tensor, name: str = TOKENS, smoothing: float = 0.0
    ) -> Tensor:
        """Return the summed cross-entropy of predicting `answers`.  [N, D], [N] -> []"""
        return training.token_loss(*self._output_layer(states, name), answers, smoothing)

    def words(self, name: str = DECODER) -> Tensor:
        """Return the embeddings of the tokens that a head predicts.  [V, E]"""
        head = self.heads[name]
        if isinstance(head, Decoder | RecurrentDecoder) and head.tokens is not None:
            return head.tokens.weight
        return self.table(self.shape.heads[name].encoder)

    def _output_layer(self, states: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return transformed states, token embeddings and bias: scores are their linear layer."""
        head = self.heads[name]
        if isinstance(head, TokenHead):
            states = head(states)
        assert isinstance(head, TokenPredictor), f"the head '{name}' predicts no tokens"
        return states, self.words(name), head.bias


class CausalGenerator:
    """Text generation with a causal encoder: a `StepDecoder` for `beam_search`.

    The prompt and the generated tokens must fit into the encoder's positions together; see
    `limits`.
    """

    def __init__(self, network: Network, name: str = TOKENS) -> None:
        self.network, self.name = network, name
        self.reads = network.shape.heads[name].encoder
        self.encoder, self.lent = network.encoder_of(self.reads), network.lent(self.reads)

    def begin(self, prompts: Tensor, lengths: Tensor) -> tuple[EncoderCache, Tensor]:
        """Read the prompts up to their last tokens, with which the search starts.

        prompts [N, T], padded at the end; lengths [N], from 1 to T -> cache, last tokens [N]
        """
        last = prompts.gather(1, lengths[:, None] - 1)[:, 0]
        prefix = self.encoder.begin(len(prompts))
        if prompts.shape[1] > 1:
            earlier = prompts[:, :-1]
            _, prefix = self.encoder.step(prefix, earlier, lengths=lengths - 1, lent=self.lent)
        return prefix, last

    def step(self, prefix: EncoderCache, tokens: Tensor) -> tuple[Tensor, EncoderCache]:
        """Append one token to each text and score the vocabulary for the next.  [N] -> [N, V]"""
        trace: list[Tensor] = []
        _, prefix = self.encoder.step(prefix, tokens[:, None], trace=trace, lent=self.lent)
        states = self.network.mixed(trace, self.name)[:, 0]
        return self.network.token_scores(states, self.name), prefix

    def limits(self, lengths: Tensor, most: int) -> Tensor:
        """Return how many tokens may be generated: at most `most`, and as fit.  [N] -> [N]"""
        if self.encoder.longest is None:
            return torch.full_like(lengths, most)
        return (self.encoder.longest - lengths).clamp(0, most)


def count_parameters(module: nn.Module) -> int:
    """Count the parameters of a module; a shared tensor counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _module_of_class(modules: nn.ModuleDict, name: str, kind: type[M]) -> M:
    assert name in modules, f"this network has no '{name}'"
    module = modules[name]
    assert isinstance(module, kind), f"'{name}' is a {type(module).__name__}"
    return module
