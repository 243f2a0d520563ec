"""What comes of asking a task: raw values, at once or step by step, and what is made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from math import fsum
from operator import attrgetter
from typing import Any, Protocol

WORST = 20  # mistakes that are shown


@dataclass(frozen=True)
class RawAnswers:
    """What a network made of some windows; the summed loss and its count where a truth is known."""

    values: Sequence[object]  # one for each window
    loss: float = 0.0
    count: int = 0


class AnswerSession(Protocol):
    """Answers that grow step by step, such as texts token by token."""

    @property
    def done(self) -> bool:
        """Is there nothing left to do?"""

    def step(self) -> None:
        """Go one token further."""

    def values(self) -> Sequence[object]:
        """What there is so far: one raw value for each window."""


@dataclass(frozen=True)
class Mistake:
    """An answer that was wrong, and by how much."""

    where: str
    text: str
    truth: str
    said: str
    badness: float  # the larger, the worse


@dataclass
class Detail:
    """What is shown of a score besides its numbers."""

    table: list[dict[str, Any]] = field(default_factory=list)  # a line for each label
    confusion: dict[str, Any] | None = None  # names, and counts [truth][said]
    mistakes: list[Mistake] = field(default_factory=list)  # only the worst are kept, worst first

    def __post_init__(self) -> None:
        self.mistakes = nlargest(WORST, self.mistakes, key=attrgetter("badness"))


@dataclass(frozen=True)
class Agreement:
    """How alike two models answer the same records."""

    share: float
    least: float  # a smaller share means that they differ too much
    text: str  # in words, with {share} and {texts}

    @classmethod
    def of(cls, same: Sequence[bool]) -> "Agreement":
        """By the answers that are the same."""
        text = "{share:.2%} of the answers to {texts:,} texts are the same"
        return cls(sum(same) / len(same), 0.97, text)


@dataclass
class AnswerCounts:
    """What answering counts on its way."""

    losses: list[float] = field(default_factory=list)  # summed, of each batch
    counts: list[int] = field(default_factory=list)  # of answers that have a truth
    cut_texts: int = 0  # were too long and lost their end
    cut_tokens: int = 0

    @property
    def mean(self) -> float:
        """The loss of one answer; the same in whichever order batches were done."""
        return fsum(self.losses) / max(sum(self.counts), 1)
