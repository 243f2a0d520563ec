"""The held-out scores of a fine-tuning run: measured, told, the best step kept, drawn.

A run may have several tasks: then each has its scores under its name, and the best step is the one
with the highest mean of what the tasks go by.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, Protocol

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.model.network import Network
from unmask.tasks.base import Detail, Tally, Task, answers
from unmask.tasks.engine import Live
from unmask.text.tokenizer import Tokenizer
from unmask.train.course import Final, Position
from unmask.train.distributed import Processes
from unmask.train.run import RunFolder

BEST = "best"
METRIC = "metric"  # what the best step has the most of
ONLY = ""  # the name of a task that is alone


@dataclass(frozen=True)
class Data:
    """What there is to learn from and to be scored on."""

    task: Task
    train: Sequence[Any]
    dev: Sequence[Any]
    said: Sequence[str] = ()  # what was inferred about the files


class Settled(Protocol):
    """What is kept of a task beside the model."""

    name: ClassVar[str]
    metric: str  # the best model is the one with the most of it

    @property
    def how(self) -> Any:
        """Its settings."""


@dataclass(frozen=True)
class Scored:
    """A task as it was settled on held-out data, with its scores there."""

    task: Settled
    scores: dict[str, float]
    detail: Detail


Measured = tuple[dict[str, Scored], list[float]]  # every task's scores, and its loss


class Answered:
    """The answers to held-out records, with the tasks' own metrics."""

    def __init__(self, parts: dict[str, Data], tokenizer: Tokenizer, limit: int) -> None:
        self.parts, self.tokenizer, self.limit = parts, tokenizer, limit

    def __call__(self, network: Network) -> Measured:
        """Every task's scores, and its loss."""
        found, losses = {}, []
        for name, part in self.parts.items():
            own = network if name == ONLY else network.only(name)
            found[name], loss = self._scored(part, own)
            losses.append(loss)
        return found, losses

    def _scored(self, part: Data, network: Network) -> tuple[Scored, float]:
        tally = Tally()
        found = answers(
            Live(network),
            self.tokenizer,
            part.task,
            part.dev,
            limit=self.limit,
            known=True,
            tally=tally,
        )
        task, said = part.task.settle(part.dev, [answer for _, answer in found])
        scored = Scored(task, task.score(part.dev, said), task.detail(part.dev, said))
        return scored, tally.mean


class Scores:
    """The evaluations of a run: the best step's model and answers are kept."""

    def __init__(
        self,
        folder: RunFolder,
        measure: Callable[[Network], Measured],
        tokenizer: Tokenizer,
        group: Processes,
        *,
        limit: int,
        patience: int,
        about: dict[str, Any],
        drawn: Callable[[dict[str, Scored]], None],
        target: Tokenizer | None = None,
    ) -> None:
        self.folder, self.measure, self.group = folder, measure, group
        self.tokenizer, self.target = tokenizer, target
        self.limit, self.patience, self.about, self.drawn = limit, patience, about, drawn
        self.history: list[dict[str, Any]] = []  # evaluations, as they are in the metrics
        self.best: dict[str, Scored] | None = None  # the best one's answers

    def __call__(self, position: Position, network: Network) -> dict[str, Any]:
        """One evaluation, told, and kept if it is the best."""
        entry: dict[str, Any] = {"tokens": position.tokens}
        found, losses = self.measure(network)
        for name, scored in found.items():
            entry |= {key_of(name, what): value for what, value in scored.scores.items()}
        entry["loss"] = mean(losses)
        entry[METRIC] = mean(s.scores[s.task.metric] for s in found.values())
        entry["how"] = {name: self._settings_of(s.task) for name, s in found.items()}
        better = self._agreed(self._better(entry[METRIC], position.step))
        self.history.append({"step": position.step, **entry})
        self._say(position.step, entry, found, better)
        if better:
            self._keep(position.step, network, found)
            self.best = found
        return entry

    def draw(self) -> None:
        """The report of the run so far, with the answers of its best step."""
        if self.best is None and self.history:  # they were given before a stop
            self.best, _ = self.measure(self.final().network.to(self.group.device))
        self.drawn(self.best or {})

    def enough(self) -> bool:
        """Has there been no better one for as long as patience lasts?"""
        if not self.patience or not self.history:
            return False
        since = len(self.history) - 1 - self.history.index(self._best())
        return self._agreed(since >= self.patience)

    def resumed(self) -> None:
        """Remember what was measured before a stop; forget what will be measured again."""
        self.group.wait()
        self.history = [entry for entry in self.folder.metrics() if entry["kind"] == "eval"]
        known = {entry["step"] for entry in self.history}
        if self.folder.writes:
            for path in (self.folder.path / BEST).glob("step-*"):
                if _step(path) not in known:
                    shutil.rmtree(path)
        self.group.wait()

    def final(self) -> Final:
        """The model with the best scores, and these."""
        found = self.summary()
        step = found.pop("step")
        facts = {"step": step, "scores": {k: v for k, v in found.items() if k != METRIC}}
        network = load_folder(self.folder.path / BEST / f"step-{step}").network
        return Final(network, facts, self.settings() or None)

    def summary(self) -> dict[str, Any]:
        """The scores of the best step."""
        best = self._best()
        return {k: v for k, v in best.items() if isinstance(v, float)} | {"step": best["step"]}

    def settings(self, name: str = ONLY) -> dict[str, Any]:
        """What the answers of the best step depend on."""
        found: dict[str, Any] = self._best()["how"].get(name, {})
        return found

    def _agreed(self, answer: bool) -> bool:
        """The first process decides for all."""
        return self.group.total([float(answer and self.group.first)])[0] > 0

    def _say(
        self, step: int, entry: dict[str, Any], found: dict[str, Scored], better: bool
    ) -> None:
        names = [key_of(name, what) for name, scored in found.items() for what in scored.scores]
        shown = ", ".join(f"{name} {entry[name]:.4f}" for name in names)
        mark = " (the best so far)" if better and step else ""
        self.folder.say(f"step {step}: held-out loss {entry['loss']:.4f}, {shown}{mark}")

    def _best(self) -> dict[str, Any]:
        """The first of the highest; what was not trained yet counts only if there is no other."""
        return max(self.history, key=lambda entry: (entry["step"] > 0, entry[METRIC]))

    def _outdated(self) -> list[Path]:
        """Those that were surpassed for good: a crash takes back what no checkpoint holds."""
        steps = [_step(path) for path in self.folder.checkpoints.glob("step-*")]
        kept = sorted((self.folder.path / BEST).glob("step-*"), key=_step)
        return [path for path in kept if _step(path) <= min(steps, default=-1)][:-1]

    def _better(self, value: float, step: int) -> bool:
        before = [entry[METRIC] for entry in self.history if entry["step"] > 0]
        return not before or value > max(before)

    def _settings_of(self, task: Settled) -> dict[str, Any]:
        """What a model folder keeps of a task."""
        return {"name": task.name, "length": self.limit, **task.how.model_dump()}

    def _keep(self, step: int, network: Network, found: dict[str, Scored]) -> None:
        target = self.folder.path / BEST / f"step-{step}"
        if self.folder.writes and not target.exists():
            self.folder.claim(f"{BEST}/{target.name}")
            target.parent.mkdir(exist_ok=True)
            scores = {key_of(n, what): v for n, s in found.items() for what, v in s.scores.items()}
            save_folder(
                target,
                network,
                self.tokenizer,
                target=self.target,
                task=self._settings_of(found[ONLY].task) if ONLY in found else None,
                provenance={**self.about, "step": step, "scores": scores},
            )
            with suppress(OSError):
                for old in self._outdated():
                    shutil.rmtree(old)
        self.group.wait()


def key_of(name: str, what: str) -> str:
    """What a task's metric is called in a run."""
    return f"{name}.{what}" if name else what


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
