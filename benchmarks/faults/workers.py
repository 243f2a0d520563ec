"""Two workers under torchrun, one of them killed: one restart each, the same bits in the end."""

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.faults.world import World, digest_of, newest_step, recipe
from unmask.settings import write_toml


def killed_workers(world: World, kills: int, *, seed: int = 0) -> dict[str, object]:
    """Kill a random worker of each run once it has saved; torchrun may restart only once."""
    dice = random.Random(seed)
    table = recipe(schedule={"steps": 300}, train={"save_steps": 10, "evaluations": 2})
    path = world.path / "workers.toml"
    path.write_text(write_toml(table))
    reference_run = world.path / "two"
    with _torchrun(world, path, reference_run) as launched:
        assert launched.wait() == 0
    reference = digest_of(reference_run)
    done = identical = once = ended = 0
    recovery = []
    for number in range(kills):
        out = world.path / f"worker-{number}"
        with _torchrun(world, path, out) as launched:
            while newest_step(out) < dice.choice([10, 20, 40]) and launched.poll() is None:
                time.sleep(0.01)
            time.sleep(dice.uniform(0.0, 0.5))
            rank = dice.randrange(2)
            worker = _worker(launched.pid, rank)
            if worker is None:
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
        once += (out / "log.txt").read_text().count("going on from step") == 1
        identical += (out / "model").exists() and digest_of(out) == reference
        shutil.rmtree(out)
    return {
        "kills": done,
        "ended": ended,
        "one_restart": once,
        "identical": identical,
        "median_recovery_seconds": round(statistics.median(recovery), 1) if recovery else None,
    }


def _torchrun(world: World, table: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.1", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += ["-m", "unmask", "pretrain", str(table), str(world.corpus), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--no-preflight", "--threads", "1"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=(world.path / "torchrun.txt").open("ab"),
    )


def _worker(agent: int, rank: int) -> int | None:
    """The process of a rank, among the children of torchrun."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    for child in map(int, children):
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in environment:
            return child
    return None
