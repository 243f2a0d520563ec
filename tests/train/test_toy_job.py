"""A job of one's own gets all that a run can do, from `Run` and without a change to train/.

`python -m tests.train.test_toy_job OUT [--shard]` runs the job itself, for torchrun.
"""

import inspect
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from tests.shapes import bert_heads
from tests.train.conftest import Heard, metrics, single_threaded, state, steps_saved
from unmask.checkpoint.state import load_state
from unmask.data.batch import Batch
from unmask.model.config import ModelConfig
from unmask.model.factory import make_network
from unmask.model.shape import Shape
from unmask.objectives.base import Objective, Term
from unmask.system.errors import FolderError, Stopped
from unmask.system.settings import Settings
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.compose import Scope, compose
from unmask.train.evaluator import Evaluator
from unmask.train.ingredients import Digest, Ingredients
from unmask.train.run import Run, RunOptions
from unmask.train.sources import LazyMicroBatch


class NextNumber(Objective):  # after each number, predict the next
    def describe(self):
        return [Term("next", "numbers", choices=15)]

    def forward(self, network, batch, companions, each=False):
        states = network.encode(batch).flatten(0, 1)
        return {"next": network.token_loss(states, batch.labels["next"])}


class Counting:  # the source: rows that count by one, two or three, modulo ten
    steps_per_epoch = 10.0

    def plan_step(self, cursor, step, progress):
        first = cursor.get("piece", 0)
        lazy = [LazyMicroBatch(partial(self.sample, 8, i), i) for i in range(first, first + 4)]
        return lazy, {"piece": first + 4}

    def sample(self, count, number=0):
        drawn = torch.Generator().manual_seed(number)
        start, by = (torch.randint(1, n, (count, 1), generator=drawn) for n in (11, 4))
        ids = 5 + (start + by * torch.arange(9)) % 10  # [count, 9]
        index, zeros = torch.arange(8).repeat(count, 1), torch.zeros(count, 8, dtype=torch.long)
        places = torch.arange(count), zeros[:, 0], zeros[:, 0] + 8
        batch = Batch({"tokens": ids[:, :8], "segments": zeros}, index, zeros, *places)
        return batch.with_labels(8 * count, "next", next=ids[:, 1:].flatten())


class Count:  # the job
    scope: ClassVar = Scope("count", ["seed", "optimizer", "schedule", "loop"])

    def resolve(self, recipe, site):
        return recipe

    def build(self, recipe, site):
        tokenizer = Tokenizer(Vocabulary([*SPECIALS, *map(str, range(10))]))
        shape = {"width": 32, "layers": 2, "heads": 2, "inner_width": 64, "max_length": 8}
        config = ModelConfig(vocab_size=15, causal=True, init_std=0.1, **shape)
        network = make_network(Shape.of(config, bert_heads(pooler=False, tokens=True)), recipe.seed)
        told, tokens = Digest("numbers", "1 2 3"), Tokenizers(tokenizer, 8)
        return Ingredients(tokens, network, NextNumber(Settings()), Counting(), Evaluator(), told)


STEPS = 60
TABLE = {
    "optimizer": {"learning_rate": 1e-2},
    "schedule": {"steps": STEPS},
    "loop": {"precision": "fp32", "save_steps": 20},
}
CLOSE = 1e-4


def count(out: Path, *, console=None, schedule=None, **options) -> Path:
    table = TABLE if schedule is None else {**TABLE, "schedule": schedule}
    Run(Count(), compose(Count.scope, table), out, console, RunOptions(**options)).go()
    return out


class After(Heard):
    """Sends this process a signal after one step of a run."""

    def __init__(self, step, number):
        super().__init__()
        self.step, self.number = step, number

    def progress(self, what, unit, done, total=None, **more):
        if what == "training" and done == self.step:
            os.kill(os.getpid(), self.number)


def killed(out: Path, step: int) -> None:
    """Count in a process of its own, which is killed without notice after a step."""
    child = os.fork()
    if child == 0:
        try:
            count(out, console=After(step, signal.SIGKILL))
        finally:
            os._exit(77)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed."""
    with single_threaded():
        return count(tmp_path_factory.mktemp("toy") / "whole")


def test_the_job_is_small():
    lines = [line for part in (NextNumber, Counting, Count) for line in source(part)]
    assert 0 < len(lines) <= 40


def source(part) -> list[str]:
    return [line for line in inspect.getsource(part).splitlines() if line.strip()]


def test_the_job_learns(whole):
    losses = [entry["next"] for entry in metrics(whole)]
    assert len(losses) == STEPS
    assert losses[0] > 2.0
    assert losses[-1] < 1.2  # the first step of a row is not known: about 1.1 / 8 at the least


def test_after_a_kill_the_job_goes_on_to_the_same_bits(whole, tmp_path):
    killed(tmp_path / "run", 50)
    assert steps_saved(tmp_path / "run") == [20, 40]
    resumed = count(tmp_path / "run", resume=True)
    assert state(resumed, STEPS) == state(whole, STEPS)
    weights = "model/model.safetensors"
    assert (resumed / weights).read_bytes() == (whole / weights).read_bytes()
    assert [entry["step"] for entry in metrics(resumed)] == list(range(1, STEPS + 1))


def test_restarted_by_torchrun_the_job_goes_on_without_being_told(whole, tmp_path, monkeypatch):
    killed(tmp_path / "run", 50)
    with pytest.raises(FolderError, match="already holds a run"):
        count(tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    console = Heard()
    restarted = count(tmp_path / "run", console=console)
    assert "resuming from step 40" in console.said
    assert state(restarted, STEPS) == state(whole, STEPS)


def test_minutes_end_the_job_also_after_a_stop(tmp_path, clock):
    """Twelve seconds, on a clock that goes on by about a third of one at each look."""
    clock.tick, schedule = 0.35, {"minutes": 0.2}
    with pytest.raises(Stopped):
        count(tmp_path / "run", console=After(10, signal.SIGTERM), schedule=schedule)
    resumed = count(tmp_path / "run", schedule=schedule, resume=True)
    seconds = [entry["seconds"] for entry in metrics(resumed)]
    assert len(seconds) > 20
    assert sorted(seconds) == seconds
    assert seconds[-2] < 12.0 <= seconds[-1] < 12.0 + 5 * clock.tick


def test_the_job_is_checked_before_its_first_step(tmp_path):
    console = Heard()
    count(tmp_path / "run", console=console, schedule={"steps": 1}, check=True)
    assert any("memorising one batch" in line for line in console.said)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--shard"]], ids=["DDP", "shard"])
def test_two_processes_agree_with_one(whole, tmp_path, flags):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", "-m", "tests.train.test_toy_job", str(tmp_path / "two"), *flags]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    facts = (tmp_path / "two" / "facts.json").read_text()
    assert '"processes": 2' in facts
    assert f'"shard": {"true" if flags else "false"}' in facts
    for alone, shared in zip(metrics(whole), metrics(tmp_path / "two"), strict=True):
        for name in ("next", "grad_norm", "tokens"):
            assert shared[name] == pytest.approx(alone[name], abs=CLOSE)
    one, two = (load_state(f / "checkpoints" / f"step-{STEPS}") for f in (whole, tmp_path / "two"))
    found = two.network.state_dict()
    for name, tensor in one.network.state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=CLOSE, rtol=0)
    assert one.facts["cursor"] == two.facts["cursor"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    count(Path(sys.argv[1]), shard="--shard" in sys.argv)
