"""Hidden states -> scores: the small layers that stand on an encoder."""

from torch import Tensor, nn
from torch.nn import functional as F

from unmask.model.config import ModelConfig
from unmask.model.layers import ACTIVATIONS
from unmask.model.start import start


class Pooler(nn.Module):
    """A tanh layer on the state of [CLS]: one vector for the whole text."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        start(self.dense, config.init_std)

    def forward(self, first: Tensor) -> Tensor:
        """[N, D] -> [N, D]"""
        return F.tanh(self.dense(first))


class TokenHead(nn.Module):
    """Which token was it? A state that the token embeddings themselves are compared with.

    Run it only on the states of tokens that must be guessed: V is much wider than D.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.bias = nn.Parameter(self.dense.weight.new_zeros(config.vocab_size))
        self.activation = ACTIVATIONS[config.activation]
        start(self.dense, config.init_std)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, D] -> [N, D]"""
        out: Tensor = self.norm(self.activation(self.dense(hidden)))
        return out


class LabelHead(nn.Module):
    """A linear reading: of a pooled text, of each token, of the two ends of a span, of a pair."""

    def __init__(
        self, config: ModelConfig, labels: int, dropout: float = 0.0, *, layers: int = 1
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(config.width * layers, labels)
        start(self.dense, config.init_std)

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, C]"""
        scores: Tensor = self.dense(self.dropout(x))
        return scores
