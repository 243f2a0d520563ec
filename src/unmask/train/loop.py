"""Batches -> gradients -> weights: the one training loop of every job, on one process or many.

    micro-batches -> losses and gradients -> weights -> metrics -> evaluation -> checkpoint

Beside the weights and the optimizer's tensors, the state of a run is a step, a cursor into the data
and a clock (`Position`). All randomness is a function of the seed and of that state, so a run that
was stopped at any point resumes as if it had not been.
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
from unmask.train.optim.optimizers import average, make_optimizer
from unmask.train.optim.precision import choose_precision
from unmask.train.optim.schedules import set_rate
from unmask.train.recipe import Recipe
from unmask.train.run_folder import of_kind
from unmask.train.site import Site
from unmask.train.sources import Dealer, Prefetch
from unmask.train.steps import step_for
from unmask.train.steps.base import MicroBatch, StepResult, StepSite, TrainingModule

SETUP_SHARE = 0.5  # set-up may use up to this fraction of a time budget


class Loop:
    """A run in progress."""

    def __init__(self, given: Ingredients, recipe: Recipe, site: Site, *, shard: bool) -> None:
        # Otherwise glibc returns the memory of each step and faults it in again for the next.
        keep_freed_memory()
        self.given, self.site, self.processes = given, site, site.processes
        self.settings, self.optimized = recipe.loop, recipe.optimizer
        # Only the source knows how many steps an epoch has.
        self.schedule = recipe.schedule.in_steps(given.source.steps_per_epoch)
        self.evaluator, self.folder, self.position = given.evaluator, site.folder, Position()
        self.precision = choose_precision(recipe.loop.precision, self.processes.device)
        network, objective = given.network.train(), given.objective.train()
        for companion in given.companions.values():
            companion.to(self.processes.device).eval().requires_grad_(False)
        inner = TrainingModule(network, objective, given.companions)
        inner.refuse_scalars()
        if self.settings.compile:
            inner.compile()  # before wrapping: `syncing` recognises DDP and FSDP by their class
        self.module = self.processes.wrap(inner, list(network.blocks()), shard=shard)
        # After wrapping, because FSDP replaces the parameters by their shards.
        self.optimizer = make_optimizer(inner, recipe.optimizer, layers=network.config.layers)
        self.step = step_for(objective, shard=shard)
        self.keeper = Checkpointer(given, recipe, site, self.optimizer, shard=shard)
        self.saved_step, self.saved_at = -1, time.monotonic()
        self.deal: Dealer | Prefetch = Dealer(given.source, self.processes)
        # A thread pays where a GPU computes the step; on a CPU, batches were 3 ms of 100 (tiny).
        prefetch, on_gpu = self.settings.prefetch, self.processes.device.type != "cpu"
        if prefetch == "on" or (prefetch == "auto" and on_gpu):
            self.deal = Prefetch(self.deal, self._progress_at)

    def resume(self) -> None:
        """Restore the newest checkpoint, if there is one."""
        found = self.keeper.restore()
        # Steps after the checkpoint are taken again and would be recorded twice.
        self.folder.cut_back(found.step if found else -1)
        self.processes.wait()  # every process reads the metrics that the first one has rewritten
        self.evaluator.restore(of_kind(self.folder.metrics(), "eval"))
        if found is not None:
            self.position, self.saved_step = found, found.step
            self.folder.say(f"resuming from step {found.step}")

    def run(self) -> None:
        """Train to the end; on a stop request, save and raise `Stopped` between two steps."""
        position = self.position
        if not position.step:
            self._count_what_came_before()
            self._evaluate()
            # Warm-up by the clock starts at the first step, however long all this took.
            position.before = position.seconds
        while self.progress < 1.0 and not self.evaluator.stop():
            self._stop_if_asked()
            begun, before = time.monotonic(), self.progress
            report = self._step()
            self._clock(begun)
            if report is None:
                continue  # ended early by a stop request, which the next round acts on
            if report.taken and self.settings.weight_average:
                # A step weighs as much as its fraction of the run, so the mean spans the same
                # fraction whether steps are many or few.
                weight = min((self.progress - before) / self.settings.weight_average, 1.0)
                for module in (self.given.network, self.given.objective):
                    average(module, self.optimizer, weight)
            self._log(report, time.monotonic() - begun)
            if self._slot() > position.slot:  # one evaluation stands for all that became due
                self._evaluate()
            if self._save_due():
                self.save()
        if position.evaluated != position.step:
            self._evaluate()  # the last step may be the best one
        self.save()
        self.keeper.publish(position)

    @property
    def progress(self) -> float:
        """Fraction of the run that is done, from 0 to 1."""
        return self.schedule.progress(self.position.step, self.position.seconds)

    def _progress_at(self, step: int) -> float:
        """Predict the progress at a later step; under a time budget, return the present one."""
        return self.schedule.progress(step, self.position.seconds)

    def save(self) -> None:
        """Write a checkpoint, unless this step already has one."""
        if self.saved_step == self.position.step:
            return
        begun = time.monotonic()
        self.keeper.save(self.position)
        self.evaluator.saved()  # may delete models that only older checkpoints needed
        self._clock(begun)
        self.saved_step, self.saved_at = self.position.step, time.monotonic()

    def _step(self) -> StepResult | None:
        """Take one step; return None if a stop request ended it early, with nothing changed."""
        position = self.position
        dealt = self.deal.take(position.cursor, position.step, self.progress)
        set_rate(self.optimizer, self.optimized.learning_rate * self.schedule.factor(self._next()))
        site = StepSite(
            self.processes,
            self.precision,
            self.optimized.max_grad_norm,
            dealt.rounds,
            self._asked_to_stop,
        )
        report = self.step(self.module, dealt.pieces, site)
        if report is None:
            return None
        if report.taken:
            self.optimizer.step()
        # A skipped step counts too: repeated, it would compute the very same numbers.
        position.cursor, position.step = dealt.cursor, position.step + 1
        position.tokens += report.tokens
        if report.taken:
            position.bad = 0
        else:
            self._leave_out(report, dealt.pieces)
        return report

    def _next(self) -> float:
        """Return the progress that decides the learning rate, above zero at the first step."""
        schedule, position = self.schedule, self.position
        if schedule.steps is not None:
            # The middle of the step: neither the first nor the last one has a rate of zero.
            return (position.step + 0.5) / schedule.steps
        # Counted from the first step, so that a slow set-up does not swallow the warm-up.
        begun = schedule.progress(0, position.before)
        gone = (self.progress - begun) / max(1.0 - begun, 1e-9)
        return max(gone, 1e-3 * schedule.warmup)

    def _leave_out(self, report: StepResult, pieces: Sequence[MicroBatch]) -> None:
        """Report a skipped step and what may explain it; raise after too many in a row."""
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
        if position.bad > settings.max_skipped_steps:
            last = f"step {self.saved_step} in {self.folder.checkpoints}"
            raise UserError(
                f"{said}. That is {position.bad} such steps in a row, more than "
                f"loop.max_skipped_steps = {settings.max_skipped_steps}. The last good checkpoint "
                f"is {last if self.saved_step >= 0 else 'not written yet'}. Start over with a "
                "lower learning rate."
            )

    def _clock(self, begun: float) -> None:
        """Add the time since `begun` to the clock of the run."""
        passed = time.monotonic() - begun
        if self.schedule.minutes is not None:
            # The clock decides the learning rate and the end, so all processes share one.
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
                    # JSON has neither NaN nor infinity.
                    **{name: v if math.isfinite(v) else None for name, v in measured.items()},
                    "rate": self.optimizer.param_groups[0]["lr"],
                    "tokens": position.tokens,
                    "seconds": round(position.seconds, 3),
                    "tokens_a_second": round(report.tokens / max(seconds, 1e-9), 1),
                }
            )
        self.evaluator.stepped(position, report)
        if self.processes.first:
            # Under a time budget, the number of steps is extrapolated.
            steps = self.schedule.steps or round(position.step / max(self.progress, 1e-9))
            left = self.schedule.seconds_left(position.seconds)
            note = f"loss {report.loss:.3f}, {self.progress:.0%}"
            self.site.console.progress(
                "training", "steps", position.step, steps, note=note, seconds_left=left
            )

    def _count_what_came_before(self) -> None:
        """Count set-up as part of a time budget, up to the fraction `BEFORE` of it."""
        minutes, now = self.schedule.minutes, time.monotonic()
        if minutes is None:
            return
        most = 60 * minutes * SETUP_SHARE
        if now - self.site.started > most:
            self.folder.say(
                f"setting up took {(now - self.site.started) / 60:.1f} of {minutes:g} minutes; the "
                f"steps have {minutes * (1 - SETUP_SHARE):.1f} minutes all the same"
            )
        self._clock(max(self.site.started, now - most))

    def _slot(self) -> int:
        """Number of the last evaluation that is due, of those spread over the run."""
        return int(self.progress * self.evaluator.times)

    def _evaluate(self) -> None:
        if not self.evaluator.times:
            return
        # The slot is fixed first: what falls due during this evaluation is made up for later.
        begun, self.position.slot = time.monotonic(), self._slot()
        network, objective = self.keeper.trained()
        device = self.processes.device
        network, objective = network.to(device).eval(), objective.to(device).eval()
        found = self.evaluator.evaluate(network, objective, self.position)
        # Unless weights are sharded or averaged, the modules just evaluated are those in training.
        self.given.network.train()
        self.given.objective.train()
        self._clock(begun)
        self.position.evaluated = self.position.step
        self.folder.record({"kind": "eval", "step": self.position.step, **found})
        self.evaluator.report()

    def _asked_to_stop(self) -> bool:
        """Whether any process has received a stop request; a collective call."""
        # A signal may reach one process only, and all must stop at the same poll.
        return self.processes.total([float(self.site.stop.number > 0)])[0] > 0

    def _stop_if_asked(self) -> None:
        """Save and raise `Stopped`, if any process has received a stop request."""
        number, step = self.site.stop.number, self.position.step
        if not self._asked_to_stop():
            return
        if step:
            self.save()
        self.folder.say(f"stopped after step {step}; the same command with --resume continues")
        # A process that got no signal itself stops as if by SIGTERM.
        raise Stopped(number or signal.SIGTERM)

    def _save_due(self) -> bool:
        settings, step = self.settings, self.position.step
        by_step = settings.save_steps is not None and step % settings.save_steps == 0
        late = time.monotonic() - self.saved_at > 60 * settings.save_minutes
        # Clocks differ, so the first process decides. `by_step` is the same on all of them, so
        # either all or none get to the collective `agree`.
        return by_step or self.processes.agree(late)
