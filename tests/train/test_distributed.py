"""Several processes: what they learn is what one learns, and the death of one is survived."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.conftest import LENGTH, metrics, runner, single_threaded, state, steps_saved, table
from unmask.checkpoint.state import load_state
from unmask.system.settings import write_toml

pytestmark = pytest.mark.slow

LONG = {"schedule": {"steps": 50}, "loop": {"save_steps": 5}, "evaluate": {"times": 5}}
CLOSE = 1e-4


def started(corpus, place: Path, name: str, *flags: object, torchrun=(), **changes):
    """`torchrun -m unmask pretrain` with two processes, in a process group of its own."""
    made = place / f"{name}.toml"
    made.write_text(write_toml(table(**changes)))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *torchrun]
    verb = ["-m", "unmask", "pretrain", made, corpus.path, "--out", place / name, "--no-preflight"]
    return subprocess.Popen(
        [sys.executable, *map(str, [*launch, *verb, *flags])],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finished(process, *, within: float = 120) -> str:
    """What it said; it has ended well, and in time."""
    try:
        said, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        for rank in range(2):  # workers are in sessions of their own
            with suppress(LookupError):
                os.kill(worker(process.pid, rank), signal.SIGKILL)
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        pytest.fail(f"still at work after {within} s:\n{said}")
    assert process.returncode == 0, said
    return said


def worker(agent: int, rank: int) -> int:
    """The process that torchrun started as this rank."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(parent) == agent and f"RANK={rank}".encode() in variables:
            return int(entry.name)
    raise LookupError(f"no worker of rank {rank}")


@pytest.fixture(scope="module")
def one(corpus, tmp_path_factory):
    """Fifty steps by one process."""
    with single_threaded():
        return runner(corpus, tmp_path_factory.mktemp("one"))("one", **LONG)


@pytest.fixture(scope="module")
def two(corpus, tmp_path_factory):
    """The same fifty steps by two, undisturbed."""
    place = tmp_path_factory.mktemp("two")
    finished(started(corpus, place, "two", **LONG))
    return place / "two"


def close(one: Path, other: Path, kind: str, names: list[str]) -> None:
    pairs = list(zip(metrics(one, kind), metrics(other, kind), strict=True))
    assert pairs
    for alone, shared in pairs:
        for name in names:
            assert shared[name] == pytest.approx(alone[name], abs=CLOSE), (name, alone["step"])


def test_two_processes_find_the_losses_of_one(one, two):
    assert len(metrics(two)) == 50
    close(one, two, "train", ["mlm", "pair", "grad_norm", "learning_rate", "tokens"])
    close(one, two, "eval", ["mlm", "mlm_accuracy", "pair", "unigram_loss", "unigram_accuracy"])


def test_two_processes_end_with_the_weights_of_one(one, two):
    alone, shared = (load_state(f / "checkpoints" / "step-50") for f in (one, two))
    for name, tensor in alone.network.state_dict().items():
        torch.testing.assert_close(shared.network.state_dict()[name], tensor, atol=1e-3, rtol=0)
    assert alone.facts["cursor"] == shared.facts["cursor"]


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.full)])
def test_a_killed_worker_costs_one_restart_and_nothing_else(corpus, two, tmp_path, rank):
    process = started(corpus, tmp_path, "run", torchrun=["--max-restarts", "1"], **LONG)
    folder = tmp_path / "run"
    until = time.monotonic() + 60
    while not [step for step in steps_saved(folder) if step >= 10]:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.005)
    os.kill(worker(process.pid, rank), signal.SIGKILL)
    said = finished(process)
    assert said.count("resuming from step") == 1, said
    assert [entry["step"] for entry in metrics(folder)] == list(range(1, 51))
    assert state(folder, 50) == state(two, 50)


def test_shared_weights_learn_what_whole_ones_do(corpus, one, tmp_path):
    short = {**LONG, "schedule": {"steps": 10}}
    with single_threaded():
        alone = runner(corpus, tmp_path)("alone", **short)
    finished(started(corpus, tmp_path, "shard", "--shard", **short))
    close(alone, tmp_path / "shard", "train", ["mlm", "pair", "grad_norm"])
    close(alone, tmp_path / "shard", "eval", ["mlm", "pair"])
    whole, shared = (
        load_state(tmp_path / n / "checkpoints" / "step-10") for n in ("alone", "shard")
    )
    assert whole.optimizer.keys() == shared.optimizer.keys()
    for name, tensor in whole.network.state_dict().items():
        torch.testing.assert_close(shared.network.state_dict()[name], tensor, atol=1e-3, rtol=0)


@pytest.mark.full
def test_shared_weights_are_resumed(corpus, tmp_path):
    """Stopped by a signal to one worker and resumed, as if it had never stopped."""
    short = {"schedule": {"steps": 20}, "loop": {"save_steps": 5}, "evaluate": {"times": 0}}
    finished(started(corpus, tmp_path, "whole", "--shard", **short))
    process = started(corpus, tmp_path, "run", "--shard", **short)
    folder = tmp_path / "run"
    while not steps_saved(folder):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
    os.kill(worker(process.pid, 1), signal.SIGTERM)
    process.communicate(timeout=60)
    finished(started(corpus, tmp_path, "run", "--shard", "--resume", **short))
    assert state(folder, 20) == state(tmp_path / "whole", 20)


def test_processes_with_nothing_to_evaluate_do_their_part(corpus, tmp_path):
    """One row is evaluated: the second process has none."""
    few = {"schedule": {"steps": 2}, "evaluate": {"times": 1, "tokens": 1}}
    with single_threaded():
        alone = runner(corpus, tmp_path)("alone", **few)
    finished(started(corpus, tmp_path, "two", **few), within=40)
    close(alone, tmp_path / "two", "eval", ["mlm", "pair", "unigram_loss"])


def batches_of(rows: int, steps: int) -> dict[str, Any]:
    phases = [{"length": LENGTH, "batch_tokens": rows * LENGTH}]
    return {"schedule": {"steps": steps, "phases": phases}, "evaluate": {"times": 0}}


@pytest.mark.parametrize("rows", [7, 9])
def test_sequences_that_two_cannot_share_evenly_are_learned_as_by_one(corpus, tmp_path, rows):
    """Micro-batches of unequal sizes; nine sequences are three of three, unless two share them."""
    odd = batches_of(rows, 5)
    with single_threaded():
        alone = runner(corpus, tmp_path)("alone", **odd, loop={"micro_batches": 2})
    said = finished(started(corpus, tmp_path, "two", **odd))
    assert "loop.micro_batches is raised from 1 to 2" in said
    assert len(metrics(tmp_path / "two")) == 5
    close(alone, tmp_path / "two", "train", ["mlm", "pair", "grad_norm", "tokens"])


def test_unequal_numbers_of_micro_batches_are_learned_as_by_one(corpus, tmp_path):
    """Three micro-batches of four sequences: the second process computes one of them."""
    odd = batches_of(12, 5)
    with single_threaded():
        alone = runner(corpus, tmp_path)("alone", **odd, loop={"micro_batches": 3})
    finished(started(corpus, tmp_path, "two", **odd, loop={"micro_batches": 3}))
    close(alone, tmp_path / "two", "train", ["mlm", "pair", "grad_norm", "tokens"])


def test_fewer_sequences_than_processes_are_refused(corpus, tmp_path):
    process = started(corpus, tmp_path, "run", **batches_of(1, 5))
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    says = "error: recipe [[schedule.phases]]: a step has 1 sequence, but 2 micro-batches. Raise"
    assert says in said
