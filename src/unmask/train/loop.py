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

from unmask.model.kernels.malloc import keep_freed_memory
from unmask.system.errors import Stopped, UserError
from unmask.train.checkpoints import Checkpointer
from unmask.train.evaluator import Position
from unmask.train.ingredients import Ingredients
from unmask.train.optim.optimizers import average, make_optimizer
from unmask.train.optim.precision import choose_precision
from unmask.train.optim.schedules import set_learning_rate
from unmask.train.recipe import Recipe
from unmask.train.run_folder import of_kind
from unmask.train.site import Site
from unmask.train.sources import Dealer, Prefetch
from unmask.train.steps import step_for
from unmask.train.steps.base import MicroBatch, StepResult, StepSite, TrainingModule

SETUP_SHARE = 0.5  # set-up may use up to this fraction of a time budget


class Loop:
    """A run in progress."""

    def __init__(
        self, ingredients: Ingredients, recipe: Recipe, site: Site, *, shard: bool
    ) -> None:
        # Otherwise glibc returns the memory of each step and faults it in again for the next.
        keep_freed_memory()
        self.ingredients, self.site, self.processes = ingredients, site, site.processes
        self.settings, self.optimizer_settings = recipe.loop, recipe.optimizer
        # Only the source knows how many steps an epoch has.
        self.schedule = recipe.schedule.in_steps(ingredients.source.steps_per_epoch)
        self.evaluator, self.folder, self.position = ingredients.evaluator, site.folder, Position()
        self.precision = choose_precision(recipe.loop.precision, self.processes.device)
        network, objective = ingredients.network.train(), ingredients.objective.train()
        for companion in ingredients.companions.values():
            companion.to(self.processes.device).eval().requires_grad_(False)
        inner = TrainingModule(network, objective, ingredients.companions)
        inner.refuse_scalars()
        if self.settings.compile:
            inner.compile()  # before wrapping: `syncing` recognises DDP and FSDP by their class
        self.module = self.processes.wrap(inner, list(network.blocks()), shard=shard)
        # After wrapping, because FSDP replaces the parameters by their shards.
        self.optimizer = make_optimizer(inner, recipe.optimizer, layers=network.config.layers)
        self.step = step_for(objective, shard=shard)
        self.checkpointer = Checkpointer(ingredients, recipe, site, self.optimizer, shard=shard)
        self.saved_step, self.saved_at = -1, time.monotonic()
        self.dealer: Dealer | Prefetch = Dealer(ingredients.source, self.processes)
        # A thread pays where a GPU computes the step; on a CPU, batches were 3 ms of 100 (tiny).
        prefetch, on_gpu = self.settings.prefetch, self.processes.device.type != "cpu"
        if prefetch == "on" or (prefetch == "auto" and on_gpu):
            self.dealer = Prefetch(self.dealer, self._progress_at)

    def resume(self) -> None:
        """Restore the newest checkpoint, if there is one."""
        restored = self.checkpointer.restore()
        # Steps after the checkpoint are taken again and would be recorded twice.
        self.folder.cut_back(restored.step if restored else -1)
        self.processes.wait()  # every process reads the metrics that the first one has rewritten
        self.evaluator.restore(of_kind(self.folder.metrics(), "eval"))
        if restored is not None:
            self.position, self.saved_step = restored, restored.step
            self.folder.say(f"resuming from step {restored.step}")

    def run(self) -> None:
        """Train to the end; on a stop request, save and raise `Stopped` between two steps."""
        position = self.position
        if not position.step:
            self._count_setup_time()
            self._evaluate()
            # Warm-up by the clock starts at the first step, however long all this took.
            position.before = position.seconds
        while self.progress < 1.0 and not self.evaluator.stop():
            self._stop_if_requested()
            started, progress_before = time.monotonic(), self.progress
            result = self._step()
            self._add_time(started)
            if result is None:
                continue  # ended early by a stop request, which the next round acts on
            if result.taken and self.settings.weight_average:
                # A step weighs as much as its fraction of the run, so the mean spans the same
                # fraction whether steps are many or few.
                weight = min((self.progress - progress_before) / self.settings.weight_average, 1.0)
                for module in (self.ingredients.network, self.ingredients.objective):
                    average(module, self.optimizer, weight)
            self._log(result, time.monotonic() - started)
            if self._due_slot() > position.slot:  # one evaluation stands for all that became due
                self._evaluate()
            if self._save_due():
                self.save()
        if position.evaluated != position.step:
            self._evaluate()  # the last step may be the best one
        self.save()
        self.checkpointer.publish(position)

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
        started = time.monotonic()
        self.checkpointer.save(self.position)
        self.evaluator.saved()  # may delete models that only older checkpoints needed
        self._add_time(started)
        self.saved_step, self.saved_at = self.position.step, time.monotonic()

    def _step(self) -> StepResult | None:
        """Take one step; return None if a stop request ended it early, with nothing changed."""
        position = self.position
        dealt = self.dealer.take(position.cursor, position.step, self.progress)
        factor = self.schedule.factor_at(position.step, position.seconds, position.before)
        set_learning_rate(self.optimizer, self.optimizer_settings.learning_rate * factor)
        site = StepSite(
            self.processes,
            self.precision,
            self.optimizer_settings.max_grad_norm,
            dealt.rounds,
            self._stop_requested,
        )
        result = self.step(self.module, dealt.micro_batches, site)
        if result is None:
            return None
        if result.taken:
            self.optimizer.step()
        # A skipped step counts too: repeated, it would compute the very same numbers.
        position.cursor, position.step = dealt.cursor, position.step + 1
        position.tokens += result.tokens
        if result.taken:
            position.bad = 0
        else:
            self._report_skipped(result, dealt.micro_batches)
        return result

    def _report_skipped(self, result: StepResult, micro_batches: Sequence[MicroBatch]) -> None:
        """Report a skipped step and what may explain it; raise after too many in a row."""
        position, settings = self.position, self.settings
        position.bad += 1
        example_numbers = [
            int(number)
            for micro_batch in micro_batches
            if micro_batch.batch.number is not None
            for number in micro_batch.batch.number[:3]
        ]
        message = (
            f"step {position.step}: the loss or the gradient is not finite ("
            f"{', '.join(f'{name} {value:.4g}' for name, value in result.losses.items())}, "
            f"gradient norm {result.norm:.4g}, learning rate "
            f"{self.optimizer.param_groups[0]['lr']:.3g}, first examples {example_numbers[:3]}); "
            "the step was skipped and the weights are unchanged"
        )
        self.folder.say(f"warning: {message}")
        if position.bad > settings.max_skipped_steps:
            checkpoint = f"step {self.saved_step} in {self.folder.checkpoints}"
            raise UserError(
                f"{message}. That is {position.bad} such steps in a row, more than "
                f"loop.max_skipped_steps = {settings.max_skipped_steps}. The last good checkpoint "
                f"is {checkpoint if self.saved_step >= 0 else 'not written yet'}. Start over with "
                "a lower learning rate."
            )

    def _add_time(self, started: float) -> None:
        """Add the time since `started` to the clock of the run."""
        elapsed = time.monotonic() - started
        if self.schedule.minutes is not None:
            # The clock decides the learning rate and the end, so all processes share one.
            elapsed = self.processes.from_first([elapsed])[0]
        self.position.seconds += elapsed

    def _log(self, result: StepResult, seconds: float) -> None:
        position = self.position
        if position.step % self.settings.log_steps == 0 or self.progress >= 1.0:
            measured = {**result.losses, "loss": result.loss, "grad_norm": result.norm}
            self.folder.record(
                {
                    "kind": "train",
                    "step": position.step,
                    # JSON has neither NaN nor infinity.
                    **{
                        name: value if math.isfinite(value) else None
                        for name, value in measured.items()
                    },
                    "learning_rate": self.optimizer.param_groups[0]["lr"],
                    "tokens": position.tokens,
                    "seconds": round(position.seconds, 3),
                    "tokens_per_second": round(result.tokens / max(seconds, 1e-9), 1),
                }
            )
        self.evaluator.stepped(position, result)
        if self.processes.first:
            # Under a time budget, the number of steps is extrapolated.
            steps = self.schedule.steps or round(position.step / max(self.progress, 1e-9))
            seconds_left = self.schedule.seconds_left(position.seconds)
            note = f"loss {result.loss:.3f}, {self.progress:.0%}"
            self.site.console.progress(
                "training", "steps", position.step, steps, note=note, seconds_left=seconds_left
            )

    def _count_setup_time(self) -> None:
        """Count set-up as part of a time budget, up to the fraction `SETUP_SHARE` of it."""
        minutes, now = self.schedule.minutes, time.monotonic()
        if minutes is None:
            return
        limit = 60 * minutes * SETUP_SHARE
        if now - self.site.started > limit:
            self.folder.say(
                f"set-up took {(now - self.site.started) / 60:.1f} of {minutes:g} minutes; the "
                f"training steps still get {minutes * (1 - SETUP_SHARE):.1f} minutes"
            )
        self._add_time(max(self.site.started, now - limit))

    def _due_slot(self) -> int:
        """Number of the last evaluation that is due, of those spread over the run."""
        return int(self.progress * self.evaluator.times)

    def _evaluate(self) -> None:
        if not self.evaluator.times:
            return
        # The slot is fixed first: what falls due during this evaluation is made up for later.
        started, self.position.slot = time.monotonic(), self._due_slot()
        network, objective = self.checkpointer.trained()
        device = self.processes.device
        network, objective = network.to(device).eval(), objective.to(device).eval()
        entry = self.evaluator.evaluate(network, objective, self.position)
        # Unless weights are sharded or averaged, the modules just evaluated are those in training.
        self.ingredients.network.train()
        self.ingredients.objective.train()
        self._add_time(started)
        self.position.evaluated = self.position.step
        self.folder.record({"kind": "eval", "step": self.position.step, **entry})
        self.evaluator.report()

    def _stop_requested(self) -> bool:
        """Whether any process has received a stop request; a collective call."""
        # A signal may reach one process only, and all must stop at the same poll.
        return self.processes.total([float(self.site.stop.number > 0)])[0] > 0

    def _stop_if_requested(self) -> None:
        """Save and raise `Stopped`, if any process has received a stop request."""
        number, step = self.site.stop.number, self.position.step
        if not self._stop_requested():
            return
        if step:
            self.save()
        self.folder.say(
            f"stopped after step {step}; to continue, run the same command with --resume"
        )
        # A process that got no signal itself stops as if by SIGTERM.
        raise Stopped(number or signal.SIGTERM)

    def _save_due(self) -> bool:
        settings, step = self.settings, self.position.step
        by_step = settings.save_steps is not None and step % settings.save_steps == 0
        overdue = time.monotonic() - self.saved_at > 60 * settings.save_minutes
        # Clocks differ, so the first process decides. `by_step` is the same on all of them, so
        # either all or none get to the collective `agree`.
        return by_step or self.processes.agree(overdue)
