"""Scores -> probabilities; predictions and labels -> metrics.

Covers single labels, sets of labels and real numbers. Tests compare the results with scikit-learn
and SciPy.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]
T = TypeVar("T")
F = TypeVar("F", np.float32, np.float64)


def softmax(scores: NDArray[F]) -> NDArray[F]:
    """Return the softmax of scores over the last axis."""
    # Subtracting the maximum avoids overflow. `initial` allows an empty axis, which a question
    # without a candidate answer has.
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    probabilities: NDArray[F] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


@dataclass(frozen=True)
class LabelCounts:
    """How often a label was predicted, was true, and was both (a true positive)."""

    predicted: int = 0
    true: int = 0
    both: int = 0

    def __add__(self, other: "LabelCounts") -> "LabelCounts":
        return LabelCounts(
            self.predicted + other.predicted, self.true + other.true, self.both + other.both
        )

    @property
    def precision(self) -> float:
        """The share of predictions that are true; 0 without predictions."""
        return self.both / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of true labels that were predicted; 0 without true labels."""
        return self.both / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.both / (self.predicted + self.true) if self.predicted + self.true else 0.0

    def row(self, name: str) -> dict[str, str | float]:
        """Return the scores of a label as a table row."""
        scores = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {"label": name, **scores, "count": self.true}


def count_labels(
    truth: Sequence[Set[T]], predicted: Sequence[Set[T]], label: Callable[[T], str] = str
) -> dict[str, LabelCounts]:
    """Count predicted, true and correct items by label, over all records.

    Items may be labels or, with a function for their label, other things such as entity spans.
    """
    # Both arguments hold sets: a label that is predicted twice for one record counts once.
    correct = [
        true_items & predicted_items
        for true_items, predicted_items in zip(truth, predicted, strict=True)
    ]
    counts = [
        Counter(label(item) for items in sets for item in items)
        for sets in (predicted, truth, correct)
    ]
    return {name: LabelCounts(*(count[name] for count in counts)) for name in counts[0] | counts[1]}


def confusion(
    truth: Sequence[str], predicted: Sequence[str], names: Sequence[str]
) -> NDArray[np.int64]:
    """Count how often each true label was predicted as each label: [true, predicted]."""
    number = {name: i for i, name in enumerate(names)}
    table = np.zeros((len(names), len(names)), dtype=np.int64)
    for true_label, predicted_label in zip(truth, predicted, strict=True):
        table[number[true_label], number[predicted_label]] += 1
    return table


def matthews(table: NDArray[np.int64]) -> float:
    """Return the Matthews correlation of a confusion matrix of any size (Gorodkin 2004)."""
    counts = table.astype(np.float64)  # fourth powers below overflow int64 from 55,000 records on
    true: Numbers = counts.sum(axis=1)
    predicted: Numbers = counts.sum(axis=0)
    total, correct = float(counts.sum()), float(np.trace(counts))
    denominator = sqrt((total**2 - dot(predicted, predicted)) * (total**2 - dot(true, true)))
    return (correct * total - dot(true, predicted)) / denominator if denominator else 0.0


def dot(one: Numbers, other: Numbers) -> float:
    """Return the dot product as a Python float."""
    return float(one @ other)


def pearson(first: ArrayLike, second: ArrayLike) -> float:
    """Return Pearson's correlation; 0 if one side is constant."""
    first_centred, second_centred = _centred(first), _centred(second)
    scale = sqrt(dot(first_centred, first_centred) * dot(second_centred, second_centred))
    return dot(first_centred, second_centred) / scale if scale else 0.0


def _centred(values: ArrayLike) -> Numbers:
    numbers = np.asarray(values, dtype=np.float64)
    return numbers - float(numbers.mean())


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Return Spearman's rank correlation; 0 if one side is constant."""
    return pearson(ranks(first), ranks(second))


def ranks(values: ArrayLike) -> Numbers:
    """Return the rank of each value, from 1; equal values share the mean of their ranks.

    >>> ranks([10, 30, 20, 20])
    array([1. , 4. , 2.5, 2.5])
    """
    numbers = np.asarray(values, dtype=np.float64)
    _, group_of_value, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    last_ranks = counts.cumsum()  # the highest rank within each group of equal values
    mean_ranks: Numbers = (last_ranks - (counts - 1) / 2)[group_of_value]
    return mean_ranks


def word_f1(predicted: str, truth: str) -> float:
    """Return the F1 of two answers as bags of words, as the SQuAD script counts it.

    >>> word_f1("the Eiffel Tower in Paris", "Eiffel Tower")
    0.6666666666666666
    """
    predicted_words, true_words = normalized(predicted).split(), normalized(truth).split()
    if not predicted_words or not true_words:
        return float(predicted_words == true_words)
    shared = sum((Counter(predicted_words) & Counter(true_words)).values())
    return 2 * shared / (len(predicted_words) + len(true_words)) if shared else 0.0


def normalized(text: str) -> str:
    """Drop case, punctuation, articles and extra spaces, as the SQuAD script does.

    >>> normalized("The  Eiffel-Tower!")
    'eiffeltower'
    """
    letters = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())
