"""Runs so small that they take a fraction of a second, and what they leave behind."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.corpora import chatter, corpus_of
from unmask.data.corpus.corpus import Corpus
from unmask.jobs.pretrain import Pretrain
from unmask.system.console import Console
from unmask.train.compose import compose
from unmask.train.recipe import Recipe
from unmask.train.run import Outcome, Run, RunOptions

LENGTH, STEPS = 32, 8
TABLE: dict[str, Any] = {
    "model": {
        "size": "tiny",
        "width": 32,
        "layers": 1,
        "heads": 2,
        "inner_width": 64,
        "max_length": 64,
    },
    "data": {"held_out": 10},
    "optimizer": {"learning_rate": 1e-3},
    "schedule": {
        "steps": STEPS,
        "warmup": 0.1,
        "phases": [{"length": LENGTH, "batch_tokens": 8 * LENGTH}],
    },
    "loop": {"micro_batch_tokens": 4 * LENGTH, "precision": "fp32"},
    "evaluate": {"times": 2},
}

Start = Callable[..., Path]  # run(name, said=..., seed=1, loop={...}, resume=True) -> its folder


class Heard(Console):
    """Keeps the lines that a job reports, and the progress of its last stage."""

    def __init__(self, said: list[str] | None = None) -> None:
        self.said: list[str] = [] if said is None else said
        self.shown: list[dict[str, Any]] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def progress(self, what, unit, done, total=None, *, note="", seconds_left=None) -> None:
        stage = {"what": what, "done": done, "total": total, "note": note}
        self.shown.append({**stage, "seconds_left": seconds_left})


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    """Eighty documents of a few sentences; about a hundred words."""
    return corpus_of(tmp_path_factory.mktemp("train"), chatter(80))


def table(**changes: Any) -> dict[str, Any]:
    """The table of a small run, with some of it changed: table(loop={"log_steps": 3}, seed=1)."""
    result = json.loads(json.dumps(TABLE))
    for name, value in changes.items():
        known = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = {**result[name], **value} if known else value
    return result


def recipe(**changes: Any) -> Recipe:
    return compose(Pretrain.scope, table(**changes))


def pretrain(
    corpus: Path,
    out: Path,
    given: dict[str, Any] | None,
    *,
    said: list[str] | None = None,
    console: Console | None = None,
    **options: Any,
) -> Outcome:
    """Pre-train by a table, or by the stored recipe where there is none."""
    chosen = None if given is None else compose(Pretrain.scope, given)
    return Run(Pretrain(corpus), chosen, out, console or Heard(said), RunOptions(**options)).go()


def runner(corpus: Corpus, place: Path) -> Start:
    """Train in a folder below a place; `said` collects what is reported. No preflight."""

    def start(
        name: str = "run", *, said: list[str] | None = None, on: Corpus = corpus, **how: Any
    ) -> Path:
        changes = {key: how.pop(key) for key in list(how) if key in Recipe.model_fields}
        given = how.pop("recipe", table(**changes))
        pretrain(on.path, place / name, given, said=said, **how)
        return place / name

    return start


@pytest.fixture
def run(corpus, tmp_path) -> Start:
    return runner(corpus, tmp_path)


@pytest.fixture(scope="session")
def whole(corpus, tmp_path_factory) -> Path:
    """A run that nobody disturbed, to compare with; it may not be changed."""
    with single_threaded():
        return runner(corpus, tmp_path_factory.mktemp("whole"))("whole")


@dataclass
class Clock:
    """Time that passes only when it is looked at, or made to pass."""

    now: float = 1000.0
    tick: float = 0.02

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """In place of the machine's, which may be busy with something else at any moment."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@contextmanager
def single_threaded() -> Iterator[None]:
    """As every test is; for what is made for several of them, before one has begun."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def metrics(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [entry for line in lines if (entry := json.loads(line))["kind"] == kind]


def steps_saved(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))


def state(folder: Path, step: int) -> tuple[bytes, bytes, dict[str, Any]]:
    """Weights and optimizer to the byte, and where the run was, but for the clock."""
    at = folder / "checkpoints" / f"step-{step}"
    facts = json.loads((at / "state.json").read_text())
    del facts["seconds"], facts["before"]  # of a clock
    names = "model.safetensors", "optimizer.safetensors"
    weights, moments = ((at / name).read_bytes() for name in names)
    return weights, moments, facts
