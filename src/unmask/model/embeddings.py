"""Token, segment and position ids -> embeddings, the input of the first block.

Token embeddings may be narrower than the encoder (factorised, as in ALBERT) and may belong to
another encoder. A listener can read or change token vectors before segments and positions are
added, for example to attribute a prediction to tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn import functional as F

from unmask.model import positions
from unmask.model.attention import set_listener
from unmask.model.block import dropout_of, norm_of
from unmask.model.config import ModelConfig
from unmask.model.init import embedding_table
from unmask.model.kernels import training

TokenListener = Callable[[Tensor], Tensor]  # token vectors [B, S, E] -> token vectors


class Embeddings(nn.Module):
    """Sum of token, segment and position embeddings, then norm, dropout and projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.table_width
        self.tokens = None if config.borrows else embedding_table(config.vocab_size, width)
        self.segments = embedding_table(config.segments, width)
        self.positions = positions.make_positions(config)
        self.norm = norm_of(config, width)
        self.dropout = dropout_of(config.dropout)
        factorised = width != config.width
        self.project = nn.Linear(width, config.width) if factorised else nn.Identity()
        self.listener: TokenListener | None = None

    def forward(
        self, tokens: Tensor, segments: Tensor, index: Tensor, lent: Tensor | None = None
    ) -> Tensor:
        """Embed tokens, with `lent` [V, E] in place of an own table.  3 x [B, S] -> [B, S, D]"""
        vectors = F.embedding(tokens, self.table if lent is None else lent)
        if self.listener is not None:
            vectors = self.listener(vectors)
        x: Tensor = self.positions.scaled(vectors) + self.segments(segments)
        position_vectors = self.positions.embed(index)
        x = x if position_vectors is None else x + position_vectors
        # As in ALBERT, norm and dropout act on the narrow vectors, before the projection.
        out: Tensor = self.project(training.dropped(self.norm(x), self.dropout))
        return out

    @property
    def table(self) -> Tensor:
        """The token embedding matrix.  [V, E]"""
        assert self.tokens is not None, "these embeddings borrow the table of another encoder"
        return self.tokens.weight


@contextmanager
def listening_to_tokens(model: nn.Module, listener: TokenListener) -> Iterator[None]:
    """Pass the token vectors of all embeddings in `model` through `listener` inside the block."""
    modules = [module for module in model.modules() if isinstance(module, Embeddings)]
    with set_listener(modules, listener):
        yield
