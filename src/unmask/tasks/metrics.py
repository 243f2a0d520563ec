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
    grown = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    shares: NDArray[F] = grown / grown.sum(axis=-1, keepdims=True)
    return shares


@dataclass(frozen=True)
class LabelCounts:
    """How often a label was predicted, was true, and was both (a true positive)."""

    said: int = 0
    true: int = 0
    both: int = 0

    def __add__(self, other: "LabelCounts") -> "LabelCounts":
        return LabelCounts(self.said + other.said, self.true + other.true, self.both + other.both)

    @property
    def precision(self) -> float:
        """The share of predictions that are true; 0 without predictions."""
        return self.both / self.said if self.said else 0.0

    @property
    def recall(self) -> float:
        """The share of true labels that were predicted; 0 without true labels."""
        return self.both / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.both / (self.said + self.true) if self.said + self.true else 0.0

    def row(self, name: str) -> dict[str, str | float]:
        """Return the scores of a label as a table row."""
        shares = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {"label": name, **shares, "count": self.true}


def count_labels(
    truth: Sequence[Set[T]], said: Sequence[Set[T]], label: Callable[[T], str] = str
) -> dict[str, LabelCounts]:
    """Count predicted, true and correct items by label, over all records.

    Items may be labels or, with a function for their label, other things such as entity spans.
    """
    # Both arguments hold sets: a label that is predicted twice for one record counts once.
    shared = [right & found for right, found in zip(truth, said, strict=True)]
    counts = [
        Counter(label(t) for things in each for t in things) for each in (said, truth, shared)
    ]
    return {name: LabelCounts(*(count[name] for count in counts)) for name in counts[0] | counts[1]}


def confusion(truth: Sequence[str], said: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    """Count how often each true label was predicted as each label: [true, predicted]."""
    number = {name: i for i, name in enumerate(names)}
    table = np.zeros((len(names), len(names)), dtype=np.int64)
    for right, found in zip(truth, said, strict=True):
        table[number[right], number[found]] += 1
    return table


def matthews(table: NDArray[np.int64]) -> float:
    """Return the Matthews correlation of a confusion matrix of any size (Gorodkin 2004)."""
    counts = table.astype(np.float64)  # fourth powers below overflow int64 from 55,000 records on
    true: Numbers = counts.sum(axis=1)
    said: Numbers = counts.sum(axis=0)
    all_, right = float(counts.sum()), float(np.trace(counts))
    apart = sqrt((all_**2 - dot(said, said)) * (all_**2 - dot(true, true)))
    return (right * all_ - dot(true, said)) / apart if apart else 0.0


def dot(one: Numbers, other: Numbers) -> float:
    """Return the dot product as a Python float."""
    return float(one @ other)


def pearson(first: ArrayLike, second: ArrayLike) -> float:
    """Return Pearson's correlation; 0 if one side is constant."""
    a, b = _centred(first), _centred(second)
    size = sqrt(dot(a, a) * dot(b, b))
    return dot(a, b) / size if size else 0.0


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
    _, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    last = counts.cumsum()  # the highest rank within each group of equal values
    mean: Numbers = (last - (counts - 1) / 2)[which]
    return mean


def word_f1(said: str, truth: str) -> float:
    """Return the F1 of two answers as bags of words, as the SQuAD script counts it.

    >>> word_f1("the Eiffel Tower in Paris", "Eiffel Tower")
    0.6666666666666666
    """
    ours, theirs = normalized(said).split(), normalized(truth).split()
    if not ours or not theirs:
        return float(ours == theirs)
    same = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * same / (len(ours) + len(theirs)) if same else 0.0


def normalized(text: str) -> str:
    """Drop case, punctuation, articles and extra spaces, as the SQuAD script does.

    >>> normalized("The  Eiffel-Tower!")
    'eiffeltower'
    """
    letters = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())
