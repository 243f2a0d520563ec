"""The evaluator of pre-training: held-out documents -> scores, warnings and report."""

import time
from collections.abc import Mapping, Sequence

from unmask.data.corpus.corpus import Corpus
from unmask.data.corpus.examples import split_documents
from unmask.data.corpus.stream import Stream
from unmask.evaluation.language_model import SEED, Evaluation, MaskedTokens, baselines
from unmask.evaluation.report.diagnostics import Diagnostics
from unmask.evaluation.report.html import write_report
from unmask.model.network import Network
from unmask.objectives.base import Companions, Objective
from unmask.system.errors import DataError
from unmask.train.evaluator import Entry, Evaluator, Position
from unmask.train.optim.schedules import Phase
from unmask.train.recipe import Recipe
from unmask.train.site import Site
from unmask.train.steps.base import StepResult

EVALUATION_SHARE = 0.1  # fraction of a time budget that evaluations may take
PROBE_TOKENS = 2048  # tokens for measuring the speed, and the least of an evaluation


class HeldOutText(Evaluator):
    """Scores a run on held-out documents, beside baselines, and warns about known failures."""

    def __init__(
        self,
        site: Site,
        corpus: Corpus,
        recipe: Recipe,
        objective: Objective,
        network: Network,
        companions: Companions,
    ) -> None:
        self.folder, self.group, self.recipe = site.folder, site.processes, recipe
        self.objective, self.companions = objective.standard(), companions
        self.terms = self.objective.describe()
        self.targets = {term.name: term.target for term in self.terms}
        self.diagnostics = Diagnostics(self.folder.say, self.targets)
        if not recipe.data.held_out or not recipe.evaluate.times:
            return
        _, held = split_documents(len(corpus.documents) - 1, recipe.data.held_out)
        if len(held) < 2:
            raise DataError(
                f"{corpus.path}: one in {recipe.data.held_out} of "
                f"{len(corpus.documents) - 1} documents is held out: {len(held)}; expected at "
                "least two. Hold out more documents (--set data.held_out=5), or none (=0)."
            )
        self.phase = self._phase()
        self.stream = Stream(corpus, held, recipe.data, SEED, self.phase.length)
        tokens, self.times = self._affordable(network)
        self.evaluation = self._evaluation_of(tokens)
        choices = self.terms[0].choices
        self.baselines = baselines(corpus, self.evaluation.answers(), self.group, choices=choices)
        self.plain_loss = self.baselines.get("unigram_loss")
        self.masked_tokens = MaskedTokens(self.evaluation, corpus)

    def _phase(self) -> Phase:
        """Choose the phase whose sequence length is used for evaluation: the last one if possible.

        Learned positions beyond the length of the first phase are untrained until a later one.
        """
        learned = (self.recipe.model.positions or "learned") == "learned"
        return self.recipe.schedule.phases[0 if learned else -1]

    def _max_tokens(self) -> int:
        """Return the tokens of an evaluation such that all of them cost at most a tenth of the run.

        A token costs a third in evaluation, which has no backward pass: 0.3 of the run's tokens
        cost a tenth of its time.
        """
        schedule, evaluate = self.recipe.schedule, self.recipe.evaluate
        if schedule.steps is None:
            return evaluate.tokens
        run_tokens = sum(
            schedule.steps * phase.share * phase.rows * phase.length for phase in schedule.phases
        )
        return min(evaluate.tokens, max(8192, round(0.3 * run_tokens / evaluate.times)))

    def _evaluation_of(self, tokens: int) -> Evaluation:
        """Make an evaluation on this many tokens."""
        rows = max(self.recipe.loop.micro_batch_tokens // self.phase.length, 1)
        return Evaluation(self.stream, self.objective, self.group, tokens=tokens, micro_rows=rows)

    def _affordable(self, network: Network) -> tuple[int, int]:
        """Return tokens per evaluation and number of evaluations: at most a tenth of the run.

        Under a time budget the speed is measured first. A resumed run keeps what was measured, so
        that all its evaluations are on the same examples.
        """
        max_tokens, minutes = self._max_tokens(), self.recipe.schedule.minutes
        count = self.recipe.evaluate.times
        if minutes is None:
            return max_tokens, count
        recorded = [entry for entry in self.folder.metrics() if "evaluations" in entry]
        if recorded:
            measured = [recorded[0]["evaluated_tokens"], recorded[0]["evaluations"]]
        else:
            probe = self._evaluation_of(PROBE_TOKENS)
            network.to(self.group.device).eval()
            objective = self.objective.to(self.group.device).eval()
            probe(network, objective, self.companions)  # warm up: the first pass is slow
            started = time.monotonic()
            probe(network, objective, self.companions)
            speed = probe.tokens / (time.monotonic() - started)
            budget = 60 * minutes * EVALUATION_SHARE * speed  # tokens for all evaluations
            per_evaluation = int(budget / (count + 1))  # one more is before the first step
            # Fewer tokens would measure nothing: there are fewer evaluations instead.
            tokens = min(max_tokens, max(PROBE_TOKENS, per_evaluation))
            measured = [tokens, min(count, max(1, int(budget / tokens) - 1))]
        # Speeds differ between processes, which must all evaluate the same tokens equally often.
        tokens, count = map(round, self.group.from_first(measured))
        return tokens, count

    def evaluate(self, network: Network, objective: Objective, position: Position) -> Entry:
        """Score the network on the held-out documents, and log and watch the scores."""
        standard = objective.standard().to(self.group.device).eval()
        scores, targets = self.evaluation(network, standard, self.companions), self.targets
        entry: Entry = {**scores, **self.baselines, "tokens": position.tokens}
        entry |= {f"{term.name}_chance": 1 / term.choices for term in self.terms if term.choices}
        entry |= {"evaluated_tokens": self.evaluation.tokens, "evaluations": self.times}
        entry["targets"] = targets
        entry["seconds"] = round(position.seconds, 3)
        if self.group.first:  # a handful of sentences, and only the first process records them
            entry["masked_predictions"] = self.masked_tokens(network, self.group.device)
        self.folder.say(f"step {position.step}: {self._summary(scores)}")
        self.diagnostics.evaluated(position.step, scores, self.plain_loss)
        return entry

    def restore(self, entries: Sequence[Entry]) -> None:
        """Take over the evaluations and warnings of a resumed run."""
        self.diagnostics.restore(entries, self.folder.log())

    def _summary(self, scores: Mapping[str, float]) -> str:
        """Format the scores of an evaluation beside their baselines."""
        references = [f"unigram {self.plain_loss:.3f}"] if self.plain_loss is not None else []
        references += [f"ln V {self.baselines['ln_v']:.3f}"] if "ln_v" in self.baselines else []
        compared = f" ({', '.join(references)})" if references else ""
        with_accuracy = [term for term in self.terms if f"{term.name}_accuracy" in scores]
        accuracies = [
            f"{term.target} {scores[f'{term.name}_accuracy']:.1%}" for term in with_accuracy
        ]
        shown = f"; accuracy: {', '.join(accuracies)}" if accuracies else ""
        return f"held-out loss {scores[self.terms[0].name]:.3f}{compared}{shown}"

    def stepped(self, position: Position, result: StepResult) -> None:
        """Check a training step for signs of failure."""
        self.diagnostics.stepped(position.step, result)

    def report(self) -> None:
        """Write the report of the run so far."""
        write_report(self.folder, warnings=self.diagnostics.warnings)
