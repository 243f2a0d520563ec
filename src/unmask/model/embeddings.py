"""Tokens, segments and positions -> the vectors that the first block reads.

The embeddings of tokens may be narrower than the encoder (factorised), and may be another
encoder's. A listener reads or changes the vectors of tokens before anything is added to them.
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
    """The sum of what a token is, which segment it is in, and where it is."""

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
        """Embed tokens, by the table of another encoder if one is lent.  3 x [B, S] -> [B, S, D]"""
        vectors = F.embedding(tokens, self.table if lent is None else lent)
        if self.listener is not None:
            vectors = self.listener(vectors)
        x: Tensor = self.positions.scaled(vectors) + self.segments(segments)
        where = self.positions.embed(index)
        x = x if where is None else x + where
        out: Tensor = self.project(training.dropped(self.norm(x), self.dropout))
        return out

    @property
    def table(self) -> Tensor:
        """The vectors of all tokens.  [V, E]"""
        assert self.tokens is not None, "these embeddings borrow the table of another encoder"
        return self.tokens.weight


@contextmanager
def listening_to_tokens(model: nn.Module, listener: TokenListener) -> Iterator[None]:
    """Inside the block, the embeddings in `model` pass their token vectors through `listener`."""
    with set_listener([own for own in model.modules() if isinstance(own, Embeddings)], listener):
        yield
