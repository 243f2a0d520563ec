"""What a job makes for a run: data only, nothing to call."""

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
    """What a run learns from: how it is called, how it is recognised, where it came from."""

    name: str  # as in "was begun with another corpus"
    sha256: str
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ingredients:
    """All that a run needs beside its recipe."""

    tokens: Tokenizers
    network: Network
    objective: Objective
    source: Source
    evaluator: Evaluator
    digest: Digest
    companions: Companions = field(default_factory=dict)  # frozen; neither saved nor optimised
    # A folder: the encoders and heads in it, () for all.
    publish: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"model": ()})
