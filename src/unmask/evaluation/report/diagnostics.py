"""Training and evaluation curves -> warnings about known failures of pre-training.

Each kind of warning is logged once, with the evidence and what usually helps.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from unmask.train.steps.base import StepResult

WINDOW = 50  # steps whose mean counts as the training loss
RISE = 1.0  # nats above the best loss that count as divergence
PLATEAU = 4  # evaluations that are compared with the ones before
WARNED = re.compile(r"step \d+: warning \[(.+?)\]: .*")  # as a line of the log


class Diagnostics:
    """Watches every training step and every evaluation for signs of failure."""

    def __init__(self, say: Callable[[str], None], targets: Mapping[str, str]) -> None:
        """`targets` describes what each loss term predicts, the main term first."""
        self.say = say
        self.term, *others = targets  # the main loss, and terms that are learned beside it
        self.other_terms = {f"{term}_accuracy": targets[term] for term in others}
        self.warnings: list[str] = []
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.best = float("inf")
        self.history: list[Mapping[str, float]] = []

    def restore(self, evaluations: Sequence[Mapping[str, float]], log: Iterable[str]) -> None:
        """Take over the evaluations of a resumed run, and the warnings in its log."""
        self.history = [entry for entry in evaluations if self.term in entry]
        # From the log, so that a resumed run does not repeat its warnings, nor lose them from its
        # report.
        for match in map(WARNED.search, log):
            if match and self._is_new(match[1]):
                self.warnings.append(match[0])

    def stepped(self, step: int, report: StepResult) -> None:
        """Check a training step: a diverging loss, or a gradient of zero."""
        if not report.taken:  # NaN would stay in the mean for the whole window
            return
        self.recent.append(report.loss)
        if len(self.recent) < WINDOW:
            return
        mean = sum(self.recent) / WINDOW
        self.best = min(self.best, mean)
        if mean > self.best + RISE:
            self._warn(
                step,
                "diverged",
                f"the loss has risen from {self.best:.2f} to {mean:.2f}: training diverges. Start "
                "over with a lower optimizer.learning_rate or a longer schedule.warmup",
            )
        if report.norm == 0.0:
            self._warn(step, "still", "the gradient is zero, so the model no longer learns")

    def evaluated(self, step: int, scores: dict[str, float], unigram: float | None) -> None:
        """Check an evaluation; `unigram` is the loss of predicting by token frequency, if known."""
        self.history.append(scores)
        if len(self.history) <= PLATEAU:
            return
        losses = [entry[self.term] for entry in self.history]
        # None of the last evaluations came close to the best of those before.
        if min(losses[:-PLATEAU]) < min(losses[-PLATEAU:]) - 0.02:
            self._warn(
                step,
                "overfit",
                f"the held-out loss was {min(losses):.2f} and is {losses[-1]:.2f}: the model "
                "is overfitting. Use more text, a smaller model or fewer steps",
            )
        if unigram is not None:
            self._check_unigram(step, losses, unigram)
            for name, description in self.other_terms.items():
                if name in scores and len(self.history) > 2 * PLATEAU:
                    learned = losses[-1] < unigram - 0.5
                    self._check_term(step, name, description, learned=learned)

    def _check_unigram(self, step: int, losses: Sequence[float], unigram: float) -> None:
        """Warn if the loss stays at that of predicting by token frequency."""
        flat = max(losses[-PLATEAU:]) - min(losses[-PLATEAU:]) < 0.05
        if flat and losses[-1] > unigram - 0.3:
            self._warn(
                step,
                "unigram",
                f"the held-out loss stays at {losses[-1]:.2f}, while a unigram model, which knows "
                f"only token frequencies, has {unigram:.2f}: the model has learned nothing else. "
                "Usual causes: batches too small, learning rate too low or too high, thousands of "
                "duplicate lines, too short a run",
            )

    def _check_term(self, step: int, name: str, description: str, *, learned: bool) -> None:
        """Warn if another term, such as next sentence, is not learned, or far too easily."""
        accuracy = [entry[name] for entry in self.history[-PLATEAU:]]
        # Of two choices, chance is 50 %; the margin allows for noise.
        at_chance = all(value < 0.53 for value in accuracy)
        if learned and at_chance:
            self._warn(
                step,
                description,
                f"the model learns tokens, but its accuracy on {description} stays at chance. Are "
                "documents separated by blank lines, and sentences in their original order?",
            )
        if not learned and accuracy[-1] > 0.9:
            self._warn(
                step,
                "cue",
                f"the accuracy on {description} is {accuracy[-1]:.0%}, while tokens are not "
                "learned: something gives the answer away, such as two kinds of documents",
            )

    def _warn(self, step: int, kind: str, text: str) -> None:
        if self._is_new(kind):
            self.warnings.append(f"step {step}: warning [{kind}]: {text}")
            self.say(self.warnings[-1])

    def _is_new(self, kind: str) -> bool:
        return not any(f"[{kind}]" in warning for warning in self.warnings)
