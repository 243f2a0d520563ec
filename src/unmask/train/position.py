"""How far a run is."""

from dataclasses import dataclass, field


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
