"""The interface between a run and its evaluation; the base class evaluates nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.model.network import Network
from unmask.objectives.base import Objective
from unmask.train.steps.base import StepResult

Entry = dict[str, Any]  # a line of metrics
METRIC = "metric"  # in an evaluation: what the best step has the most of


def metric_name(name: str, what: str) -> str:
    """What a task's metric is called in a run."""
    return f"{name}.{what}" if name else what


@dataclass
class Position:
    """What, beside weights and optimizer, a run resumes from."""

    step: int = 0
    tokens: int = 0  # real ones, so far
    seconds: float = 0.0  # of training, so far
    before: float = 0.0  # of them, those before the first step
    bad: int = 0  # steps in a row that were skipped, as something was not finite
    evaluated: int = -1  # the step of the last evaluation
    slot: int = 0  # of the evaluations that are spread over the run, the last that was due
    cursor: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Best:
    """The step that a run is published from."""

    step: int
    path: Path | None = None  # the folder of its model, where that is not the network as it is
    scores: dict[str, float] = field(default_factory=dict)  # as they are in the metrics
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each task, by its name


class Evaluator:
    """Evaluates a run; `times` is how often, over the run."""

    times = 0
    plain_loss: float | None = None  # what a guess by word frequency would reach, where known

    def evaluate(self, network: Network, objective: Objective, position: Position) -> Entry:
        """Measure and report; every process takes part and gets the same entry."""
        return {}

    def best(self, position: Position) -> Best:
        """The step to publish; here the last one."""
        return Best(position.step)

    def stop(self) -> bool:
        """Has the run learned all that it will?"""
        return False

    def report(self) -> None:
        """Draw the run so far; called after each evaluation was recorded."""

    def restore(self, entries: Sequence[Entry]) -> None:
        """Remember the evaluations of a run that is resumed."""

    def stepped(self, position: Position, result: StepResult) -> None:
        """Look at a step."""

    def saved(self) -> None:
        """Called after each checkpoint."""
