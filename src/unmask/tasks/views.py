"""An answer as a person looks at it: one of five views, which the page and reports can draw."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LabelsView(_View):
    """Labels with their shares, the likeliest first; `chosen` are the answer."""

    kind: Literal["labels"] = "labels"
    chosen: list[str]
    shares: dict[str, float]


class Marked(_View):
    """A stretch of a text."""

    start: int
    end: int
    label: str
    share: float


class SpansView(_View):
    """Stretches of a text; `note` says what else there is to say, such as that there is none."""

    kind: Literal["spans"] = "spans"
    text: str
    spans: list[Marked]
    note: str = ""


class AlignmentView(_View):
    """How much of each target word's look fell on each source word."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]


class TextView(_View):
    """A text that the model wrote, and perhaps where it looked."""

    kind: Literal["text"] = "text"
    text: str
    score: float | None = None
    alignment: AlignmentView | None = None


class NumberView(_View):
    """A number."""

    kind: Literal["number"] = "number"
    value: float


class Ranked(_View):
    """A candidate and its score."""

    text: str
    score: float


class RankingView(_View):
    """Candidates, the best first."""

    kind: Literal["ranking"] = "ranking"
    items: list[Ranked]


View = Annotated[
    LabelsView | SpansView | TextView | NumberView | RankingView, Field(discriminator="kind")
]
