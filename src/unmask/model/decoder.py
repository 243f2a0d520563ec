"""The Transformer's decoder: the words so far and another text's states -> a state for the next.

Each word looks at itself and those before it, then at the source (Vaswani et al. 2017, 3.1).
For training, all words of packed rows at once; for saying something, one word at a time, with the
keys and values of the others kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.model import masks, positions
from unmask.model.attention import Attention
from unmask.model.config import DecoderConfig, ModelConfig
from unmask.model.kept import Kept
from unmask.model.layers import Block, dropped
from unmask.model.positions import Positions
from unmask.model.rows import Texts, texts_left
from unmask.model.start import table
from unmask.settings import build

NOWHERE = Positions()  # the source has its places in its states already


@dataclass(frozen=True)
class Memory:
    """What was read: the encoder's states, in the rows they were computed in."""

    states: Tensor  # [B, S, D]
    owner: Tensor  # [B, S]
    index: Tensor  # [B, S]


@dataclass(frozen=True)
class Said:
    """How far a decoder is, for N rows of one length: what each block keeps.

    Rows that say something to the same text stand together and share its source.
    """

    words: tuple[Kept, ...]  # of N rows
    source: tuple[Kept, ...]  # of N // each texts
    added: Tensor | None  # [N // each, 1, 1, K] to the scores of the source
    each: int = 1  # rows of a text

    def several(self, count: int) -> "Said":
        """So many copies of each row, side by side."""
        rows = torch.arange(len(self.words[0].index), device=self.words[0].index.device)
        words = tuple(kept.select(rows.repeat_interleave(count)) for kept in self.words)
        return replace(self, words=words, each=self.each * count)

    def select(self, which: Tensor) -> "Said":
        """Some of the rows, in groups of `each` that are of one text.  [M]"""
        said = replace(self, words=tuple(kept.select(which) for kept in self.words))
        texts = texts_left(which, self.each, len(self.source[0].index))
        if texts is None:
            return said
        source = tuple(kept.select(texts) for kept in self.source)
        return replace(said, source=source, added=None if self.added is None else self.added[texts])


class Decoder(nn.Module):
    """A stack of blocks, each with a look at the source."""

    def __init__(self, config: ModelConfig, own: DecoderConfig) -> None:
        super().__init__()
        changes = {"layers": own.layers, "max_length": own.max_length, "causal": True}
        table_of = {**config.model_dump(), **changes, "cell": "attention"}
        self.config = config = build(ModelConfig, table_of, where="decoder")
        self.tokens = None if own.shared else table(own.vocab_size, config.width)
        self.positions = positions.build(config)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, i, cross=True) for i in range(own.layers))
        last = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.last_norm = last if config.norm == "pre" else nn.Identity()
        self.bias = nn.Parameter(self.norm.weight.new_zeros(own.vocab_size))

    def forward(
        self,
        words: Tensor,  # [B, T]
        index: Tensor,  # [B, T]
        owner: Tensor,  # [B, T]
        memory: Memory,
        table: Tensor,  # [V, D]
    ) -> Tensor:  # [B, T, D]
        """All words at once; a text of a row looks at its own source in the same row."""
        x = self._embed(words, index, table)
        allowed = masks.all_of(masks.same_text(owner), masks.causal(index))
        added = masks.as_scores(allowed, self.positions.bias(index, index), x.dtype)
        theirs = masks.as_scores(masks.other_text(owner, memory.owner), None, x.dtype)

        def look(attention: Attention, x: Tensor) -> Tensor:
            out: Tensor = attention(
                x,
                added=theirs,
                positions=NOWHERE,
                index=index,
                memory=memory.states,
                memory_index=memory.index,
            )
            return out

        for layer, block in enumerate(self.blocks):
            where = self.positions.at(layer)
            x = block(x, added=added, positions=where, index=index, look=look)
        out: Tensor = self.last_norm(x)
        return out

    def begin(self, states: Tensor, texts: Texts) -> Said:
        """Before the first word.  states [N, L, D], a row for each text"""
        real = texts.real()
        index = torch.arange(states.shape[1], device=states.device).expand(len(states), -1)
        blocks = self.looks()
        source = tuple(cross.keep(states, index, NOWHERE) for _, cross in blocks)
        words = tuple(block.attention.nothing(states) for block, _ in blocks)
        allowed = None if bool(real.all()) else real[:, None, None]
        return Said(words, source, masks.as_scores(allowed, None, states.dtype))

    def step(self, said: Said, words: Tensor, table: Tensor) -> tuple[Tensor, Said]:
        """One word further.  words [N], table [V, D] -> [N, D]"""
        before = said.words[0].index  # [N, t]
        index = torch.full_like(words[:, None], before.shape[1])
        x = self._embed(words[:, None], index, table)
        added = self.positions.bias(index, torch.cat([before, index], dim=1))
        kept = []
        rows = zip(self.looks(), said.words, said.source, strict=True)
        for layer, ((block, _), own, theirs) in enumerate(rows):
            x, then = block.go_on(
                x,
                own,
                _reading(theirs, said.added, index),
                added=added,
                positions=self.positions.at(layer),
                index=index,
            )
            kept.append(then)
        return self.last_norm(x)[:, 0], replace(said, words=tuple(kept))

    def looks(self) -> list[tuple[Block, Attention]]:
        """Each block, and its look at the source."""
        found = []
        for block in self.blocks:
            assert isinstance(block, Block)
            assert block.cross is not None
            found.append((block, block.cross))
        return found

    def _embed(self, words: Tensor, index: Tensor, table: Tensor) -> Tensor:
        """2 x [B, T] -> [B, T, D]"""
        x = self.positions.scaled(F.embedding(words, table))
        where = self.positions.embed(index)
        return dropped(self.norm(x if where is None else x + where), self.dropout)


def _reading(
    source: Kept, added: Tensor | None, index: Tensor
) -> Callable[[Attention, Tensor], Tensor]:
    def look(attention: Attention, x: Tensor) -> Tensor:
        asked = x.view(len(source.index), -1, x.shape[-1])  # rows of a text are its questions
        where = index.view(asked.shape[:2])
        found = attention.recall(asked, source, added=added, positions=NOWHERE, index=where)
        return found.view(x.shape)

    return look
