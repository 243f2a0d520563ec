"""What a run asks of its evaluation; the base class evaluates nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.model.network import Network
from unmask.objectives.base import Objective
from unmask.train.steps.base import StepResult

Entry = dict[str, Any]  # a line of metrics.jsonl
METRIC = "metric"  # key of the value that the best step maximises
# Keys in the metrics of version 0.1 -> present keys, by the kind of entry.
OLD_KEYS = {
    "train": {
        "rate": "learning_rate",
        "norm": "grad_norm",
        "tokens_a_second": "tokens_per_second",
    },
    "eval": {
        "how": "task_settings",
        "blanks": "masked_predictions",
        "asks": "targets",
        "evaluated": "evaluated_tokens",
    },
}


def with_present_keys(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of the metrics under the present keys, which version 0.1 called otherwise."""
    renamed = OLD_KEYS.get(str(entry.get("kind")), {})
    # An entry with a present key is not an old one: its `rate` is the loss of a user's own term.
    if not renamed.keys() & entry.keys() or {*renamed.values()} & entry.keys():
        return dict(entry)
    present = {renamed.get(key, key): value for key, value in entry.items()}
    cases = present.get("masked_predictions")
    if isinstance(cases, list):
        present["masked_predictions"] = [
            {"predictions" if key == "guesses" else key: value for key, value in case.items()}
            for case in cases
            if isinstance(case, dict)
        ]
    return present


def metric_name(task: str, metric: str) -> str:
    """Return the name of a task's metric in a run: `name.what` if the run has several tasks."""
    return f"{task}.{metric}" if task else metric


@dataclass
class Position:
    """What a run resumes from, beside its weights and optimizer state."""

    step: int = 0
    tokens: int = 0  # so far, without padding
    seconds: float = 0.0  # of training, so far
    before: float = 0.0  # the part of `seconds` before the first step
    bad: int = 0  # steps in a row that were skipped because they were not finite
    evaluated: int = -1  # step of the last evaluation; -1 if there was none
    slot: int = 0  # number of the last evaluation that was due
    # Plain integers: the position is stored as JSON in each checkpoint.
    cursor: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Best:
    """The step whose model a run publishes."""

    step: int
    path: Path | None = None  # folder of its model; None: publish the present network
    scores: dict[str, float] = field(default_factory=dict)  # under their names in the metrics
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each task, by its name


class Evaluator:
    """Evaluates a run `times` times, spread evenly over it."""

    times = 0
    plain_loss: float | None = None  # loss of predicting by token frequency, where known

    def evaluate(self, network: Network, objective: Objective, position: Position) -> Entry:
        """Measure and report the network; every process takes part and gets the same entry."""
        return {}

    def best(self, position: Position) -> Best:
        """Return the step to publish; here the last one."""
        return Best(position.step)

    def stop(self) -> bool:
        """Whether to end the run early; the answer must be the same on every process."""
        return False

    def report(self) -> None:
        """Draw the run so far; called after an evaluation was recorded."""

    def restore(self, entries: Sequence[Entry]) -> None:
        """Remember the evaluations of a run that is resumed."""

    def stepped(self, position: Position, result: StepResult) -> None:
        """Watch the result of a training step."""

    def saved(self) -> None:
        """React to a checkpoint that was just written."""
