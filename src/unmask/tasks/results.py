"""The values that flow between a network, its task and a report: raw values, answers, mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from math import fsum
from operator import attrgetter
from typing import Any, Protocol

WORST = 20  # mistakes that a report shows


@dataclass(frozen=True)
class RawAnswers:
    """A network's raw value per window, with the summed loss where labels are known."""

    values: Sequence[object]  # one for each window
    loss: float = 0.0
    count: int = 0


class AnswerSession(Protocol):
    """Answers that are generated step by step, such as a translation token by token."""

    @property
    def done(self) -> bool:
        """Whether every answer is complete."""

    def step(self) -> None:
        """Generate one more token of every incomplete answer."""

    def values(self) -> Sequence[object]:
        """Return the raw value of each window as far as it has been generated."""


@dataclass(frozen=True)
class Mistake:
    """A wrong answer and how severe it is."""

    where: str
    text: str
    truth: str
    prediction: str
    severity: float  # sorts mistakes; the worst has the highest value


@dataclass
class Detail:
    """What a report shows beside the metrics."""

    table: list[dict[str, Any]] = field(default_factory=list)  # one row per label
    confusion: dict[str, Any] | None = None  # "names", and "counts" as [true][predicted]
    mistakes: list[Mistake] = field(default_factory=list)  # only the worst are kept, worst first

    def __post_init__(self) -> None:
        # A model early in its training may get every record wrong; reports must stay small.
        self.mistakes = nlargest(WORST, self.mistakes, key=attrgetter("severity"))


@dataclass(frozen=True)
class Agreement:
    """How well the answers of two models to the same records agree."""

    share: float
    least: float  # below this share the models differ too much
    text: str  # a format string with {share} and {texts}

    @classmethod
    def of(cls, same: Sequence[bool]) -> "Agreement":
        """Return the share of records with equal answers; 97 % are expected."""
        text = "{share:.2%} of the answers to {texts:,} texts are the same"
        return cls(sum(same) / len(same), 0.97, text)


@dataclass
class AnswerCounts:
    """Losses and truncation, counted while records are answered."""

    losses: list[float] = field(default_factory=list)  # the sum of each batch
    counts: list[int] = field(default_factory=list)  # labels in each sum
    cut_texts: int = 0  # texts that were truncated
    cut_tokens: int = 0

    @property
    def mean(self) -> float:
        """The mean loss per label, independent of the order of the batches."""
        # fsum rounds once, so the order in which parallel workers finish changes no bit.
        return fsum(self.losses) / max(sum(self.counts), 1)
