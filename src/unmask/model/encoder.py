"""The encoder: token ids -> hidden states, one per token. All objectives and tasks share it.

A packed row holds several texts. `owner` is the number of a token's text in its row (-1 is
padding), `index` the token's position in that text. Texts of one row do not attend to each other.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from unmask.model import masks
from unmask.model.attention import select_places
from unmask.model.block import Block, last_norm_of
from unmask.model.config import ModelConfig
from unmask.model.decoding.cache import EncoderCache, KVCache, KVStorage
from unmask.model.decoding.recurrent import RecurrentLayer
from unmask.model.decoding.unpacking import TextPlaces, texts_of
from unmask.model.embeddings import Embeddings
from unmask.model.init import init_weights
from unmask.model.kernels import training
from unmask.model.positions import Positions
from unmask.system.errors import SettingsError


class Encoder(nn.Module):
    """Embeddings and a stack of Transformer blocks, or of recurrent layers (`config.cell`).

    `embeddings` and `run` can be called separately, to change embeddings or to use another mask.
    Recurrent layers are bidirectional unless the config is causal.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.depth = 0  # depth of the embeddings, for layer-wise learning rates; see Block.level
        self.embeddings = Embeddings(config)
        self.block_of_layer = [config.group_of(layer) for layer in range(config.layers)]
        self.windows = [config.layer(layer).window for layer in range(config.layers)]
        # A block that several layers share counts as the highest of them.
        highest = {block: layer for layer, block in enumerate(self.block_of_layer)}
        block_class = Block if config.cell == "attention" else RecurrentLayer
        self.blocks = nn.ModuleList(block_class(config, layer) for layer in highest.values())
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
        """Run embeddings and all layers under the config's own mask.

        `trace` and `places` are those of `run`, `shared` is that of `masks.same_text`. `lent` is
        the token embedding matrix of another encoder, for an encoder that has none of its own.
        """
        x: Tensor = self.embeddings(tokens, segments, index, lent)
        if self.config.cell != "attention":
            return self.read(x, texts_of(owner, index), trace, places)
        allowed = masks.of(self.config, owner, index, shared=shared)
        return self.run(x, allowed, index, trace=trace, places=places)

    @property
    def positions(self) -> Positions:
        """The position encoding, which blocks need as well as the embeddings."""
        return self.embeddings.positions

    def run(
        self,
        x: Tensor,  # [B, S, D]
        allowed: Tensor | None,  # [B or 1, 1, S, S]; with a cache [B or 1, 1, S, K]
        index: Tensor,  # [B or 1, S]
        *,
        trace: list[Tensor] | None = None,
        places: Tensor | None = None,  # [N] flat indices of tokens
        caches: Sequence[KVCache] | None = None,  # cache of each layer, to which x is appended
        memory_index: Tensor | None = None,  # [B or 1, K] positions of the cached tokens and of x
    ) -> Tensor:  # [B, S, D], or [N, D] where places are given
        """Run the blocks on embedded sequences under any mask.

        `trace` collects x and the output of each layer. With `places`, the result has only the
        states there, and the last block computes what follows its attention, nine twelfths of its
        matrix products, for those tokens alone. A layer with a window attends to what both the
        mask and the window allow.
        """
        # Bias and masks are made once, for each distinct window, not in each layer.
        memory = index if memory_index is None else memory_index
        bias = self.positions.bias(index, memory)
        added: dict[int | None, Tensor | None] = {}
        for reach in dict.fromkeys(self.windows):
            in_window = masks.window(index, reach, memory) if reach else None
            added[reach] = masks.as_scores(masks.all_of(allowed, in_window), bias, x.dtype)
        for layer, block in enumerate(self.block_of_layer):
            if trace is not None:
                trace.append(x)
            x = self.blocks[block](
                x,
                added=added[self.windows[layer]],
                positions=self.positions.at(layer),
                index=index,
                places=places if layer == len(self.block_of_layer) - 1 else None,
                cache=None if caches is None else caches[layer],
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
        """Run recurrent layers on each text of the packed rows; see `run` for the arguments.

        [B, S, D] -> [B, S, D], or [N, D] where places are given
        """
        # A mask cannot keep a recurrent state from crossing into the next text of a row, so each
        # text gets a row of its own here.
        states = texts.apart(x)  # [N, L, D]
        for layer, block in enumerate(self.block_of_layer):
            if trace is not None:
                trace.append(texts.together(states))
            if layer:  # dropout between layers: the layers have none, embeddings have had theirs
                states = training.dropped(states, self.embeddings.dropout)
            states = self.blocks[block](states, texts.length)
        out = texts.together(states)
        if trace is not None:
            trace.append(out)
        return select_places(out, places)

    @property
    def longest(self) -> int | None:
        """Length of the longest text that the position encoding covers; None for no limit."""
        ends = self.config.positions in ("learned", "sinusoidal", "rotary")
        return self.config.max_length if ends else None

    def begin(self, rows: int) -> EncoderCache:
        """Return an empty key/value cache for a number of texts, to be filled by `step`."""
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
        # Segments, because an encoder that borrows token embeddings has no `tokens`. This table
        # tells the device and the dtype.
        table = self.embeddings.segments.weight
        empty = table.new_empty(shape)
        layers = tuple(KVCache(KVStorage(empty, empty)) for _ in self.block_of_layer)
        return EncoderCache(layers, torch.zeros(1, 0, dtype=torch.long, device=table.device))

    def step(
        self,
        prefix: EncoderCache,
        tokens: Tensor,  # [N, T]
        *,
        lengths: Tensor | None = None,  # [N] real tokens of each text, padded at the end; None: T
        segments: Tensor | None = None,  # [N, T]; None: all 0
        trace: list[Tensor] | None = None,
        lent: Tensor | None = None,
    ) -> tuple[Tensor, EncoderCache]:  # [N, T, D]
        """Append tokens to the cached texts and return the states of these tokens.

        The states equal those of a `forward` pass over the whole texts. One step may read a whole
        prompt; `EncoderCache` tells how texts of different lengths are padded. The states of a text
        that is longer than the positions have no meaning and must not be used.
        """
        count = tokens.shape[1]
        prefix = prefix.longer(count, lengths)
        index, owner = prefix.index, prefix.owner
        if self.longest is not None and prefix.length > self.longest:
            if owner is None:
                raise SettingsError(
                    f"{prefix.length} tokens, but the model reads at most {self.longest} "
                    "(max_length). Shorten the prompt, or lower the limit on generated tokens."
                )
            # Only padding and finished texts may be too long, whose states nobody reads. Their
            # positions are clamped, so that lookups in the position table stay in range.
            index = index.clamp(max=self.longest - 1)
        new_index = index[:, -count:]  # of the new tokens; `index` is of the cached ones too
        segments = torch.zeros_like(tokens) if segments is None else segments
        # A single new token comes after all cached ones: it needs no causal mask.
        allowed = masks.all_of(
            None if owner is None else masks.other_text(owner[:, -count:], owner),
            masks.causal(new_index, index) if count > 1 else None,
            masks.window(new_index, self.config.window, index) if self.config.window else None,
        )
        x: Tensor = self.embeddings(tokens, segments, new_index, lent)
        x = self.run(x, allowed, new_index, trace=trace, caches=prefix.layers, memory_index=index)
        return x, prefix
