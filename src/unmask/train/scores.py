"""The held-out scores of a fine-tuning run: measured, told, the best step kept, drawn.

A run may have several tasks: then each has its scores under its name, and the best step is the one
with the highest mean of what the tasks go by.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.errors import FolderError
from unmask.model.network import Network
from unmask.tasks.base import Detail, Task, answers
from unmask.text.tokenizer import Tokenizer
from unmask.train.course import Final, Position
from unmask.train.distributed import Processes
from unmask.train.run import RunFolder

BEST = "best"
KEPT = 2  # of the best so far: the newest may belong to steps that a crash takes back
METRIC = "metric"  # what the best step has the most of
ONLY = ""  # the name of a task that is alone


@dataclass(frozen=True)
class Data:
    """What there is to learn from and to be scored on."""

    task: Task
    train: Sequence[Any]
    dev: Sequence[Any]
    said: Sequence[str] = ()  # what was inferred about the files


@dataclass(frozen=True)
class Scored:
    """A task as it was settled on held-out data, with its scores there."""

    task: Task
    scores: dict[str, float]
    detail: Detail


class Scores:
    """Answers on held-out records, with the tasks' own metrics."""

    def __init__(
        self,
        folder: RunFolder,
        parts: dict[str, Data],
        tokenizer: Tokenizer,
        group: Processes,
        *,
        limit: int,
        patience: int,
        about: dict[str, Any],
        drawn: Callable[[dict[str, Scored]], None],
    ) -> None:
        self.folder, self.parts, self.tokenizer, self.group = folder, parts, tokenizer, group
        self.limit, self.patience, self.about, self.drawn = limit, patience, about, drawn

    def __call__(self, position: Position, network: Network) -> dict[str, Any]:
        """One evaluation, told, and kept if it is the best."""
        entry: dict[str, Any] = {"tokens": position.tokens}
        found: dict[str, Scored] = {}
        losses = []
        for name, part in self.parts.items():
            own = network if name == ONLY else network.only(name)
            found[name], loss = self._scored(part, own)
            losses.append(loss)
            entry |= {_key(name, what): value for what, value in found[name].scores.items()}
        entry["loss"] = mean(losses)
        entry[METRIC] = mean(s.scores[s.task.metric] for s in found.values())
        entry["how"] = {name: settings_of(s.task) for name, s in found.items()}
        better = self._better(entry[METRIC], position.step)
        self._say(position.step, entry, found, better)
        if better:
            self._keep(position.step, network, found)
            self.drawn(found)
        return entry

    def enough(self) -> bool:
        """Has there been no better one for as long as patience lasts?"""
        held = self._held()
        if not self.patience or not held:
            return False
        return len(held) - 1 - held.index(self._best(held)) >= self.patience

    def final(self) -> Final:
        """The model with the best scores, and these."""
        found = self.summary()
        step = found.pop("step")
        facts = {"step": step, "scores": {k: v for k, v in found.items() if k != METRIC}}
        return Final(self._kept(step), facts, self.settings() if ONLY in self.parts else None)

    def _kept(self, step: int) -> Network:
        path = self.folder.path / BEST / f"step-{step}"
        try:
            return load_folder(path).network
        except FolderError as error:
            kept = sorted((self.folder.path / BEST).glob("step-*"), key=_step)
            if not kept:
                raise
            self.folder.say(f"warning: {error} The one kept last is taken instead.")
            return load_folder(kept[-1]).network

    def summary(self) -> dict[str, Any]:
        """The scores of the best step."""
        best = self._best(self._held())
        return {k: v for k, v in best.items() if isinstance(v, float)} | {"step": best["step"]}

    def settings(self, name: str = ONLY) -> dict[str, Any]:
        """What the answers of the best step depend on."""
        found: dict[str, Any] = self._best(self._held())["how"].get(name, {})
        return found

    def _scored(self, part: Data, network: Network) -> tuple[Scored, float]:
        losses: Counter[str] = Counter()
        found = answers(
            network, self.tokenizer, part.task, part.dev, limit=self.limit, losses=losses
        )
        task, said = part.task.settle(part.dev, [answer for _, answer in found])
        scored = Scored(task, task.score(part.dev, said), task.detail(part.dev, said))
        return scored, losses["loss"] / max(losses["count"], 1)

    def _say(
        self, step: int, entry: dict[str, Any], found: dict[str, Scored], better: bool
    ) -> None:
        names = [_key(name, what) for name, scored in found.items() for what in scored.scores]
        shown = ", ".join(f"{name} {entry[name]:.4f}" for name in names)
        mark = " (the best so far)" if better and step else ""
        self.folder.say(f"step {step}: held-out loss {entry['loss']:.4f}, {shown}{mark}")

    def _held(self) -> list[dict[str, Any]]:
        return [entry for entry in self.folder.metrics() if entry["kind"] == "eval"]

    def _best(self, held: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The first of the highest; what was not trained yet counts only if there is no other."""
        return max(held, key=lambda entry: (entry["step"] > 0, entry[METRIC]))

    def _better(self, value: float, step: int) -> bool:
        before = [e[METRIC] for e in self._held() if 0 < e["step"] < step]
        return not before or value > max(before)

    def _keep(self, step: int, network: Network, found: dict[str, Scored]) -> None:
        target = self.folder.path / BEST / f"step-{step}"
        if self.folder.writes and not target.exists():
            target.parent.mkdir(exist_ok=True)
            scores = {_key(n, what): v for n, s in found.items() for what, v in s.scores.items()}
            save_folder(
                target,
                network,
                self.tokenizer,
                task=settings_of(found[ONLY].task) if ONLY in found else None,
                provenance={**self.about, "step": step, "scores": scores},
            )
            with suppress(OSError):
                for old in sorted(target.parent.glob("step-*"), key=_step)[:-KEPT]:
                    shutil.rmtree(old)
        self.group.wait()


def settings_of(task: Task) -> dict[str, Any]:
    """What a model folder keeps of a task."""
    return {"name": task.name, **task.how.model_dump()}


def _key(name: str, what: str) -> str:
    return f"{name}.{what}" if name else what


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
