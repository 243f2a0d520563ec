"""What a job hands to a run: plain data, so that a run never calls back into its job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.model.network import Network
from unmask.objectives.base import Companions, Objective
from unmask.text.tokens import Tokenizers
from unmask.train.evaluator import Evaluator
from unmask.train.sources import Source


@dataclass(frozen=True)
class Digest:
    """The data that a run learns from: its kind, its sha256 and its provenance."""

    name: str  # its kind, as in the error "was started with another corpus"
    sha256: str
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ingredients:
    """Everything that a run needs beside its recipe."""

    tokens: Tokenizers
    network: Network
    objective: Objective
    source: Source
    evaluator: Evaluator
    digest: Digest
    companions: Companions = field(default_factory=dict)  # frozen; neither saved nor optimised
    # Published folder -> the encoders and heads in it; () for the whole network.
    publish: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"model": ()})
