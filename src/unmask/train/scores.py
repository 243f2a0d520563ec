"""The held-out scores of a fine-tuning run: measured, told, the best one kept, drawn."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.errors import FolderError
from unmask.model.network import Network
from unmask.tasks.base import Detail, Task, answers
from unmask.text.tokenizer import Tokenizer
from unmask.train.course import Position
from unmask.train.distributed import Processes
from unmask.train.run import RunFolder

BEST = "best"
KEPT = 2  # of the best so far: the newest may belong to steps that a crash takes back


class Scores:
    """Answers on held-out records, with the task's own metrics."""

    def __init__(
        self,
        folder: RunFolder,
        task: Task,
        records: Sequence[Any],
        tokenizer: Tokenizer,
        group: Processes,
        *,
        limit: int,
        patience: int,
        about: dict[str, Any],
        drawn: Callable[[Task, dict[str, float], Detail], None],
    ) -> None:
        self.folder, self.task, self.records, self.tokenizer = folder, task, records, tokenizer
        self.group, self.limit, self.patience = group, limit, patience
        self.about, self.drawn = about, drawn
        self.found: dict[str, float] = {}

    def __call__(self, position: Position, network: Network) -> dict[str, Any]:
        """One evaluation, told, and kept if it is the best."""
        losses: Counter[str] = Counter()
        found = answers(
            network, self.tokenizer, self.task, self.records, limit=self.limit, losses=losses
        )
        settled, said = self.task.settle(self.records, [answer for _, answer in found])
        scores = settled.score(self.records, said)
        loss = losses["loss"] / max(losses["count"], 1)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        better = self._better(scores[self.task.metric], position.step)
        mark = " (the best so far)" if better and position.step else ""
        self.folder.say(f"step {position.step}: held-out loss {loss:.4f}, {shown}{mark}")
        if better:
            self.found = scores
            self._keep(position.step, network, settled, scores)
            self.drawn(settled, scores, settled.detail(self.records, said))
        return {"loss": loss, **scores, "tokens": position.tokens, "how": _settings(settled)}

    def enough(self) -> bool:
        """Has there been no better one for as long as patience lasts?"""
        held = self._held()
        if not self.patience or not held:
            return False
        return len(held) - 1 - held.index(self._best(held)) >= self.patience

    def final(self) -> Network:
        """The network with the best scores."""
        best = self._best(self._held())
        path = self.folder.path / BEST / f"step-{best['step']}"
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

    def settings(self) -> dict[str, Any]:
        """What the answers of the best step depend on."""
        found: dict[str, Any] = self._best(self._held())["how"]
        return found

    def _held(self) -> list[dict[str, Any]]:
        return [entry for entry in self.folder.metrics() if entry["kind"] == "eval"]

    def _best(self, held: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The first of the highest; what was not trained yet counts only if there is no other."""
        return max(held, key=lambda entry: (entry["step"] > 0, entry[self.task.metric]))

    def _better(self, value: float, step: int) -> bool:
        before = [e[self.task.metric] for e in self._held() if 0 < e["step"] < step]
        return not before or value > max(before)

    def _keep(self, step: int, network: Network, task: Task, scores: dict[str, float]) -> None:
        target = self.folder.path / BEST / f"step-{step}"
        if self.folder.writes and not target.exists():
            target.parent.mkdir(exist_ok=True)
            save_folder(
                target,
                network,
                self.tokenizer,
                task=_settings(task),
                provenance={**self.about, "step": step, "scores": scores},
            )
            with suppress(OSError):
                for old in sorted(target.parent.glob("step-*"), key=_step)[:-KEPT]:
                    shutil.rmtree(old)
        self.group.wait()


def _settings(task: Task) -> dict[str, Any]:
    return {"name": task.name, **task.how.model_dump()}


def _step(path: Any) -> int:
    return int(path.name.removeprefix("step-"))
