"""Loss -> weights. The only loop: whatever is trained, on one process or many, runs it.

    batches of the step -> losses, gradients -> weights -> metrics -> evaluation -> checkpoint

The state is a step, a cursor into the data and a clock, beside weights and optimizer; everything
random is a function of them. So a run that was stopped anywhere goes on as if it had not been.
"""

import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint.folder import save_folder
from unmask.checkpoint.state import State, newest_state, save_state
from unmask.checkpoint.weights import empty
from unmask.errors import Stopped, UserError
from unmask.model.network import Network
from unmask.text.tokenizer import Tokenizer
from unmask.train.ahead import Ahead, Source
from unmask.train.distributed import Processes, like, whole
from unmask.train.memory import keep_freed_memory
from unmask.train.optim import average, make_optimizer, mean, read_moments, set_rate, write_moments
from unmask.train.recipe import TrainSettings
from unmask.train.run import MODEL, RunFolder
from unmask.train.schedule import OptimizerSettings, ScheduleSettings
from unmask.train.signals import Wish
from unmask.train.step import Piece, Precision, Report, Trainee, take_step


@dataclass
class Position:
    """How far a run is."""

    step: int = 0
    tokens: int = 0  # real ones, so far
    seconds: float = 0.0  # of training, so far
    bad: int = 0  # steps in a row that were left out, as something was not finite
    evaluated: int = -1  # the step of the last evaluation
    cursor: dict[str, int] = field(default_factory=dict)


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
    wish: Wish = field(default_factory=Wish)
    shard: bool = False
    evaluate: Callable[[Position, Network], dict[str, Any]] | None = None
    report: Callable[[], None] | None = None  # after each evaluation was recorded
    watch: Callable[[Position, Report, float], None] | None = None  # after each step


class Loop:
    """A run in progress."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.position = Position()
        keep_freed_memory()
        self.precision = choose_precision(course.settings.precision, course.processes.device)
        course.network.train()
        blocks = list(course.network.encoder.blocks)
        self.module = course.processes.wrap(course.trainee, blocks, shard=course.shard)
        self.optimizer = make_optimizer(course.trainee, course.optimizer, shard=course.shard)
        self.saved_step, self.saved_at = -1, time.monotonic()
        self.source = course.source
        if _wanted_ahead(course.settings.ahead, course.processes.device):
            self.source = Ahead(course.source, self._progress_at)
        if course.settings.compile:
            self.module = torch.compile(self.module)  # type: ignore[assignment]

    def resume(self) -> bool:
        """Go on from the newest checkpoint; False if there is none yet."""
        state = newest_state(self.course.folder.checkpoints, self.course.folder.say)
        found = -1.0 if state is None else float(state.facts["step"])
        self.course.processes.refuse_difference(found, "the newest checkpoint that each finds")
        if state is None:
            self.course.folder.cut_back(-1)
            return False
        self._restore(state)
        self.course.folder.cut_back(self.position.step)
        self.course.folder.say(f"going on from step {self.position.step}")
        return True

    def run(self) -> None:
        """Train to the end; a signal ends it between two steps, with everything saved."""
        position = self.position
        if position.evaluated < 0:
            self._evaluate()
        while self.progress < 1.0:
            self._stop_if_asked()
            begun, before = time.monotonic(), self.progress
            report = self._step()
            self._clock(begun)
            if report is None:
                continue
            if report.taken and self.course.settings.average:
                self._average(self.progress - before)
            self._log(report, time.monotonic() - begun)
            if self._evaluation_due(before):
                self._evaluate()
            if self._save_due():
                self.save()
        if position.evaluated != position.step:
            self._evaluate()
        self.save()
        self._publish()

    @property
    def progress(self) -> float:
        """How much of the run is behind us."""
        return self.course.schedule.progress(self.position.step, self.position.seconds)

    def _progress_at(self, step: int) -> float:
        """How far the run will be at a step, as far as it can be known: a clock stands still."""
        return self.course.schedule.progress(step, self.position.seconds)

    def save(self) -> None:
        """Publish a checkpoint, unless this step's is there."""
        course, position = self.course, self.position
        if self.saved_step == position.step:
            return
        begun = time.monotonic()
        network = self._whole_network(averaged=False)
        moments = {}
        for name, tensor in read_moments(course.network, self.optimizer).items():
            full = whole(tensor)  # all must ask, and only who writes keeps it
            if course.processes.first:
                moments[name] = full
        if course.processes.first:
            save_state(
                course.folder.checkpoints,
                network,
                course.tokenizer,
                moments,
                asdict(position),
                step=position.step,
                keep=course.settings.keep,
                recipe=course.recipe,
                provenance={**course.provenance, "step": position.step},
            )
        course.processes.wait()
        self._clock(begun)
        self.saved_step, self.saved_at = position.step, time.monotonic()

    def _step(self) -> Report | None:
        """One step; None if it was given up on a wish to stop, with nothing changed."""
        course, position = self.course, self.position
        pieces, cursor = self.source.pieces(position.cursor, position.step, self.progress)
        set_rate(self.optimizer, course.optimizer.rate * course.schedule.factor(self._next()))
        report = take_step(
            self.module,
            pieces,
            self.optimizer,
            course.processes,
            clip=course.optimizer.clip,
            precision=self.precision,
            give_up=self._asked_to_stop,
        )
        if report is None:
            return None
        position.cursor, position.step = cursor, position.step + 1
        position.tokens += report.tokens
        if report.taken:
            position.bad = 0
        else:
            self._leave_out(report, pieces)
        return report

    def _average(self, share: float) -> None:
        """Let weights that were reached in a share of the run count in the running mean."""
        weight = min(share / self.course.settings.average, 1.0)
        average(self.course.network, self.optimizer, weight)

    def _next(self) -> float:
        """The progress that decides the rate: with steps, the first has a rate above nothing."""
        steps = self.course.schedule.steps
        if steps is None:
            return max(self.progress, 1e-3 * self.course.schedule.warmup)
        return (self.position.step + 0.5) / steps

    def _leave_out(self, report: Report, pieces: Sequence[Piece]) -> None:
        """A step that was not finite: say all that helps to find out why, and stop in the end."""
        position, settings = self.position, self.course.settings
        position.bad += 1
        numbers = [int(n) for p in pieces if p.batch.number is not None for n in p.batch.number[:3]]
        said = (
            f"step {position.step}: the loss or the gradient is not finite ("
            f"{', '.join(f'{name} {value:.4g}' for name, value in report.losses.items())}, norm "
            f"{report.norm:.4g}, rate {self.optimizer.param_groups[0]['lr']:.3g}, first examples "
            f"{numbers[:3]}); the step was left out and the weights are as before"
        )
        self.course.folder.say(f"warning: {said}")
        if position.bad > settings.bad_steps:
            last = f"step {self.saved_step} in {self.course.folder.checkpoints}"
            raise UserError(
                f"{said}. That is {position.bad} such steps in a row, more than train.bad_steps = "
                f"{settings.bad_steps}. The last good checkpoint is "
                f"{last if self.saved_step >= 0 else 'not written yet'}. Begin again with a lower "
                "rate."
            )

    def _clock(self, begun: float) -> None:
        """Add the time of a step; every process takes the first one's."""
        passed = time.monotonic() - begun if self.course.processes.first else 0.0
        if self.course.schedule.minutes is not None:
            passed = self.course.processes.total([passed])[0]
        self.position.seconds += passed

    def _log(self, report: Report, seconds: float) -> None:
        course, position = self.course, self.position
        if position.step % course.settings.log_steps == 0 or self.progress >= 1.0:
            course.folder.record(
                {
                    "kind": "train",
                    "step": position.step,
                    **{name: _finite(value) for name, value in report.losses.items()},
                    "loss": _finite(report.loss),
                    "norm": _finite(report.norm),
                    "rate": self.optimizer.param_groups[0]["lr"],
                    "tokens": position.tokens,
                    "seconds": round(position.seconds, 3),
                    "tokens_a_second": round(report.tokens / max(seconds, 1e-9), 1),
                }
            )
        if course.watch:
            course.watch(position, report, self.progress)

    def _evaluation_due(self, before: float) -> bool:
        count = self.course.settings.evaluations
        return count > 0 and int(before * count) != int(self.progress * count)

    def _evaluate(self) -> None:
        if self.course.evaluate is None or not self.course.settings.evaluations:
            return
        begun = time.monotonic()
        network = self._whole_network().to(self.course.processes.device).eval()
        found = self.course.evaluate(self.position, network)
        self.course.network.train()
        self._clock(begun)
        self.position.evaluated = self.position.step
        self.course.folder.record({"kind": "eval", "step": self.position.step, **found})
        if self.course.report:
            self.course.report()

    def _asked_to_stop(self) -> bool:
        """Has a wish come to any of the processes?"""
        return self.course.processes.total([float(self.course.wish.number > 0)])[0] > 0

    def _stop_if_asked(self) -> None:
        """Grant a wish to stop."""
        number, step = self.course.wish.number, self.position.step
        if not self._asked_to_stop():
            return
        if step:
            self.save()
        self.course.folder.say(
            f"stopped after step {step}; go on with the same command and --resume"
        )
        raise Stopped(number or signal.SIGTERM)

    def _save_due(self) -> bool:
        settings, step = self.course.settings, self.position.step
        by_step = settings.save_steps is not None and step % settings.save_steps == 0
        late = time.monotonic() - self.saved_at > 60 * settings.save_minutes
        first = self.course.processes.first
        return by_step or self.course.processes.total([float(late and first)])[0] > 0

    def _whole_network(self, *, averaged: bool = True) -> Network:
        """The network with all its weights in this process, or with their running means."""
        network = self.course.network
        averaged = averaged and self.course.settings.average > 0
        if not self.course.shard and not averaged:
            return network
        plain = empty(network.config, network.heads)
        state: dict[str, Tensor] = dict(network.state_dict())
        if averaged:
            state |= {n: mean(p, self.optimizer) for n, p in network.named_parameters()}
        plain.load_state_dict({n: whole(t.detach()).cpu() for n, t in state.items()}, assign=True)
        return plain

    def _restore(self, state: State) -> None:
        network = self.course.network
        stored = state.network.state_dict()
        with torch.no_grad():
            for name, tensor in network.state_dict().items():
                tensor.copy_(like(stored[name], tensor))
        parameters = dict(network.named_parameters())
        moments = {
            key: like(value, parameters[key.partition("/")[2]])
            for key, value in state.optimizer.items()
        }
        write_moments(network, self.optimizer, moments)
        self.position = Position(**state.facts)
        self.saved_step = self.position.step

    def _publish(self) -> None:
        """Write the model of a finished run."""
        course = self.course
        network = self._whole_network()
        target = course.folder.path / MODEL
        if course.processes.first and not target.exists():
            save_folder(
                target,
                network,
                course.tokenizer,
                recipe=course.recipe,
                provenance={**course.provenance, "step": self.position.step},
            )
        course.processes.wait()


def _finite(value: float) -> float | None:
    """A number that JSON has; None for those it has not."""
    return value if math.isfinite(value) else None


def _wanted_ahead(wanted: str, device: torch.device) -> bool:
    return device.type != "cpu" if wanted == "auto" else wanted == "on"


def choose_precision(wanted: str, device: torch.device) -> Precision:
    """bf16 where the hardware has it, unless told otherwise."""
    if wanted != "auto":
        return "bf16" if wanted == "bf16" else "fp32"
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    has = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return "bf16" if has() else "fp32"
