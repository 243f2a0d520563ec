"""How a run moves: the settings of the optimizer, and the rate over the course of the run."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from unmask.errors import SettingsError
from unmask.settings import Settings

Kind = Literal["linear", "cosine", "constant"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


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

    def refuse_shares(self) -> None:
        """Refuse weights of which every process has a share, where that cannot work."""
        if self.kind == "muon":
            raise SettingsError(
                "--shard: muon turns whole matrices, and every process has a share of them. Leave "
                "--shard out, or set optimizer.kind=adamw."
            )


class ScheduleSettings(Settings):
    """How long a run is, in steps or by the clock, and the rate on the way."""

    kind: Kind = "linear"
    warmup: Fraction = 0.01  # share of the run until the full rate
    floor: Fraction = 0.0  # share of the rate that is left at the end
    steps: Annotated[int, Field(ge=1)] | None = None
    minutes: Annotated[float, Field(gt=0.0)] | None = None

    @model_validator(mode="after")
    def _one_length(self) -> "ScheduleSettings":
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("a run has steps or minutes; give one of the two.")
        return self

    def progress(self, step: int, seconds: float) -> float:
        """How much of the run is behind us, from 0 to 1."""
        if self.steps is not None:
            return min(step / self.steps, 1.0)
        assert self.minutes is not None
        return min(seconds / (60 * self.minutes), 1.0)

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
