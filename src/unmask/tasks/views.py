"""Answers in a form to display: five kinds that the page and reports can draw.

Every task converts its answers to one of them, so a new task needs no drawing code.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LabelsView(_View):
    """Labels with their probabilities, most probable first; `chosen` is the answer."""

    kind: Literal["labels"] = "labels"
    chosen: list[str]
    shares: dict[str, float]


class MarkedSpan(_View):
    """A labelled span of a text, in characters."""

    start: int
    end: int
    label: str
    share: float


class SpansView(_View):
    """Marked spans of a text; `note` is shown with them, for example that there is no answer."""

    kind: Literal["spans"] = "spans"
    text: str
    spans: list[MarkedSpan]
    note: str = ""


class AlignmentView(_View):
    """Attention weights of each target word over the source words: [target][source]."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]


class TextView(_View):
    """A generated text with its score, and its alignment if requested."""

    kind: Literal["text"] = "text"
    text: str
    score: float | None = None
    alignment: AlignmentView | None = None


class NumberView(_View):
    """A single number."""

    kind: Literal["number"] = "number"
    value: float


class Ranked(_View):
    """A candidate and its score."""

    text: str
    score: float


class RankingView(_View):
    """Candidates, best first."""

    kind: Literal["ranking"] = "ranking"
    items: list[Ranked]


# The discriminator lets pydantic restore the right class from JSON, and OpenAPI describe each kind.
View = Annotated[
    LabelsView | SpansView | TextView | NumberView | RankingView, Field(discriminator="kind")
]
