"""Transformer decoder: target tokens and the source's hidden states -> states that predict tokens.

Each token attends to itself and earlier tokens, then to the source (Vaswani et al. 2017, 3.1).
Training runs all tokens of packed rows at once (teacher forcing). Generation runs one token at a
time, with a key/value cache of the earlier ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.model import masks, positions
from unmask.model.attention import Attention
from unmask.model.block import Block, ReadSource, dropout_of, last_norm_of, norm_of
from unmask.model.config import ModelConfig
from unmask.model.decoding.cache import KVCache, KVStorage
from unmask.model.decoding.unpacking import TextPlaces, selected_texts
from unmask.model.init import embedding_table
from unmask.model.kernels import training
from unmask.model.shape import DecoderConfig
from unmask.system.settings import validate

# Settings that a decoder does not take from its encoder: those that make it a decoder, and those
# per layer, because the encoder may have another number of layers.
NOT_FROM_ENCODER: dict[str, object] = {"cell": "attention", "causal": True, "embedding_width": None}
NOT_FROM_ENCODER |= {"layer_settings": (), "layer_cycle": None, "layer_groups": None}


@dataclass(frozen=True)
class TransformerState:
    """State of a Transformer decoder, for N sequences of one length.

    Sequences of the same text (its beams) are adjacent and share the keys and values of the source.
    """

    words: tuple[KVCache, ...]  # cache of each block, for N sequences
    source: tuple[Tensor, ...]  # [texts, 2, H, K, d] keys and values of the source, of each block
    added: Tensor | None  # [texts, 1, 1, K] to the scores of cross-attention

    def select(self, indices: Tensor, group_size: int = 1) -> "TransformerState":
        """Select sequences, possibly repeated; every `group_size` of them are of one text.  [M]"""
        count = len(self.source[0])
        texts = selected_texts(indices, len(self.words[0].keys) // count, group_size, count)
        state = replace(self, words=tuple(cache.select(indices) for cache in self.words))
        if texts is None:  # beams moved within their texts only: the larger tensors are not copied
            return state
        source = tuple(tokens[texts] for tokens in self.source)
        return replace(
            state, source=source, added=None if self.added is None else self.added[texts]
        )


class Decoder(nn.Module):
    """Transformer decoder: a stack of causal blocks with cross-attention to the source."""

    def __init__(self, config: ModelConfig, settings: DecoderConfig) -> None:
        super().__init__()
        changes = {"layers": settings.layers, "max_length": settings.max_length}
        # Validated anew, because the limits of position tables hold for the decoder's length too.
        table: dict[str, object] = {**config.model_dump(), **NOT_FROM_ENCODER, **changes}
        self.config = config = validate(ModelConfig, table, where="decoder")
        self.tokens = (
            None if settings.shared else embedding_table(settings.vocab_size, config.width)
        )
        self.positions = positions.make_positions(config)
        self.norm = norm_of(config, config.width)
        self.dropout = dropout_of(config.dropout)
        self.blocks = nn.ModuleList(Block(config, i, cross=True) for i in range(settings.layers))
        self.last_norm = last_norm_of(config)
        self.bias = nn.Parameter(torch.zeros(settings.vocab_size))

    def forward(
        self,
        tokens: Tensor,  # [B, T]
        index: Tensor,  # [B, T]
        owner: Tensor,  # [B, T]
        states: Tensor,  # [B, S, D] of the encoder
        source_owner: Tensor,  # [B, S]
        table: Tensor,  # [V, D]
    ) -> Tensor:  # [B, T, D]
        """Run all tokens of packed rows; each text attends to its own source in the same row."""
        x = self._embed(tokens, index, table)
        allowed = masks.all_of(masks.same_text(owner), masks.causal(index))
        added = masks.as_scores(allowed, self.positions.bias(index, index), x.dtype)
        source_added = masks.as_scores(masks.other_text(owner, source_owner), None, x.dtype)

        def attend_to_source(cross: Attention, x: Tensor) -> Tensor:
            return cross.read(x, cross.keep(states), source_added)

        count = len(self.blocks)
        return self._run(x, added, index, [attend_to_source] * count, [None] * count)

    def begin(self, states: Tensor, texts: TextPlaces) -> TransformerState:
        """Return the state before the first token.  states [N, L, D], one text per row"""
        real = texts.real()
        source = tuple(cross.keep(states) for cross in self.crosses())
        empty = source[0][:, 0, :, :0]  # [N, H, 0, d]
        allowed = None if bool(real.all()) else real[:, None, None]
        added = masks.as_scores(allowed, None, states.dtype)
        return TransformerState(
            tuple(KVCache(KVStorage(empty, empty)) for _ in source), source, added
        )

    def step(
        self, state: TransformerState, tokens: Tensor, table: Tensor
    ) -> tuple[Tensor, TransformerState]:
        """Append one token to each sequence.  words [N], table [V, D] -> [N, D]"""
        # `add` changes a cache; the caller's state keeps its own.
        state = replace(state, words=tuple(replace(cache) for cache in state.words))
        length = state.words[0].length
        index = torch.full_like(tokens[:, None], length)
        x = self._embed(tokens[:, None], index, table)
        added = self.positions.bias(index, torch.arange(length + 1, device=index.device)[None])
        cross_attentions = [
            partial(Attention.read, source=source, added=state.added) for source in state.source
        ]
        return self._run(x, added, index, cross_attentions, state.words)[:, 0], state

    def _run(
        self,
        x: Tensor,  # [N, Q, D]
        added: Tensor | None,
        index: Tensor,
        cross_attentions: Sequence[ReadSource],  # cross-attention of each block
        caches: Sequence[KVCache | None],  # cache of each block
    ) -> Tensor:  # [N, Q, D]
        for layer, (block, cross_attend, cache) in enumerate(
            zip(self.blocks, cross_attentions, caches, strict=True)
        ):
            positions = self.positions.at(layer)
            x = block(
                x,
                added=added,
                positions=positions,
                index=index,
                cache=cache,
                cross_attend=cross_attend,
            )
        out: Tensor = self.last_norm(x)
        return out

    def crosses(self) -> list[Attention]:
        """Return the cross-attention of each block."""
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [block.cross for block in blocks if block.cross is not None]

    def _embed(self, tokens: Tensor, index: Tensor, table: Tensor) -> Tensor:
        """Embed tokens and positions.  2 x [B, T] -> [B, T, D]"""
        x = self.positions.scaled(F.embedding(tokens, table))
        position_vectors = self.positions.embed(index)
        return training.dropped(
            self.norm(x if position_vectors is None else x + position_vectors), self.dropout
        )
