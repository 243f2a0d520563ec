"""What the functions return where it is neither a model nor the answers of a task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.tasks.results import Result


@dataclass(frozen=True, repr=False)
class LearnedVocabulary(Result):
    """A vocabulary folder, and how well the vocabulary fits the words it was learned from."""

    folder: Path
    tokens: int
    words: int
    distinct_words: int
    characters_spelled: float  # share of characters in words that are not [UNK]
    tokens_per_word: float
    unknown_words: float  # share of words that are [UNK]


@dataclass(frozen=True, repr=False)
class PreparedCorpus(Result):
    """A corpus folder that is ready for pre-training, with counts of what is in it."""

    folder: Path
    documents: int
    sentences: int
    tokens: int
    unknown: int  # tokens that are [UNK]
    read: int  # lines or records of the input
    skipped: int  # bad records, listed in skipped.jsonl
    blank: int


@dataclass(frozen=True, repr=False)
class EvaluationResult(Result):
    """The scores of a model on labelled data, and where it was wrong."""

    metrics: dict[str, float]
    labels: list[dict[str, Any]]  # precision, recall and F1 of each label; empty without labels
    confusion: dict[str, Any] | None  # "names", and "counts" as [true][predicted]
    mistakes: list[dict[str, Any]]  # the worst ones, worst first
    answers: list[Any]  # one for each record, in order

    def __getitem__(self, metric: str) -> float:
        return self.metrics[metric]


@dataclass(frozen=True, repr=False)
class CompiledModel(Result):
    """A model folder with a graph for ONNX Runtime, and how well it agrees with the original."""

    folder: Path
    agreement: float  # a share of equal answers, or the cosine of the worst vector
    least: float  # an agreement below this would have been refused
    texts: int  # texts that were compared
    summary: str


@dataclass(frozen=True, repr=False)
class ExportedModel(Result):
    """A folder with an ONNX graph for other runtimes."""

    folder: Path
    difference: float  # the largest difference between outputs of the graph and of the model
