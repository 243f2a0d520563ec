"""The encoder: tokens in, one hidden state per token out. Every objective and task shares it.

A row may hold several texts. `owner` says which text of its row a token belongs to (-1 is
padding), `index` is its position in that text. Texts of one row do not see each other.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from unmask.model import masks
from unmask.model.attention import select_places
from unmask.model.block import Block, last_norm_of
from unmask.model.config import ModelConfig
from unmask.model.decoding.cache import EncoderCache, GrowingTensor, KVCache
from unmask.model.decoding.recurrent import RecurrentLayer
from unmask.model.decoding.unpacking import TextPlaces, texts_of
from unmask.model.embeddings import Embeddings
from unmask.model.init import init_weights
from unmask.model.kernels import training
from unmask.model.positions import Positions
from unmask.system.errors import SettingsError


class Encoder(nn.Module):
    """BERT's Transformer stack. Embeddings and `run` are apart: a caller may step in between.

    Or layers that read a text word by word, from both sides unless they are causal (`config.cell`).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.depth = 0  # of all that stands below the blocks; optimizer groups go by it
        self.embeddings = Embeddings(config)
        # Each layer has one of the blocks, and a window or none.
        self.which = [config.group_of(layer) for layer in range(config.layers)]
        self.windows = [config.layer(layer).window for layer in range(config.layers)]
        highest = {block: layer for layer, block in enumerate(self.which)}  # layer of a block
        kind = Block if config.cell == "attention" else RecurrentLayer
        self.blocks = nn.ModuleList(kind(config, layer) for layer in highest.values())
        self.last_norm = last_norm_of(config)
        self.apply(partial(init_weights, std=config.init_std))

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
        lent: Tensor | None = None,
    ) -> Tensor:  # [B, S, D]
        """The ordinary pass, under the config's own mask; see `run`, and `masks` for `shared`.

        `lent` are the token embeddings of another encoder, where this one has none.
        """
        x: Tensor = self.embeddings(tokens, segments, index, lent)
        if self.config.cell != "attention":
            return self.read(x, texts_of(owner, index), trace, places)
        allowed = masks.of(self.config, owner, index, shared=shared)
        return self.run(x, allowed, index, trace=trace, places=places)

    @property
    def positions(self) -> Positions:
        """Where tokens are, as blocks see it."""
        return self.embeddings.positions

    def run(
        self,
        x: Tensor,  # [B, S, D]
        allowed: Tensor | None,  # [B or 1, 1, S, S]; with a cache [B or 1, 1, S, K]
        index: Tensor,  # [B or 1, S]
        *,
        trace: list[Tensor] | None = None,
        places: Tensor | None = None,  # [N] of all B x S tokens
        kept: Sequence[KVCache] | None = None,  # the cache of each layer, to which x is added
        memory_index: Tensor | None = None,  # [B or 1, K] positions of the cached tokens and of x
    ) -> Tensor:  # [B, S, D], or [N, D] where places are given
        """Run any embedded sequence under any mask; `trace` collects x and each layer's output.

        Layers with a window of their own see what both allow. Who reads the last states only in
        some places says so: the last block then does the rest of its work, nine twelfths of it,
        there alone.
        """
        memory = index if memory_index is None else memory_index
        bias = self.positions.bias(index, memory)
        added: dict[int | None, Tensor | None] = {}
        for reach in dict.fromkeys(self.windows):
            near = masks.window(index, reach, memory) if reach else None
            added[reach] = masks.as_scores(masks.all_of(allowed, near), bias, x.dtype)
        for layer, which in enumerate(self.which):
            if trace is not None:
                trace.append(x)
            x = self.blocks[which](
                x,
                added=added[self.windows[layer]],
                positions=self.positions.at(layer),
                index=index,
                places=places if layer == len(self.which) - 1 else None,
                kept=None if kept is None else kept[layer],
                memory_index=memory_index,
                layer=layer,
            )
        x = self.last_norm(x)
        if trace is not None:
            trace.append(x)
        return x

    def read(
        self, x: Tensor, texts: TextPlaces, trace: list[Tensor] | None, places: Tensor | None
    ) -> Tensor:
        """Read each text of the rows by itself; as `run` for layers of another kind.

        [B, S, D] -> [B, S, D], or [N, D] where places are given
        """
        states = texts.apart(x)  # [N, L, D]
        for layer, which in enumerate(self.which):
            if trace is not None:
                trace.append(texts.together(states))
            if layer:  # the dropout between layers, which have none of their own
                states = training.dropped(states, self.embeddings.dropout)
            states = self.blocks[which](states, texts.length)
        out = texts.together(states)
        if trace is not None:
            trace.append(out)
        return select_places(out, places)

    @property
    def longest(self) -> int | None:
        """The longest text that has positions; None: there is no limit."""
        ends = self.config.positions in ("learned", "sinusoidal", "rotary")
        return self.config.max_length if ends else None

    def begin(self, rows: int) -> EncoderCache:
        """Start with an empty cache for so many texts; `step` reads their tokens."""
        if self.config.cell != "attention":
            raise SettingsError(
                f'cell = "{self.config.cell}": generating text needs a key/value cache, which only '
                'cell = "attention" has.'
            )
        if not self.config.causal:
            raise SettingsError(
                "causal = false: tokens attend to those after them, so text cannot be generated "
                "from left to right. Need a model with causal = true."
            )
        shape = (rows, self.config.heads, 0, self.config.head_width)
        table = self.embeddings.segments.weight
        nothing = table.new_empty(shape)
        layers = tuple(KVCache(GrowingTensor(nothing, nothing)) for _ in self.which)
        return EncoderCache(layers, torch.zeros(1, 0, dtype=torch.long, device=table.device))

    def step(
        self,
        prefix: EncoderCache,
        tokens: Tensor,  # [N, T]
        *,
        lengths: Tensor | None = None,  # [N] how many are real, the rest is padding; None: all
        segments: Tensor | None = None,  # [N, T]; None: the first one
        trace: list[Tensor] | None = None,
        lent: Tensor | None = None,
    ) -> tuple[Tensor, EncoderCache]:  # [N, T, D]
        """Read more tokens of each text; their states are those of the ordinary pass.

        A whole prompt may be read in one step. See `Prefix` for texts of different lengths. A text
        that has no positions left gets states without meaning, which must not be used.
        """
        count = tokens.shape[1]
        prefix = prefix.longer(count, lengths)
        index, owner = prefix.index, prefix.owner
        if self.longest is not None and prefix.length > self.longest:
            if owner is None:
                raise SettingsError(
                    f"{prefix.length} tokens, and the model reads {self.longest} at most "
                    "(max_length). Shorten the prompt, or lower the limit of what is generated."
                )
            # Padding, or a text that has ended while a search goes on with the others.
            index = index.clamp(max=self.longest - 1)
        here = index[:, -count:]
        segments = torch.zeros_like(tokens) if segments is None else segments
        allowed = masks.all_of(
            None if owner is None else masks.other_text(owner[:, -count:], owner),
            masks.causal(here, index) if count > 1 else None,
            masks.window(here, self.config.window, index) if self.config.window else None,
        )
        x: Tensor = self.embeddings(tokens, segments, here, lent)
        x = self.run(x, allowed, here, trace=trace, kept=prefix.layers, memory_index=index)
        return x, prefix
