"""A corpus, a small BERT, and the command line in processes of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden.toys import write_text

PLUGINS = Path(__file__).parent / "plugins"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SMALL = ["model.width=32", "model.layers=2", "model.heads=2", "model.inner_width=64"]
SMALL += ["model.max_length=64", "model.init_std=0.2", "loop.precision=fp32"]
TIMEOUT = 240

Command = Callable[..., subprocess.CompletedProcess[str]]


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def plugin(name: str) -> list[str]:
    return ["--plugin", str(PLUGINS / f"{name}.py")]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `corpus` and `bert/model`."""
    place = tmp_path_factory.mktemp("world")
    write_text(place / "text.txt")
    command(place, "vocab", "learn", "text.txt", "--size", "200", "--out", "words")
    lines = ["--lines", "sentences", "--workers", "1"]
    command(place, "prepare", "text.txt", "--tokenizer", "words", "--out", "corpus", *lines)
    command(place, *pretraining("bert", "mlm", "schedule.steps=60", "optimizer.learning_rate=5e-3"))
    return place


def pretraining(out: str, objective: str, *changes: str) -> list[str]:
    """Return the command of a reproducible run: an objective on sequences of 32 tokens."""
    flags = [
        "pretrain",
        "bert",
        "corpus",
        "--out",
        out,
        "--max-length",
        "32",
        "--batch-tokens",
        "512",
    ]
    flags += ["--no-preflight", "--threads", "1"]
    own = [*SMALL, f"objective.name={objective}", 'data.pairs="off"', "data.held_out=6"]
    return [*flags, *settings(*own, "evaluate.times=2", *changes)]


def command(
    place: Path, *words: str, processes: int = 1, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command of unmask in a folder; its exit code must be as expected."""
    launch = TORCHRUN if processes > 1 else []
    done = subprocess.run(
        [sys.executable, *launch, "-m", "unmask", *words],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == code, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done
