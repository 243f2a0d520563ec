"""Regression: a text or a pair -> a number, such as the similarity of two sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unmask.data.batch import Batch
from unmask.data.labelled.columns import Sample, is_fraction
from unmask.model.shape import LabelsConfig, Shape
from unmask.system.errors import DataError
from unmask.system.settings import Settings
from unmask.tasks.labels import TRUTH, LabelWindows, Scores, TextTask, text_labels
from unmask.tasks.metrics import pearson, spearman
from unmask.tasks.results import Agreement, Result
from unmask.tasks.views import NumberView
from unmask.text.tokens import Tokenizers


class RegressSettings(Settings):
    """Regression has no settings."""


@dataclass(frozen=True, repr=False)
class Number(Result):
    """The predicted score."""

    score: float


class Regress(TextTask[Number]):
    """A linear layer on the pooled [CLS], trained with the squared error."""

    name = "regress"
    title = "Score"
    Config = RegressSettings
    answers = Number
    metric = "spearman"

    def __init__(self, config: RegressSettings, label: str = "score") -> None:
        super().__init__(config)
        self.label = label

    @classmethod
    def parse_label(cls, config: RegressSettings, sample: Sample) -> float:
        """Parse the score of a sample; refuse what is not a finite number."""
        value: object = sample.label
        problem = f"{sample.where}: the score is {value!r:.60}; expected a"
        # JSON's true is an int in Python and would pass as 1.
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise DataError(f"{problem} number.")
        try:
            score = float(value)
        except (ValueError, OverflowError):
            raise DataError(f"{problem} number. For class labels, use classify.") from None
        if not isfinite(score):
            raise DataError(f"{problem} finite number.")
        return score

    @classmethod
    def recognises(cls, path: Path, ending: str, lines: Sequence[str]) -> bool:
        """Whether a table has decimal fractions as labels; whole numbers may be class names."""
        labels = cls.first_labels(path, ending, lines)
        return bool(labels) and all(map(is_fraction, labels))

    @classmethod
    def learn(cls, config: RegressSettings, records: Sequence[Sample]) -> "Regress":
        """Make the task; refuse training data with a constant score."""
        # A constant has no correlation, which is the metric.
        if len({number_of(record) for record in records}) < 2:
            raise DataError(
                f"{records[0].where}: the score is {number_of(records[0]):g} in all "
                f"{len(records):,} examples; expected at least two different scores. Check --label."
            )
        return cls(config)

    @classmethod
    def restore(cls, shape: Shape, config: RegressSettings) -> "Regress | None":
        """Make the task of a model with a numeric text label."""
        labels = text_labels(shape)
        if labels is None or labels.answer != "number":
            return None
        return cls(config, labels.names[0])

    @property
    def head(self) -> LabelsConfig:
        """A label head on the pooler with a single output."""
        return LabelsConfig(on="text", names=(self.label,), answer="number")

    def truth(self, record: Sample) -> float:
        """Return the score of a record."""
        return number_of(record)

    def truths(self, windows: LabelWindows) -> Tensor:
        """Return the scores of a batch.  -> [N]"""
        return torch.tensor([window.truth for window in windows])

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the summed squared error."""
        return F.mse_loss(scores[:, 0], batch.labels[TRUTH], reduction="sum")

    def losses(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the squared error of each text."""
        return F.mse_loss(scores[:, 0], batch.labels[TRUTH], reduction="none")

    def decode(
        self, record: Sample, windows: LabelWindows, values: Sequence[Scores], tokens: Tokenizers
    ) -> Number:
        """Return the raw score; the head is linear and its output is not scaled."""
        return Number(float(values[0][0, 0]))

    def view(self, record: Sample, answer: Number) -> NumberView:
        """Return the score for display."""
        return NumberView(value=answer.score)

    def agreement(self, reference: Sequence[Number], answers: Sequence[Number]) -> Agreement:
        """Return the share of variance that the second model preserves (R squared)."""
        first, second = (np.array([n.score for n in numbers]) for numbers in (reference, answers))
        # The floor avoids a division by zero where a model gives all texts the same score.
        share = 1.0 - float(np.square(second - first).mean()) / max(float(first.var()), 1e-12)
        return Agreement(
            share, 0.98, "{share:.2%} of the variance of the scores of {texts:,} texts is preserved"
        )

    def score(self, records: Sequence[Sample], answers: Sequence[Number]) -> dict[str, float]:
        """Return Spearman's and Pearson's correlation and the mean squared error."""
        truth = np.array([number_of(record) for record in records])
        predicted = np.array([answer.score for answer in answers])
        return {
            "spearman": spearman(truth, predicted),
            "pearson": pearson(truth, predicted),
            "mean_square": float(np.mean((truth - predicted) ** 2)),
        }

    def mistake(self, record: Sample, answer: Number) -> tuple[str, str, float]:
        """Return label, prediction and absolute error; no prediction is exactly right."""
        truth = number_of(record)
        return f"{truth:g}", f"{answer.score:.3g}", abs(truth - answer.score)


def number_of(record: Sample) -> float:
    """Return the score of a labelled record."""
    return float(record.label)
