"""What a job makes for a run: data only, nothing to call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unmask.model.network import Network
from unmask.objectives.base import Objective
from unmask.text.tokenizer import Tokenizer
from unmask.train.evaluator import Evaluator
from unmask.train.sources import Source


@dataclass(frozen=True)
class Tokens:
    """How texts become tokens, on both sides of a model."""

    source: Tokenizer
    max_length: int  # tokens of a text
    target: Tokenizer | None = None  # of what a decoder says

    def digest(self) -> str:
        """The sha256 of all tokenizers."""
        return self.source.digest() + (self.target.digest() if self.target else "")


@dataclass(frozen=True)
class Digest:
    """What a run learns from: how it is called, how it is recognised, where it came from."""

    name: str  # as in "was begun with another corpus"
    sha256: str
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ingredients:
    """All that a run needs beside its recipe."""

    tokens: Tokens
    network: Network
    objective: Objective
    source: Source
    evaluator: Evaluator
    digest: Digest
    publish: Mapping[str, str] = field(default_factory=lambda: {"model": ""})  # folder: its head
