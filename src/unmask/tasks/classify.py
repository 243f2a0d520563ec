"""Classification: a text or a pair -> one label, or any number of labels.

single label  softmax over the labels; the answer is the most probable label
multi-label   one sigmoid per label; the answer is every label above the threshold
"""

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from unmask.data.batch import Batch
from unmask.data.labelled.columns import Sample, is_fraction
from unmask.data.labelled.tables import TABLES
from unmask.data.read.lines import require_unicode
from unmask.model.shape import LabelAnswer, LabelsConfig, Shape
from unmask.system.errors import DataError
from unmask.system.settings import Settings
from unmask.tasks.labels import TRUTH, LabelWindows, Scores, TextTask, text_labels, unknown_label
from unmask.tasks.metrics import LabelCounts, confusion, count_labels, matthews, softmax
from unmask.tasks.results import Agreement, Detail, Result
from unmask.tasks.views import LabelsView
from unmask.text.tokens import Tokenizers

LISTED_LABELS = 5  # labels whose probabilities an answer lists; chosen labels are always listed
NUMBER = re.compile(r"-?[0-9]{1,18}")  # sorted as numbers; 18 digits fit into 64 bits
MAX_CONFUSION_LABELS = 30  # with more labels no confusion matrix is drawn


class ClassifySettings(Settings):
    """How labels are read from the file, learned and chosen."""

    multi_label: bool = False  # a text may have any number of labels
    separator: str = ","  # between several labels in a CSV or TSV cell
    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5  # of `multi_label`: chosen above it
    balance: Literal["none", "labels"] = "none"  # labels: rare ones weigh as much
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0

    old_names: ClassVar[Mapping[str, str]] = {
        "several": "multi_label",
        "smoothing": "label_smoothing",
    }


@dataclass(frozen=True, repr=False)
class Labels(Result):
    """The chosen labels of a text, with the probabilities of the most probable ones."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]

    @property
    def label(self) -> str:
        """The label, in a task with one label per text."""
        return self.labels[0]


class Classify(TextTask[Labels]):
    """A linear layer on the pooled [CLS], as in BERT."""

    name = "classify"
    title = "Classify"
    Config = ClassifySettings
    answers = Labels
    config: ClassifySettings

    def __init__(
        self, config: ClassifySettings, names: Sequence[str], weights: Sequence[float] | None = None
    ) -> None:
        super().__init__(config)
        self.names = tuple(names)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.weights = torch.ones(len(names)) if weights is None else torch.tensor(weights)
        self.metric = "micro_f1" if config.multi_label else "accuracy"

    @classmethod
    def parse_label(cls, config: ClassifySettings, sample: Sample) -> tuple[str, ...]:
        """Parse the label of a sample: a text, a whole number, or a list of labels."""
        value: object = sample.label
        place = sample.where
        if isinstance(value, list) and not config.multi_label:
            raise DataError(
                f"{place}: expected one label, got a list. To learn several labels per text, "
                "use --set task.multi_label=true."
            )
        if isinstance(value, str) and config.multi_label:
            value = [part for part in value.split(config.separator) if part.strip()]
        # A sample always has a tuple of labels, so that the rest need not tell the two modes apart.
        names: list[str] = []
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, bool):  # as JSON spells it, not as Python does
                part = str(part).lower()
            if not isinstance(part, str | int):
                raise DataError(
                    f"{place}: the label is {part!r:.60}; expected a name or a whole number."
                )
            name = require_unicode(str(part).strip(), place)
            if not name:
                raise DataError(f"{place}: the label is empty. Add a label, or remove the row.")
            if name in names:
                raise DataError(f"{place}: the label '{name}' is given twice. Remove one of them.")
            names.append(name)
        return tuple(names)

    @classmethod
    def recognises(cls, path: Path, ending: str, lines: Sequence[str]) -> bool:
        """Whether the file is a table; `classify` is the most general task for tables."""
        return ending in TABLES

    @classmethod
    def stratum(cls, record: Sample) -> Hashable:
        """Return the labels of a record, in any order."""
        return tuple(sorted(_labels_of(record)))

    @classmethod
    def learn(cls, config: ClassifySettings, records: Sequence[Sample]) -> "Classify":
        """Make the task with the labels that occur; whole numbers are sorted as numbers."""
        counts: Counter[str] = Counter(name for record in records for name in _labels_of(record))
        if len(counts) < (1 if config.multi_label else 2):
            problem = f"only the label '{next(iter(counts))}'" if counts else "no label"
            raise DataError(
                f"{records[0].where}: {problem} in {len(records):,} examples; expected at least "
                "two labels. Add examples with another label, or check --label."
            )
        numbers = all(NUMBER.fullmatch(name) for name in counts)
        names = sorted(counts, key=int) if numbers else sorted(counts)
        # Scores read as class names would give a useless model with a label per example.
        if len(names) > len(records) / 2 and all(map(is_fraction, names)):
            raise DataError(
                f"{records[0].where}: the labels of {len(records):,} examples are "
                f"{len(names):,} different numbers. To predict a number, use regress."
            )
        if config.balance == "none":
            return cls(config, names)
        # n / (C * count), the "balanced" weights of scikit-learn: every label has the same total.
        return cls(config, names, [len(records) / (len(names) * counts[name]) for name in names])

    @classmethod
    def restore(cls, shape: Shape, config: ClassifySettings) -> "Classify | None":
        """Make the task of a model with text labels that are not a number."""
        labels = text_labels(shape)
        if labels is None or labels.answer == "number":
            return None
        multi_label = labels.answer == "several"
        return cls(config.model_copy(update={"multi_label": multi_label}), labels.names)

    @property
    def head(self) -> LabelsConfig:
        """A label head on the pooler, with one output per label."""
        answer: LabelAnswer = "several" if self.config.multi_label else "one"
        return LabelsConfig(on="text", names=self.names, answer=answer)

    def check(self, records: Sequence[Sample]) -> None:
        """Refuse labels that do not occur in the training data."""
        for record in records:
            for name in _labels_of(record):
                if name not in self.number:
                    raise unknown_label(record.where, name, self.names[:20])

    def truth(self, record: Sample) -> list[int]:
        """Return the indices of the labels of a record."""
        return [self.number[name] for name in _labels_of(record)]

    def truths(self, windows: LabelWindows) -> Tensor:
        """Return the label index of each text, or a row of 0 and 1.  -> [N] or [N, C]"""
        label_indices: list[list[int]] = [window.truth for window in windows]
        if not self.config.multi_label:
            return torch.tensor([indices[0] for indices in label_indices])
        table = torch.zeros(len(windows), len(self.names))
        for row, indices in enumerate(label_indices):
            table[row, indices] = 1.0
        return table

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the summed cross-entropy; of several labels, the mean over the labels."""
        loss = self._cross_entropy(scores, batch, "sum")
        return loss / len(self.names) if self.config.multi_label else loss

    def losses(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each text."""
        losses = self._cross_entropy(scores, batch, "none")  # [N]; several labels: [N, C]
        return losses.sum(dim=1) / len(self.names) if self.config.multi_label else losses

    def _cross_entropy(self, scores: Tensor, batch: Batch, reduction: str) -> Tensor:
        truth, weights = batch.labels[TRUTH], self.weights.to(scores.device)
        smoothing = self.config.label_smoothing
        if not self.config.multi_label:
            return F.cross_entropy(
                scores, truth, weights, reduction=reduction, label_smoothing=smoothing
            )
        # Each label is a choice of two, so smoothing moves a target towards 1/2.
        target = truth * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(scores, target, weights, reduction=reduction)

    def decode(
        self, record: Sample, windows: LabelWindows, values: Sequence[Scores], tokens: Tokenizers
    ) -> Labels:
        """Choose the most probable label, or every label above the threshold."""
        logits: Scores = values[0][0]
        probabilities = 1 / (1 + np.exp(-logits)) if self.config.multi_label else softmax(logits)
        # A stable sort breaks ties by label order, on every machine alike.
        order: list[int] = np.argsort(-probabilities, kind="stable").tolist()
        chosen = order[:1]
        if self.config.multi_label:
            chosen = [i for i in order if probabilities[i] > self.config.threshold]
        shown = order[: max(LISTED_LABELS, len(chosen))]
        return Labels(
            tuple(self.names[i] for i in chosen),
            {self.names[i]: round(float(probabilities[i]), 6) for i in shown},
        )

    def row(self, answer: Labels) -> dict[str, Any]:
        """Return the label with its probability as the score, or all labels of a text."""
        plain = self.plain(answer)
        if self.config.multi_label:
            return plain
        score = answer.probabilities[answer.label]
        return {"label": answer.label, "score": score, "probabilities": plain["probabilities"]}

    def view(self, record: Sample, answer: Labels) -> LabelsView:
        """Return the labels and their probabilities for display."""
        return LabelsView(chosen=list(answer.labels), shares=answer.probabilities)

    def all_equal(self, answers: Sequence[Labels]) -> bool:
        """Whether every text got the same labels."""
        return len({answer.labels for answer in answers}) == 1

    def agreement(self, reference: Sequence[Labels], answers: Sequence[Labels]) -> Agreement:
        """Return the share of texts with the same labels, whatever their probabilities."""
        return Agreement.of([a.labels == b.labels for a, b in zip(reference, answers, strict=True)])

    def score(self, records: Sequence[Sample], answers: Sequence[Labels]) -> dict[str, float]:
        """Return accuracy and macro F1, with Matthews correlation or micro F1."""
        truth, predicted = _label_sets(records, answers)
        counts = count_labels(truth, predicted)
        # The mean over all known labels: one that is neither predicted nor true counts as 0.
        macro_f1 = float(np.mean([counts.get(name, LabelCounts()).f1 for name in self.names]))
        accuracy = float(np.mean([a == b for a, b in zip(truth, predicted, strict=True)]))
        scores = {"accuracy": accuracy, "macro_f1": macro_f1}
        if self.config.multi_label:
            return {**scores, "micro_f1": sum(counts.values(), LabelCounts()).f1}
        return {**scores, "matthews": matthews(self._confusion(records, answers))}

    def mistake(self, record: Sample, answer: Labels) -> tuple[str, str, float] | None:
        """Return labels, predictions and confidence of a wrong answer."""
        truth, predicted = sorted(_labels_of(record)), sorted(answer.labels)
        if truth == predicted:
            return None
        return ", ".join(truth), ", ".join(predicted), max(answer.probabilities.values())

    def detail(self, records: Sequence[Sample], answers: Sequence[Labels]) -> Detail:
        """Return a table by label, the confusion matrix and the most confident mistakes."""
        detail, counts = (
            super().detail(records, answers),
            count_labels(*_label_sets(records, answers)),
        )
        detail.table = [counts.get(name, LabelCounts()).row(name) for name in self.names]
        if not self.config.multi_label and len(self.names) <= MAX_CONFUSION_LABELS:
            matrix = self._confusion(records, answers).tolist()
            detail.confusion = {"names": list(self.names), "counts": matrix}
        return detail

    def _confusion(self, records: Sequence[Sample], answers: Sequence[Labels]) -> NDArray[np.int64]:
        truth = [_labels_of(record)[0] for record in records]
        return confusion(truth, [answer.label for answer in answers], self.names)


def _labels_of(record: Sample) -> tuple[str, ...]:
    labels: tuple[str, ...] = record.label
    return labels


def _label_sets(
    records: Sequence[Sample], answers: Sequence[Labels]
) -> tuple[list[set[str]], list[set[str]]]:
    return [set(_labels_of(record)) for record in records], [set(a.labels) for a in answers]
