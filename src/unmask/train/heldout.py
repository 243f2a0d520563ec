"""The held-out scores of a run: measured beside baselines, told, watched for trouble and drawn."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from unmask.data.corpus import Corpus
from unmask.data.examples import split_documents
from unmask.data.stream import Stream
from unmask.errors import DataError
from unmask.model.network import Network
from unmask.objectives.base import OnePass
from unmask.train.course import Position
from unmask.train.distributed import Processes
from unmask.train.evaluate import SEED, Baselines, Blanks, Evaluation, baselines
from unmask.train.recipe import Recipe
from unmask.train.report import write_report
from unmask.train.run import RunFolder
from unmask.train.step import Report
from unmask.train.watch import Watch

EVALUATING = 0.1  # of a run by the clock may be evaluation
PROBED = 2048  # tokens that the speed is measured with

Show = Callable[[Position, Report, float], None]


class HeldOut:
    """Scores on held-out documents, with baselines, blanks, warnings and pictures."""

    def __init__(
        self,
        folder: RunFolder,
        corpus: Corpus,
        recipe: Recipe,
        objective: OnePass,
        group: Processes,
        network: Network,
    ) -> None:
        self.folder, self.corpus, self.recipe, self.group = folder, corpus, recipe, group
        self.objective = objective.standard()
        self.watch = Watch(folder.say, objective.readers[0].term)
        self.watch.remember(folder.metrics())
        self.count = recipe.train.evaluations  # over the run
        self.evaluation: Evaluation | None = None
        self.baselines: Baselines | None = None
        if not recipe.examples.held_out or not recipe.train.evaluations:
            return
        _, held = split_documents(len(corpus.documents) - 1, recipe.examples.held_out)
        if len(held) < 2:
            raise DataError(
                f"{corpus.path}: {len(corpus.documents) - 1} documents, of which one in "
                f"{recipe.examples.held_out} is held out: {len(held)}; need two. Hold out more "
                "(--set examples.held_out=5), or nothing (0)."
            )
        self.stream = Stream(corpus, held, recipe.examples, SEED, recipe.evaluated.length)
        tokens, self.count = self._affordable(network)
        self.evaluation = self._on(tokens)
        choices = self.objective.readers[0].choices
        self.baselines = baselines(corpus, self.evaluation.answers(), group, choices=choices)
        self.blanks = Blanks(self.evaluation, corpus)

    def _on(self, tokens: int) -> Evaluation:
        """An evaluation on so many tokens."""
        rows = self.recipe.micro_rows(self.recipe.evaluated, self.group.world)
        return Evaluation(self.stream, self.objective, self.group, tokens=tokens, micro_rows=rows)

    def _affordable(self, network: Network) -> tuple[int, int]:
        """Tokens of an evaluation and how many there are: together a tenth of a run at most.

        For a run by the clock that takes a measurement, once; what is resumed goes on with it.
        """
        most, minutes = self.recipe.evaluated_tokens(), self.recipe.schedule.minutes
        if minutes is None:
            return most, self.count
        known = [e for e in self.folder.metrics() if "evaluations" in e]
        if known:
            found = [known[0]["evaluated"], known[0]["evaluations"]]
        else:
            probe = self._on(PROBED)
            network.to(self.group.device).eval()
            probe(network)  # the first pass is slow
            begun = time.monotonic()
            probe(network)
            speed = probe.tokens / (time.monotonic() - begun)
            room = 60 * minutes * EVALUATING * speed  # tokens of all evaluations
            each = int(room / (self.count + 1))  # one is before the first step
            tokens = min(most, max(PROBED, each))
            found = [tokens, min(self.count, max(1, int(room / tokens) - 1))]
        agreed = self.group.total([v if self.group.first else 0.0 for v in found])
        return round(agreed[0]), round(agreed[1])

    def __call__(self, position: Position, network: Network) -> dict[str, Any]:
        """One evaluation, told and drawn."""
        assert self.evaluation is not None
        assert self.baselines is not None
        scores = self.evaluation(network)
        asks = self.objective.asks
        plain = {k: v for k, v in asdict(self.baselines).items() if v is not None}
        entry: dict[str, Any] = {**scores, **plain, "tokens": position.tokens}
        entry |= {f"{r.term}_chance": 1 / r.choices for r in self.objective.readers}
        entry |= {"evaluated": self.evaluation.tokens, "evaluations": self.count, "asks": asks}
        entry["seconds"] = round(position.seconds, 3)
        if self.group.first:
            entry["blanks"] = self.blanks(network, self.group.device)
        known = f"ln V {plain['ln_v']:.3f}"
        if "unigram_loss" in plain:
            known = f"unigram {plain['unigram_loss']:.3f}, {known}"
        right = ", ".join(f"{about} {scores[f'{t}_accuracy']:.1%}" for t, about in asks.items())
        loss = scores[next(iter(asks))]
        self.folder.say(f"step {position.step}: held-out loss {loss:.3f} ({known}); right: {right}")
        self.watch.evaluated(position.step, scores, self.baselines)
        return entry

    def watching(self, show: Show | None) -> Show:
        """Look for signs of trouble after each step, then show it."""

        def look(position: Position, report: Report, progress: float) -> None:
            self.watch.stepped(position.step, report)
            if show and self.group.first:
                show(position, report, progress)

        return look

    def report(self) -> None:
        """Draw the run so far."""
        if self.folder.writes:
            write_report(self.folder, self.recipe.model_dump(exclude_none=True), self.watch.said)
