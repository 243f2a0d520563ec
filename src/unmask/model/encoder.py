"""The encoder: tokens in, one hidden state per token out. Every objective and task shares it.

A row may hold several texts. `owner` says which text of its row a token belongs to (-1 is
padding), `index` is its position in that text. Texts of one row do not see each other.
"""

from functools import partial

from torch import Tensor, nn

from unmask.model import fast, masks, positions
from unmask.model.attention import chosen
from unmask.model.config import ModelConfig
from unmask.model.layers import Block
from unmask.model.recurrent import RecurrentLayer
from unmask.model.rows import texts_of
from unmask.model.start import start, table


class Encoder(nn.Module):
    """BERT's Transformer stack. `embed` and `run` are apart: a caller may step in between.

    Or layers that read a text word by word, from both sides unless they are causal (`config.cell`).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.depth = 0  # of all that stands below the blocks; optimizer groups go by it
        self.tokens = table(config.vocab_size, config.width)
        self.segments = table(config.segments, config.width)
        self.positions = positions.build(config)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(config, layer) if config.cell == "attention" else RecurrentLayer(config, layer)
            for layer in range(config.layers)
        )
        last = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.last_norm = last if config.norm == "pre" else nn.Identity()
        self.apply(partial(start, std=config.init_std))

    def forward(
        self,
        tokens: Tensor,  # [B, S]
        segments: Tensor,  # [B, S]
        index: Tensor,  # [B, S]
        owner: Tensor,  # [B, S]
        *,
        trace: list[Tensor] | None = None,
        places: Tensor | None = None,
        shared: bool = False,
    ) -> Tensor:  # [B, S, D]
        """The ordinary pass, under the config's own mask; see `run`, and `masks` for `shared`."""
        x = self.embed(tokens, segments, index)
        if self.config.cell != "attention":
            return self.read(x, index, owner, trace=trace, places=places)
        allowed = masks.of(self.config, owner, index, shared=shared)
        return self.run(x, allowed, index, trace=trace, places=places)

    def embed(self, tokens: Tensor, segments: Tensor, index: Tensor) -> Tensor:
        """3 x [B, S] -> [B, S, D]"""
        x = self.positions.scaled(self.tokens(tokens)) + self.segments(segments)
        where = self.positions.embed(index)
        x = x if where is None else x + where
        return fast.dropped(self.norm(x), self.dropout)

    def run(
        self,
        x: Tensor,  # [B, S, D]
        allowed: Tensor | None,  # [B or 1, 1, S, S]
        index: Tensor,  # [B, S]
        *,
        trace: list[Tensor] | None = None,
        places: Tensor | None = None,  # [N] of all B x S tokens
    ) -> Tensor:  # [B, S, D], or [N, D] where places are given
        """Run any embedded sequence under any mask; `trace` collects x and each block's output.

        Who reads the last states only in some places says so: the last block then does the rest of
        its work, nine twelfths of it, there alone.
        """
        added = masks.as_scores(allowed, self.positions.bias(index, index), x.dtype)
        for layer, block in enumerate(self.blocks):
            if trace is not None:
                trace.append(x)
            last = places if layer == len(self.blocks) - 1 else None
            where = self.positions.at(layer)
            x = block(x, added=added, positions=where, index=index, places=last)
        x = self.last_norm(x)
        if trace is not None:
            trace.append(x)
        return x

    def read(
        self,
        x: Tensor,  # [B, S, D]
        index: Tensor,  # [B, S]
        owner: Tensor,  # [B, S]
        *,
        trace: list[Tensor] | None = None,
        places: Tensor | None = None,
    ) -> Tensor:  # [B, S, D], or [N, D] where places are given
        """Read each text of the rows by itself; as `run` for layers of another kind."""
        texts = texts_of(owner, index)
        states = texts.apart(x)  # [N, L, D]
        for layer, block in enumerate(self.blocks):
            if trace is not None:
                trace.append(texts.together(states))
            states = block(fast.dropped(states, self.dropout) if layer else states, texts.length)
        out = texts.together(states)
        if trace is not None:
            trace.append(out)
        return chosen(out, places)
