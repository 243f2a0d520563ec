"""Scores -> probabilities; answers against the truth -> numbers.

Answers are labels, sets of labels, or numbers that should agree.
"""

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
    """Scores as probabilities, along the last axis."""
    grown = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    shares: NDArray[F] = grown / grown.sum(axis=-1, keepdims=True)
    return shares


@dataclass(frozen=True)
class LabelCounts:
    """How often something was said, true, and both."""

    said: int = 0
    true: int = 0
    both: int = 0

    def __add__(self, other: "LabelCounts") -> "LabelCounts":
        return LabelCounts(self.said + other.said, self.true + other.true, self.both + other.both)

    @property
    def precision(self) -> float:
        """Of what was said, the share that is true."""
        return self.both / self.said if self.said else 0.0

    @property
    def recall(self) -> float:
        """Of what is true, the share that was said."""
        return self.both / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of the two."""
        return 2 * self.both / (self.said + self.true) if self.said + self.true else 0.0

    def row(self, name: str) -> dict[str, str | float]:
        """As a line of a table."""
        shares = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {"label": name, **shares, "count": self.true}


def count_labels(
    truth: Sequence[Set[T]], said: Sequence[Set[T]], label: Callable[[T], str] = str
) -> dict[str, LabelCounts]:
    """For each label of things that occur in either, how often one was said, true, and both."""
    shared = [right & found for right, found in zip(truth, said, strict=True)]
    counts = [
        Counter(label(t) for things in each for t in things) for each in (said, truth, shared)
    ]
    return {name: LabelCounts(*(count[name] for count in counts)) for name in counts[0] | counts[1]}


def confusion(truth: Sequence[str], said: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    """How often each truth was called what: [truth, said]."""
    number = {name: i for i, name in enumerate(names)}
    table = np.zeros((len(names), len(names)), dtype=np.int64)
    for right, found in zip(truth, said, strict=True):
        table[number[right], number[found]] += 1
    return table


def matthews(table: NDArray[np.int64]) -> float:
    """Matthews' correlation of a confusion, for any number of labels (Gorodkin 2004)."""
    counts = table.astype(np.float64)
    true: Numbers = counts.sum(axis=1)
    said: Numbers = counts.sum(axis=0)
    all_, right = float(counts.sum()), float(np.trace(counts))
    apart = sqrt((all_**2 - dot(said, said)) * (all_**2 - dot(true, true)))
    return (right * all_ - dot(true, said)) / apart if apart else 0.0


def dot(one: Numbers, other: Numbers) -> float:
    """The sum of products."""
    return float(one @ other)


def pearson(first: ArrayLike, second: ArrayLike) -> float:
    """How well one line goes through all pairs; 0 where one of the two never changes."""
    a, b = _centred(first), _centred(second)
    size = sqrt(dot(a, a) * dot(b, b))
    return dot(a, b) / size if size else 0.0


def _centred(values: ArrayLike) -> Numbers:
    numbers = np.asarray(values, dtype=np.float64)
    return numbers - float(numbers.mean())


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """How well two orders agree: Pearson's of the ranks."""
    return pearson(ranks(first), ranks(second))


def ranks(values: ArrayLike) -> Numbers:
    """The place of each value in their order; equal ones share the mean of their places.

    >>> ranks([10, 30, 20, 20])
    array([1. , 4. , 2.5, 2.5])
    """
    numbers = np.asarray(values, dtype=np.float64)
    _, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    mean: Numbers = (last - (counts - 1) / 2)[which]
    return mean
