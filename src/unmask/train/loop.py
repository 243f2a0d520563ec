"""Loss -> weights. The only loop: whatever is trained, on one process or many, runs it.

    batches of the step -> losses, gradients -> weights -> metrics -> evaluation -> checkpoint

The state is a step, a cursor into the data and a clock, beside weights and optimizer; everything
random is a function of them. So a run that was stopped anywhere goes on as if it had not been.
"""

import math
import signal
import time
from collections.abc import Sequence

from unmask.system.errors import Stopped, UserError
from unmask.system.malloc import keep_freed_memory
from unmask.train.checkpoints import Checkpointer
from unmask.train.evaluator import Position
from unmask.train.ingredients import Ingredients
from unmask.train.optim.optimizers import average, make_optimizer, set_rate
from unmask.train.optim.precision import choose_precision
from unmask.train.recipe import Recipe
from unmask.train.run_folder import of_kind
from unmask.train.site import Site
from unmask.train.sources import Dealer, Prefetch
from unmask.train.steps import step_for
from unmask.train.steps.base import MicroBatch, StepResult, StepSite, TrainingModule

BEFORE = 0.5  # of a run by the clock may be spent before its first step


class Loop:
    """A run in progress."""

    def __init__(self, given: Ingredients, recipe: Recipe, site: Site, *, shard: bool) -> None:
        keep_freed_memory()
        self.given, self.site, self.processes = given, site, site.processes
        self.settings, self.optimized = recipe.loop, recipe.optimizer
        self.schedule = recipe.schedule.in_steps(given.source.steps_per_epoch)
        self.evaluator, self.folder, self.position = given.evaluator, site.folder, Position()
        self.precision = choose_precision(recipe.loop.precision, self.processes.device)
        network, objective = given.network.train(), given.objective.train()
        for companion in given.companions.values():
            companion.to(self.processes.device).eval().requires_grad_(False)
        inner = TrainingModule(network, objective, given.companions)
        inner.refuse_scalars()
        if self.settings.compile:
            inner.compile()  # inside of what exchanges gradients, which must be recognised
        self.module = self.processes.wrap(inner, list(network.blocks()), shard=shard)
        self.optimizer = make_optimizer(inner, recipe.optimizer, layers=network.config.layers)
        self.step = step_for(objective, shard=shard)
        self.keeper = Checkpointer(given, recipe, site, self.optimizer, shard=shard)
        self.saved_step, self.saved_at = -1, time.monotonic()
        self.deal: Dealer | Prefetch = Dealer(given.source, self.processes)
        ahead, on_gpu = self.settings.ahead, self.processes.device.type != "cpu"
        if ahead == "on" or (ahead == "auto" and on_gpu):
            self.deal = Prefetch(self.deal, self._progress_at)

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        found = self.keeper.restore()
        self.folder.cut_back(found.step if found else -1)
        self.processes.wait()
        self.evaluator.restore(of_kind(self.folder.metrics(), "eval"))
        if found is not None:
            self.position, self.saved_step = found, found.step
            self.folder.say(f"resuming from step {found.step}")

    def run(self) -> None:
        """Train to the end; a signal ends it between two steps, with everything saved."""
        position = self.position
        if not position.step:
            self._count_what_came_before()
            self._evaluate()
            position.before = position.seconds
        while self.progress < 1.0 and not self.evaluator.stop():
            self._stop_if_asked()
            begun, before = time.monotonic(), self.progress
            report = self._step()
            self._clock(begun)
            if report is None:
                continue
            if report.taken and self.settings.average:
                weight = min((self.progress - before) / self.settings.average, 1.0)
                for module in (self.given.network, self.given.objective):
                    average(module, self.optimizer, weight)
            self._log(report, time.monotonic() - begun)
            if self._slot() > position.slot:  # at most once a step, however many were due
                self._evaluate()
            if self._save_due():
                self.save()
        if position.evaluated != position.step:
            self._evaluate()
        self.save()
        self.keeper.publish(position)

    @property
    def progress(self) -> float:
        """How much of the run is behind us."""
        return self.schedule.progress(self.position.step, self.position.seconds)

    def _progress_at(self, step: int) -> float:
        """How far the run will be at a step, as far as it can be known: a clock stands still."""
        return self.schedule.progress(step, self.position.seconds)

    def save(self) -> None:
        """Publish a checkpoint, unless this step's is there."""
        if self.saved_step == self.position.step:
            return
        begun = time.monotonic()
        self.keeper.save(self.position)
        self.evaluator.saved()
        self._clock(begun)
        self.saved_step, self.saved_at = self.position.step, time.monotonic()

    def _step(self) -> StepResult | None:
        """One step; None if it was given up on a wish to stop, with nothing changed."""
        position = self.position
        dealt = self.deal.take(position.cursor, position.step, self.progress)
        set_rate(self.optimizer, self.optimized.rate * self.schedule.factor(self._next()))
        site = StepSite(
            self.processes, self.precision, self.optimized.clip, dealt.rounds, self._asked_to_stop
        )
        report = self.step(self.module, dealt.pieces, site)
        if report is None:
            return None
        if report.taken:
            self.optimizer.step()
        position.cursor, position.step = dealt.cursor, position.step + 1
        position.tokens += report.tokens
        if report.taken:
            position.bad = 0
        else:
            self._leave_out(report, dealt.pieces)
        return report

    def _next(self) -> float:
        """The progress that decides the rate: from the first step, which has one above nothing."""
        schedule, position = self.schedule, self.position
        if schedule.steps is not None:
            return (position.step + 0.5) / schedule.steps
        begun = schedule.progress(0, position.before)
        gone = (self.progress - begun) / max(1.0 - begun, 1e-9)
        return max(gone, 1e-3 * schedule.warmup)

    def _leave_out(self, report: StepResult, pieces: Sequence[MicroBatch]) -> None:
        """A step that was not finite: say all that helps to find out why, and stop in the end."""
        position, settings = self.position, self.settings
        position.bad += 1
        numbers = [int(n) for p in pieces if p.batch.number is not None for n in p.batch.number[:3]]
        said = (
            f"step {position.step}: the loss or the gradient is not finite ("
            f"{', '.join(f'{name} {value:.4g}' for name, value in report.losses.items())}, norm "
            f"{report.norm:.4g}, rate {self.optimizer.param_groups[0]['lr']:.3g}, first examples "
            f"{numbers[:3]}); the step was skipped and the weights are as before"
        )
        self.folder.say(f"warning: {said}")
        if position.bad > settings.bad_steps:
            last = f"step {self.saved_step} in {self.folder.checkpoints}"
            raise UserError(
                f"{said}. That is {position.bad} such steps in a row, more than loop.bad_steps = "
                f"{settings.bad_steps}. The last good checkpoint is "
                f"{last if self.saved_step >= 0 else 'not written yet'}. Begin again with a lower "
                "rate."
            )

    def _clock(self, begun: float) -> None:
        """Add the time since `begun`; where minutes count, every process takes the first one's."""
        passed = time.monotonic() - begun
        if self.schedule.minutes is not None:
            passed = self.processes.from_first([passed])[0]
        self.position.seconds += passed

    def _log(self, report: StepResult, seconds: float) -> None:
        position = self.position
        if position.step % self.settings.log_steps == 0 or self.progress >= 1.0:
            measured = {**report.losses, "loss": report.loss, "norm": report.norm}
            self.folder.record(
                {
                    "kind": "train",
                    "step": position.step,
                    # JSON has no NaN and no infinity.
                    **{name: v if math.isfinite(v) else None for name, v in measured.items()},
                    "rate": self.optimizer.param_groups[0]["lr"],
                    "tokens": position.tokens,
                    "seconds": round(position.seconds, 3),
                    "tokens_a_second": round(report.tokens / max(seconds, 1e-9), 1),
                }
            )
        self.evaluator.stepped(position, report)
        if self.processes.first:
            steps = self.schedule.steps or round(position.step / max(self.progress, 1e-9))
            left = self.schedule.seconds_left(position.seconds)
            note = f"loss {report.loss:.3f}, {self.progress:.0%}"
            self.site.console.progress(
                "training", "steps", position.step, steps, note=note, seconds_left=left
            )

    def _count_what_came_before(self) -> None:
        """Count setting up as part of the minutes, up to a share of them."""
        minutes, now = self.schedule.minutes, time.monotonic()
        if minutes is None:
            return
        most = 60 * minutes * BEFORE
        if now - self.site.started > most:
            self.folder.say(
                f"setting up took {(now - self.site.started) / 60:.1f} of {minutes:g} minutes; the "
                f"steps have {minutes * (1 - BEFORE):.1f} minutes all the same"
            )
        self._clock(max(self.site.started, now - most))

    def _slot(self) -> int:
        """Of the evaluations that are spread over the run, the last that is due."""
        return int(self.progress * self.evaluator.times)

    def _evaluate(self) -> None:
        if not self.evaluator.times:
            return
        begun, self.position.slot = time.monotonic(), self._slot()
        network, objective = self.keeper.trained()
        device = self.processes.device
        network, objective = network.to(device).eval(), objective.to(device).eval()
        found = self.evaluator.evaluate(network, objective, self.position)
        self.given.network.train()
        self.given.objective.train()
        self._clock(begun)
        self.position.evaluated = self.position.step
        self.folder.record({"kind": "eval", "step": self.position.step, **found})
        self.evaluator.report()

    def _asked_to_stop(self) -> bool:
        """Has a wish come to any of the processes?"""
        return self.processes.total([float(self.site.stop.number > 0)])[0] > 0

    def _stop_if_asked(self) -> None:
        """Grant a wish to stop."""
        number, step = self.site.stop.number, self.position.step
        if not self._asked_to_stop():
            return
        if step:
            self.save()
        self.folder.say(f"stopped after step {step}; the same command with --resume continues")
        raise Stopped(number or signal.SIGTERM)

    def _save_due(self) -> bool:
        settings, step = self.settings, self.position.step
        by_step = settings.save_steps is not None and step % settings.save_steps == 0
        late = time.monotonic() - self.saved_at > 60 * settings.save_minutes
        return by_step or self.processes.agree(late)
