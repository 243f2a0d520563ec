"""The held-out scores of a fine-tuning run: measured, reported, the best step kept, drawn.

A run may have several tasks: then each has its scores under its name, and the best step is the one
with the highest mean of the tasks' main metrics.
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
    """Held-out data that a network can be measured on, with the help of all processes."""

    def measure(
        self, network: Network, objective: Objective | None
    ) -> tuple[dict[str, TaskScores], list[float]]:
        """Scores of each task by its name, "" where there is one, and the loss of each.

        Without the objective the losses are unknown, and so are scores that follow from them.
        """


class BestStep(Evaluator):
    """The evaluations of a run; the model of the best step is kept on disk."""

    def __init__(
        self,
        exam: TaskScorer,
        recipe: Recipe,
        site: Site,
        tokens: Tokenizers,
        provenance: dict[str, Any],
    ) -> None:
        self.exam, self.site, self.tokens, self.provenance = exam, site, tokens, provenance
        self.folder, self.group = site.folder, site.processes
        self.times, self.patience = recipe.evaluate.times, recipe.evaluate.patience
        self.history: list[Entry] = []  # evaluations, as they are in the metrics
        self.shown: dict[str, TaskScores] | None = None  # of the best one, for the report

    def evaluate(self, network: Network, objective: Objective, position: Position) -> Entry:
        """Measure, report, and keep the model if it is the best."""
        standard = objective.standard().to(self.group.device).eval()
        measured, losses = self.exam.measure(network, standard)
        scores = {
            metric_name(name, what): value
            for name, scored in measured.items()
            for what, value in scored.scores.items()
        }
        entry: Entry = {"tokens": position.tokens, **scores, "loss": mean(losses)}
        entry[METRIC] = mean(scored.scores[scored.metric] for scored in measured.values())
        entry["how"] = {name: self._settings_of(scored) for name, scored in measured.items()}
        self.history.append({"step": position.step, **entry})
        better = self.group.agree(self._best() is self.history[-1])
        shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        mark = " (the best so far)" if better and position.step else ""
        said = f"held-out loss {entry['loss']:.4f}, {shown}{mark}"
        self.folder.say(f"step {position.step}: {said}")
        if better:
            self._keep(position.step, network, entry)
            self.shown = measured
        return entry

    def best(self, position: Position) -> Best:
        """The step with the best scores."""
        entry = self._best()
        scores = {k: v for k, v in entry.items() if isinstance(v, float)}
        return Best(entry["step"], self._place(entry["step"]), scores, entry["how"])

    def stop(self) -> bool:
        """Has there been no better one for as long as patience lasts?"""
        if not self.patience or not self.history:
            return False
        since = len(self.history) - 1 - self.history.index(self._best())
        return self.group.agree(since >= self.patience)

    def report(self) -> None:
        """Draw the run so far, with the answers of its best step."""
        if self.shown is None and self.history:  # they were given before the run was resumed
            best = self._best()
            network = load_folder(self._place(best["step"])).network
            measured, _ = self.exam.measure(network.to(self.group.device), None)
            self.shown = {name: _stored(name, scored, best) for name, scored in measured.items()}
        write_report(self.folder, scored=self.shown or {})

    def restore(self, entries: Sequence[Entry]) -> None:
        """Remember what was measured before; forget what will be measured again."""
        self.history = list(entries)
        if self.folder.writes:
            remove_leftovers(self.folder.path / BEST, ".step-*.tmp-*")
            self._remove_others()  # a run that was killed may not have come to it
        self.group.wait()

    def saved(self) -> None:
        """Remove models that neither the run nor one of its checkpoints needs any more.

        A run that is killed continues from a checkpoint, and then the best step up to that
        checkpoint is the best one again.
        """
        if self.folder.writes:
            with suppress(OSError):
                self._remove_others()

    def _remove_others(self) -> None:
        ends = [math.inf, *map(_step, self.folder.checkpoints.glob("step-*"))]
        before = [[entry for entry in self.history if entry["step"] <= end] for end in ends]
        needed = {self._best(entries)["step"] for entries in before if entries}
        for path in [*(self.folder.path / BEST).glob("step-*")]:
            if _step(path) not in needed:
                shutil.rmtree(path)

    def _place(self, step: int) -> Path:
        return self.folder.path / BEST / f"step-{step}"

    def _best(self, among: Sequence[Entry] = ()) -> Entry:
        """The first of the highest; step 0 counts only if there is no other."""
        return max(among or self.history, key=lambda entry: (entry["step"] > 0, entry[METRIC]))

    def _settings_of(self, scored: TaskScores) -> dict[str, Any]:
        """What a model folder keeps of a task."""
        settings = scored.settings.model_dump()
        return {"name": scored.name, "length": self.tokens.max_length, **settings}

    def _keep(self, step: int, network: Network, entry: Entry) -> None:
        target = self._place(step)
        if self.folder.writes and not target.exists():
            self.folder.claim(f"{BEST}/{target.name}")
            scores = {k: v for k, v in entry.items() if isinstance(v, float) and k != METRIC}
            save_folder(
                target,
                network,
                self.tokens.source,
                target=self.tokens.target,
                task=entry["how"].get(""),
                provenance={**self.provenance, "step": step, "scores": scores},
            )
            self.saved()
        self.group.wait()


def _stored(name: str, scored: TaskScores, entry: Entry) -> TaskScores:
    """With the scores of an entry, of which some needed the objective."""
    found = {what: entry.get(metric_name(name, what), v) for what, v in scored.scores.items()}
    return replace(scored, scores=found)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
