"""The evaluator of fine-tuning: held-out scores -> log, report, and the model of the best step.

In a run with several tasks, each task has its scores under its name, and the best step has the
highest mean of the tasks' main metrics.
"""

import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, Protocol

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.evaluation.report.answers import TaskScores
from unmask.evaluation.report.html import write_report
from unmask.model.network import Network
from unmask.objectives.base import Objective
from unmask.system.disk import remove_leftovers
from unmask.text.tokens import Tokenizers
from unmask.train.evaluator import METRIC, Best, Entry, Evaluator, Position, metric_name
from unmask.train.recipe import Recipe
from unmask.train.site import Site

BEST = "best"


class TaskScorer(Protocol):
    """Held-out data of one or several tasks that a network can be scored on; a collective call."""

    def measure(
        self, network: Network, objective: Objective | None
    ) -> tuple[dict[str, TaskScores], list[float]]:
        """Return the scores by task name ("" for a single task) and the loss of each task.

        Without the objective, losses are unknown, and so are scores derived from them.
        """


class BestStep(Evaluator):
    """Evaluates a fine-tuning run and keeps the model of its best step on disk."""

    def __init__(
        self,
        scorer: TaskScorer,
        recipe: Recipe,
        site: Site,
        tokens: Tokenizers,
        provenance: dict[str, Any],
    ) -> None:
        self.scorer, self.site, self.tokens, self.provenance = scorer, site, tokens, provenance
        self.folder, self.group = site.folder, site.processes
        self.times, self.patience = recipe.evaluate.times, recipe.evaluate.patience
        self.history: list[Entry] = []  # all evaluations, as recorded in the metrics
        self.best_scores: dict[str, TaskScores] | None = None  # of the best step, to report

    def evaluate(self, network: Network, objective: Objective, position: Position) -> Entry:
        """Score the network, log the scores, and save the model if it is the best so far."""
        standard = objective.standard().to(self.group.device).eval()
        measured, losses = self.scorer.measure(network, standard)
        scores = {
            metric_name(name, metric): value
            for name, task_scores in measured.items()
            for metric, value in task_scores.scores.items()
        }
        entry: Entry = {"tokens": position.tokens, **scores, "loss": mean(losses)}
        entry[METRIC] = mean(
            task_scores.scores[task_scores.metric] for task_scores in measured.values()
        )
        entry["task_settings"] = {
            name: self._settings_of(task_scores) for name, task_scores in measured.items()
        }
        self.history.append({"step": position.step, **entry})
        # Saving ends in a barrier, so the first process decides for all of them.
        better = self.group.agree(self._best() is self.history[-1])
        listed = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        suffix = " (the best so far)" if better and position.step else ""
        message = f"held-out loss {entry['loss']:.4f}, {listed}{suffix}"
        self.folder.say(f"step {position.step}: {message}")
        if better:
            self._save_best(position.step, network, entry)
            self.best_scores = measured
        return entry

    def best(self, position: Position) -> Best:
        """Return the step with the highest main metric, with its model folder and scores."""
        entry = self._best()
        scores = {name: value for name, value in entry.items() if isinstance(value, float)}
        return Best(
            entry["step"], self._model_folder(entry["step"]), scores, entry["task_settings"]
        )

    def stop(self) -> bool:
        """Whether the last `patience` evaluations have brought no improvement."""
        if not self.patience or not self.history:
            return False
        since = len(self.history) - 1 - self.history.index(self._best())
        return self.group.agree(since >= self.patience)

    def report(self) -> None:
        """Write the report of the run so far, with the answers of its best step."""
        # After a resume the answers are gone, since metrics hold only scores: compute them again.
        if self.best_scores is None and self.history:
            best = self._best()
            network = load_folder(self._model_folder(best["step"])).network
            measured, _ = self.scorer.measure(network.to(self.group.device), None)
            self.best_scores = {
                name: _with_recorded_scores(name, task_scores, best)
                for name, task_scores in measured.items()
            }
        write_report(self.folder, scored=self.best_scores or {})

    def restore(self, entries: Sequence[Entry]) -> None:
        """Take over the evaluations of a resumed run, and remove models that it does not need."""
        self.history = list(entries)
        if self.folder.writes:
            remove_leftovers(self.folder.path / BEST, ".step-*.tmp-*")
            self._remove_others()  # a killed run may not have done so
        self.group.wait()

    def saved(self) -> None:
        """Remove models that neither the run nor any of its checkpoints needs.

        A killed run resumes from a checkpoint, and the best step up to that checkpoint is then the
        best one again. So every checkpoint needs the model that was best when it was written.
        """
        if self.folder.writes:
            with suppress(OSError):  # a folder that cannot be deleted is no reason to stop the run
                self._remove_others()

    def _remove_others(self) -> None:
        # The run itself, at its present step, and each checkpoint that it may resume from.
        last_steps = [math.inf, *map(_step_of, self.folder.checkpoints.glob("step-*"))]
        histories = [
            [entry for entry in self.history if entry["step"] <= last_step]
            for last_step in last_steps
        ]
        needed = {self._best(entries)["step"] for entries in histories if entries}
        for path in [*(self.folder.path / BEST).glob("step-*")]:
            if _step_of(path) not in needed:
                shutil.rmtree(path)

    def _model_folder(self, step: int) -> Path:
        return self.folder.path / BEST / f"step-{step}"

    def _best(self, entries: Sequence[Entry] = ()) -> Entry:
        """Return the first evaluation with the highest metric; step 0 only if there is no other."""
        return max(entries or self.history, key=lambda entry: (entry["step"] > 0, entry[METRIC]))

    def _settings_of(self, task_scores: TaskScores) -> dict[str, Any]:
        """Return the task table that a model folder stores."""
        settings = task_scores.settings.model_dump()
        return {"name": task_scores.name, "length": self.tokens.max_length, **settings}

    def _save_best(self, step: int, network: Network, entry: Entry) -> None:
        target = self._model_folder(step)
        if self.folder.writes and not target.exists():
            self.folder.claim(f"{BEST}/{target.name}")
            scores = {
                name: value
                for name, value in entry.items()
                if isinstance(value, float) and name != METRIC
            }
            save_folder(
                target,
                network,
                self.tokens.source,
                target=self.tokens.target,
                task=entry["task_settings"].get(""),
                provenance={**self.provenance, "step": step, "scores": scores},
            )
            self.saved()
        self.group.wait()


def _with_recorded_scores(name: str, scored: TaskScores, entry: Entry) -> TaskScores:
    """Replace scores by the recorded ones, some of which only the objective can compute."""
    scores = {
        metric: entry.get(metric_name(name, metric), value)
        for metric, value in scored.scores.items()
    }
    return replace(scored, scores=scores)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
