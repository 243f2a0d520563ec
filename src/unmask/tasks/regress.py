"""A number for a text or a pair, such as how similar two sentences are."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unmask.data.batches import Batch
from unmask.data.columns import Sample
from unmask.errors import DataError
from unmask.model.config import HeadsConfig, LabelsConfig
from unmask.settings import Settings
from unmask.tasks.base import TRUTH, Scores, TextTask, Window
from unmask.tasks.metrics import pearson, spearman


class RegressSettings(Settings):
    """Nothing is to be set."""


@dataclass(frozen=True)
class Number:
    """What the model says."""

    score: float


class Regress(TextTask):
    """A linear reading of the pooled [CLS], trained to the least square."""

    name = "regress"
    settings = RegressSettings
    answers = Number
    metric = "spearman"

    def __init__(self, how: RegressSettings, label: str = "score") -> None:
        self.how, self.label = how, label

    @classmethod
    def understand(cls, how: RegressSettings, sample: Sample) -> float:
        """The number; refuses what is none."""
        value: object = sample.label
        wrong = f"{sample.where}: the score is {value!r:.60}; need a"
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise DataError(f"{wrong} number. Mend it.")
        try:
            found = float(value)
        except (ValueError, OverflowError):
            raise DataError(f"{wrong} number. Mend it; for names use classify.") from None
        if not isfinite(found):
            raise DataError(f"{wrong} finite number. Mend it.")
        return found

    @classmethod
    def learn(cls, how: RegressSettings, records: Sequence[Sample]) -> "Regress":
        """The numbers must differ."""
        if len({record.label for record in records}) < 2:
            raise DataError(
                f"{records[0].where}: the number is {records[0].label:g} in all {len(records):,} "
                "examples; need at least two different ones. Check --label."
            )
        return cls(how)

    @classmethod
    def restore(cls, heads: HeadsConfig, how: RegressSettings) -> "Regress | None":
        """For a text label that is a number."""
        if heads.labels != "text" or heads.label_answer != "number":
            return None
        return cls(how, heads.label_names[0])

    @property
    def head(self) -> LabelsConfig:
        """A layer on the pooler, with one row."""
        return LabelsConfig(labels="text", label_names=(self.label,), label_answer="number")

    def check(self, records: Sequence[Sample]) -> None:
        """Any number may be asked for."""

    def truth(self, record: Sample) -> float:
        """The number."""
        return float(record.label)

    def truths(self, windows: Sequence[Window]) -> Tensor:
        """The numbers."""
        return torch.tensor([window.truth for window in windows])

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """The square of the difference."""
        return F.mse_loss(scores[:, 0], batch.labels[TRUTH], reduction="sum")

    def answer(self, record: Sample, windows: Sequence[Window], scores: Sequence[Scores]) -> Number:
        """The number as it is."""
        return Number(float(scores[0][0, 0]))

    def score(self, records: Sequence[Sample], answers: Sequence[Number]) -> dict[str, float]:
        """Correlations, and the mean square of the differences."""
        truth = np.array([record.label for record in records])
        said = np.array([answer.score for answer in answers])
        return {
            "spearman": spearman(truth, said),
            "pearson": pearson(truth, said),
            "mean_square": float(np.mean((truth - said) ** 2)),
        }

    def mistake(self, record: Sample, answer: Number) -> tuple[str, str, float]:
        """How far an answer is off."""
        return f"{record.label:g}", f"{answer.score:.3g}", abs(record.label - answer.score)
