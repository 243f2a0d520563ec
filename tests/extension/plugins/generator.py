"""(c) A small encoder fills masked places; the main one finds what it has replaced (ELECTRA)."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch.nn import functional as F

import unmask
from unmask.data.batch import Batch
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import Heads, LabelsConfig, Shape, TokensConfig
from unmask.objectives.base import Companions, Sums, Term
from unmask.objectives.mlm import ANSWERS, PLACES, MaskedLM, MaskSettings


class ReplacedSettings(MaskSettings):
    """The generator's size, and how much the main encoder's question counts."""

    shrink: Annotated[int, Field(ge=1)] = 2
    weight: Annotated[float, Field(gt=0.0)] = 50.0


class ReplacedTokens(MaskedLM):
    """Both are trained together; the generator borrows the main encoder's token embeddings."""

    Config = ReplacedSettings
    config: ReplacedSettings

    def describe(self) -> list[Term]:
        """What was replaced, and what the generator must fill in."""
        (filled,) = super().describe()
        return [Term("replaced", "replaced tokens", choices=2), filled]

    @property
    def weights(self) -> dict[str, float]:
        """A yes or no is a small loss beside a token."""
        return {"replaced": self.config.weight}

    def encoders(self, shape: Shape) -> dict[str, ModelConfig]:
        """A narrower encoder that reads the same token embeddings."""
        main, less = shape.main, self.config.shrink
        sizes = {"width": main.width // less, "heads": max(main.heads // less, 1)}
        sizes |= {"inner_width": main.inner_width // less, "embedding_width": main.width}
        return {"generator": main.model_copy(update={**sizes, "borrows": "main"})}

    def heads(self, shape: Shape) -> Heads:
        """A yes or no for each token, and the generator's predictions."""
        found = LabelsConfig(on="token", names=("kept", "replaced"), dropout=0.0)
        return {"replaced": found, "filled": TokensConfig(encoder="generator")}

    def publish(self) -> dict[str, Sequence[str]]:
        """Each as a model of its own."""
        return {"model": ("main", "replaced"), "models/generator": ("generator", "filled")}

    def standard(self) -> "ReplacedTokens":
        """As it is trained."""
        return self

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Mask tokens, and keep what the others are."""
        masked = super().prepare(batch, key, progress)
        count = int((batch.owner >= 0).sum())
        return masked.with_labels(count, "replaced", original=batch.tokens)

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """Fill, draw, and look for what was drawn."""
        places, answers = batch.labels[PLACES], batch.labels[ANSWERS]
        states = network.states_for("filled", batch, places=places)
        scores = network.token_scores(states, "filled")
        with torch.no_grad():
            drawn = scores.softmax(dim=-1).multinomial(1)[:, 0]
            seen = batch.labels["original"].flatten().index_put((places,), drawn)
        real = (batch.owner >= 0).flatten()
        states = network.encode(batch.with_inputs(tokens=seen.view(batch.owner.shape)))
        found = network.label_scores(states.flatten(0, 1)[real], "replaced")
        truth = (seen != batch.labels["original"].flatten())[real].long()
        sums = {"mlm": F.cross_entropy(scores, answers, reduction="sum")}
        sums["replaced"] = F.cross_entropy(found, truth, reduction="sum")
        sums["replaced_right"] = (found.argmax(dim=-1) == truth).sum()
        return sums | {"mlm_right": (scores.argmax(dim=-1) == answers).sum()}


unmask.register("objective", "replaced_tokens", ReplacedTokens)
