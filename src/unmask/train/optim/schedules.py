"""Settings of the optimizer, and the learning rate: a function of progress, set for each step."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from unmask.system.errors import SettingsError
from unmask.system.settings import Settings

if TYPE_CHECKING:  # recipes are read without torch
    from torch.optim import Optimizer

Kind = Literal["linear", "cosine", "constant"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
LENGTHS = ("steps", "minutes", "epochs")


class OptimizerSettings(Settings):
    """AdamW (Loshchilov and Hutter 2019) as in BERT, or Muon beside it (Jordan et al. 2024)."""

    kind: Literal["adamw", "muon"] = "adamw"  # muon: matrices of blocks; the rest has AdamW
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-4
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95  # Muon's
    muon_factor: Annotated[float, Field(gt=0.0)] = 1.0  # Muon's learning rate / AdamW's
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01  # of matrices and embeddings only
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0  # maximum gradient norm
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # learning rate of a layer / next
    head_factor: Annotated[float, Field(gt=0.0)] = 1.0  # learning rate of heads / peak

    def scale(self, depth: int | None, layers: int) -> float:
        """Return the factor on the learning rate at a depth of the encoder; None is outside it."""
        return self.head_factor if depth is None else self.layer_decay ** (layers - depth)

    def refuse_sharding(self) -> None:
        """Refuse sharded weights if the optimizer needs whole matrices."""
        if self.kind == "muon":
            raise SettingsError(
                "--shard: Muon orthogonalises whole matrices, but with sharded weights each "
                "process has only a part of each. Remove --shard, or set optimizer.kind=adamw."
            )


class Phase(Settings):
    """A phase of pre-training, with sequences of one length."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # fraction of the run
    length: Annotated[int, Field(ge=8, le=2**17)] = 128
    batch_tokens: Count | None = None  # over all processes; None: chosen for the run

    @property
    def rows(self) -> int:
        """Number of sequences in a step."""
        assert self.batch_tokens is not None, "the batch size has not been chosen yet"
        return max(self.batch_tokens // self.length, 1)


class ScheduleSettings(Settings):
    """Length of a run, in steps, epochs or minutes, and the learning rate over it."""

    kind: Kind = "linear"
    warmup: Fraction = 0.01  # fraction of the run
    floor: Fraction = 0.0  # learning rate at the end, as a fraction of the peak
    steps: Count | None = None
    minutes: Annotated[float, Field(gt=0.0)] | None = None
    epochs: Annotated[float, Field(gt=0.0)] | None = None
    phases: list[Phase] = Field(default_factory=lambda: [Phase()])

    @model_validator(mode="after")
    def _check_length(self) -> "ScheduleSettings":
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) != 1:
            listing = " and ".join(lengths) or "none of them"
            raise ValueError(
                f"a run has steps, minutes or epochs; need one of them, got {listing}."
            )
        return self

    @model_validator(mode="after")
    def _check_shares(self) -> "ScheduleSettings":
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1.0) > 1e-6:
            raise ValueError(
                f"the shares of the phases add up to {total:g}; they must add up to 1."
            )
        return self

    def in_steps(self, steps_per_epoch: float) -> "ScheduleSettings":
        """Convert a length in epochs to one in steps."""
        if self.epochs is None:
            return self
        steps = max(round(self.epochs * steps_per_epoch), 1)
        return self.model_copy(update={"steps": steps, "epochs": None})

    def progress(self, step: int, seconds: float) -> float:
        """Fraction of the run that is done, from 0 to 1, by steps or by the clock."""
        if self.steps is not None:
            return min(step / self.steps, 1.0)
        assert self.minutes is not None, "epochs are converted to steps before a run starts"
        return min(seconds / (60 * self.minutes), 1.0)

    def seconds_left(self, seconds: float) -> float | None:
        """Seconds left of a time budget; None for a run counted in steps."""
        return None if self.minutes is None else max(60 * self.minutes - seconds, 0.0)

    def factor_at(self, step: int, seconds: float, setup_seconds: float) -> float:
        """Fraction of the peak learning rate at a step, above zero at the first one.

        A time budget counts `seconds`, of which `setup_seconds` passed before the first step.
        """
        if self.steps is not None:
            # The middle of the step, so that no step has a learning rate of zero.
            return self.factor((step + 0.5) / self.steps)
        # Counted from the first step, so that a slow set-up does not swallow the warm-up.
        start = self.progress(0, setup_seconds)
        elapsed = (self.progress(step, seconds) - start) / max(1.0 - start, 1e-9)
        return self.factor(max(elapsed, 1e-3 * self.warmup))

    def factor(self, progress: float) -> float:
        """Fraction of the peak learning rate at this progress: warm-up, then decay to the floor."""
        if progress < self.warmup:
            return progress / self.warmup
        # The maximum guards a run that is all warm-up and ends exactly at progress 1.
        decay_progress = (progress - self.warmup) / max(1.0 - self.warmup, 1e-9)
        remaining = {
            "linear": 1.0 - decay_progress,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * decay_progress)),
            "constant": 1.0,
        }[self.kind]
        return self.floor + (1.0 - self.floor) * remaining


def set_learning_rate(optimizer: "Optimizer", learning_rate: float) -> None:
    """Set the learning rate of a step, times the scale of each parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("scale", 1.0)
