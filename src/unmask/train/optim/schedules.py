"""How a run moves: the settings of the optimizer, and the learning rate over the run."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from unmask.system.errors import SettingsError
from unmask.system.settings import Settings

Kind = Literal["linear", "cosine", "constant"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
LENGTHS = ("steps", "minutes", "epochs")


class OptimizerSettings(Settings):
    """AdamW (Loshchilov and Hutter 2019), as BERT used it, or Muon beside it (Jordan 2024)."""

    kind: Literal["adamw", "muon"] = "adamw"  # muon: for the matrices of blocks; adamw for the rest
    rate: Annotated[float, Field(gt=0.0)] = 1e-4
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95  # of muon
    factor: Annotated[float, Field(gt=0.0)] = 1.0  # muon's rate, as a multiple of the other
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-6
    decay: Annotated[float, Field(ge=0.0)] = 0.01  # of matrices and tables, not of the rest
    clip: Annotated[float, Field(gt=0.0)] = 1.0  # the longest gradient that is followed
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # rate of a block / the one above
    head_factor: Annotated[float, Field(gt=0.0)] = 1.0  # rate of heads, as a multiple

    def scale(self, depth: int | None, layers: int) -> float:
        """Compare the rate at a depth of an encoder with the highest; None is outside of it."""
        return self.head_factor if depth is None else self.layer_decay ** (layers - depth)

    def refuse_shares(self) -> None:
        """Refuse to shard weights where the optimizer needs whole matrices."""
        if self.kind == "muon":
            raise SettingsError(
                "--shard: muon turns whole matrices, and every process has a share of them. Leave "
                "--shard out, or set optimizer.kind=adamw."
            )


class Phase(Settings):
    """A part of a pre-training run with sequences of one length."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of the run
    length: Annotated[int, Field(ge=8, le=2**17)] = 128
    batch_tokens: Count | None = None  # of one step, over all processes; None: chosen for the run

    @property
    def rows(self) -> int:
        """Sequences of one step."""
        assert self.batch_tokens is not None, "the batch size has not been chosen yet"
        return max(self.batch_tokens // self.length, 1)


class ScheduleSettings(Settings):
    """How long a run is, in steps, epochs or minutes, and the learning rate on the way."""

    kind: Kind = "linear"
    warmup: Fraction = 0.01  # share of the run until the full rate
    floor: Fraction = 0.0  # share of the rate that is left at the end
    steps: Count | None = None
    minutes: Annotated[float, Field(gt=0.0)] | None = None
    epochs: Annotated[float, Field(gt=0.0)] | None = None
    phases: list[Phase] = Field(default_factory=lambda: [Phase()])

    @model_validator(mode="after")
    def _one_length(self) -> "ScheduleSettings":
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(given) != 1:
            was = " and ".join(given) or "none of them"
            raise ValueError(f"a run has steps, minutes or epochs; need one of them, got {was}.")
        return self

    @model_validator(mode="after")
    def _phases_are_the_run(self) -> "ScheduleSettings":
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"the shares of the phases make {total:g}; need 1. Change one.")
        return self

    def in_steps(self, steps_per_epoch: float) -> "ScheduleSettings":
        """The same length counted in steps, where it is given in epochs."""
        if self.epochs is None:
            return self
        steps = max(round(self.epochs * steps_per_epoch), 1)
        return self.model_copy(update={"steps": steps, "epochs": None})

    def progress(self, step: int, seconds: float) -> float:
        """How much of the run is behind us, from 0 to 1."""
        if self.steps is not None:
            return min(step / self.steps, 1.0)
        assert self.minutes is not None, "epochs are counted in steps when a run begins"
        return min(seconds / (60 * self.minutes), 1.0)

    def seconds_left(self, seconds: float) -> float | None:
        """What is left of a run by the clock; None for a run by steps."""
        return None if self.minutes is None else max(60 * self.minutes - seconds, 0.0)

    def factor(self, progress: float) -> float:
        """What the rate is multiplied with."""
        if progress < self.warmup:
            return progress / self.warmup
        gone = (progress - self.warmup) / max(1.0 - self.warmup, 1e-9)
        left = {
            "linear": 1.0 - gone,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * gone)),
            "constant": 1.0,
        }[self.kind]
        return self.floor + (1.0 - self.floor) * left
