"""What a run is made of, and how far it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from unmask.model.network import Network
from unmask.text.tokenizer import Tokenizer
from unmask.train.ahead import Source
from unmask.train.distributed import Processes
from unmask.train.recipe import TrainSettings
from unmask.train.run import RunFolder
from unmask.train.schedule import OptimizerSettings, ScheduleSettings
from unmask.train.signals import Wish
from unmask.train.step import Report, Trainee


@dataclass
class Position:
    """How far a run is."""

    step: int = 0
    tokens: int = 0  # real ones, so far
    seconds: float = 0.0  # of training, so far
    before: float = 0.0  # of them, those before the first step
    bad: int = 0  # steps in a row that were left out, as something was not finite
    evaluated: int = -1  # the step of the last evaluation
    slot: int = 0  # of the evaluations that are spread over the run, the last that was due
    cursor: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Final:
    """The model that a run ends with, where that is not simply the last step's."""

    network: Network
    facts: dict[str, Any]  # such as its scores
    task: dict[str, Any] | None  # the settings that its answers depend on


@dataclass
class Course:
    """Everything a run is made of."""

    network: Network
    trainee: Trainee
    source: Source
    tokenizer: Tokenizer
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    settings: TrainSettings
    processes: Processes
    folder: RunFolder
    recipe: dict[str, Any]
    provenance: dict[str, Any]
    target: Tokenizer | None = None  # of what a decoder says
    wish: Wish = field(default_factory=Wish)
    shard: bool = False
    evaluate: Callable[[Position, Network], dict[str, Any]] | None = None
    report: Callable[[], None] | None = None  # after each evaluation was recorded
    watch: Callable[[Position, Report, float], None] | None = None  # after each step
    scale: Callable[[str], float] = lambda name: 1.0  # of a parameter's rate, by its name
    enough: Callable[[], bool] = lambda: False  # has it learned all that it will?
    final: Callable[[], Final] | None = None  # what to publish, if not the last step
    begun: float | None = None  # by the monotonic clock: when all that came before began
