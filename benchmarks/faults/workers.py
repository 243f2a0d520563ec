"""Two workers under torchrun, one of them killed: one restart, and bit-identical final weights."""

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.world import WORDS, World, digest_of, newest_step, recipe, run_here
from unmask.system.settings import write_toml

SHORT = ["loop.save_steps=10", "loop.precision=fp32", "schedule.steps=200", "evaluate.times=2"]


def commands(world: World) -> dict[str, list[str]]:
    """Write data and return the command of a short run for each kind of job, with dropout."""
    table = world.path / "workers.toml"
    table.write_text(write_toml(recipe(schedule={"steps": 300}, loop={"save_steps": 10})), "utf-8")
    encoder = world.path / "undisturbed" / "model"
    if not encoder.exists():
        run_here(world.corpus, encoder.parent)
    dice, pairs = random.Random(0), world.path / "pairs"
    pairs.mkdir(exist_ok=True)
    for part, count in (("train", 80), ("val", 16)):
        texts = [dice.choices(WORDS, k=dice.randint(2, 8)) for _ in range(count)]
        lines = [f"{' '.join(text)}\t{text[0][0] < 'f'}\n" for text in texts]
        (world.path / f"{part}.tsv").write_text("text\tlabel\n" + "".join(lines), "utf-8")
        sides = {"xx": texts, "yy": [text[::-1] for text in texts]}
        for side, own in sides.items():
            spelled = "".join(" ".join(text) + "\n" for text in own)
            (pairs / f"{part}.{side}").write_text(spelled, "utf-8")
    labelled = ["--train", str(world.path / "train.tsv"), "--dev", str(world.path / "val.tsv")]
    shape = ["model.width=32", "model.layers=1", "model.heads=2", "model.inner_width=64"]
    shape += ["tokenizer.size=120", "task.search.longest=12"]
    return {
        "pretrain": ["pretrain", str(table), str(world.corpus)],
        "finetune": ["finetune", "classify", str(encoder), *labelled, *_set(SHORT)],
        "translate": [
            *("translate", "train", str(pairs), "--from", "xx", "--to", "yy"),
            *_set([*SHORT, *shape]),
        ],
    }


def _set(changes: Sequence[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def killed_workers(
    world: World, kills: int, *, job: str = "pretrain", seed: int = 0
) -> dict[str, object]:
    """Kill a random worker of each run after a checkpoint; torchrun may restart only once."""
    dice, command = random.Random(seed), commands(world)[job]
    reference_run = world.path / f"two-{job}"
    with _torchrun(world, command, reference_run) as launched:
        assert launched.wait() == 0, f"see {world.path / 'torchrun.txt'}"
    reference = digest_of(reference_run)
    done = identical = once = ended = 0
    recovery = []
    for number in range(kills):
        out = world.path / f"worker-{number}"
        with _torchrun(world, command, out) as launched:
            while newest_step(out) < dice.choice([10, 20, 40]) and launched.poll() is None:
                time.sleep(0.01)
            time.sleep(dice.uniform(0.0, 0.5))
            rank = dice.randrange(2)
            worker = _worker(launched.pid, rank)
            if worker is None:  # the run has ended before the kill: it does not count
                launched.wait()
                shutil.rmtree(out)
                continue
            before, struck = newest_step(out), time.monotonic()
            os.kill(worker, signal.SIGKILL)
            done += 1
            while newest_step(out) <= before and launched.poll() is None:
                time.sleep(0.02)
            recovery.append(time.monotonic() - struck)
            ended += launched.wait() == 0
        once += (out / "log.txt").read_text("utf-8").count("resuming from step") == 1
        identical += (out / "model").exists() and digest_of(out) == reference
        shutil.rmtree(out)
    return {
        "kills": done,
        "ended": ended,
        "one_restart": once,
        "identical": identical,
        "median_recovery_seconds": round(statistics.median(recovery), 1) if recovery else None,
    }


def _torchrun(world: World, words: Sequence[str], out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.1", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "-m", "unmask", *words, "--out", str(out), "--no-preflight", "--threads", "1"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=(world.path / "torchrun.txt").open("ab"),
    )


def _worker(agent: int, rank: int) -> int | None:
    """Return the process id of a rank, among the children of torchrun."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    for child in map(int, children):
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if f"RANK={rank}".encode() in environment:
            return child
    return None
