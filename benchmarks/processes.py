"""Training speed of two gloo processes with one thread each, beside one process with two threads.

    python -m benchmarks processes CORPUS

Real runs of `unmask pretrain`, in turn. The speed is the median over their steps without the first
ones. A single process with one thread is the baseline of both.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import save
from unmask.train.run_folder import read_metrics

STEPS, FIRST = 10, 3  # steps of a run; steps at its start that are not counted
SIDES = {  # processes, threads of each
    "one process, one thread": (1, 1),
    "one process, two threads": (1, 2),
    "two processes, one thread each": (2, 1),
}


@dataclass(frozen=True)
class Work:
    """A model size and a batch size."""

    size: str
    batch_tokens: int


WORKS = [
    Work("tiny", 4096),
    Work("tiny", 32_768),
    Work("mini", 4096),
    Work("mini", 16_384),
]


def speed(corpus: Path, work: Work, side: str, folder: Path) -> float:
    """Return the tokens per second of a short run."""
    count, threads = SIDES[side]
    out = folder / "run"
    command = [sys.executable, "-m"]
    if count > 1:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m"]
    command += ["unmask", "pretrain", "bert", str(corpus), "--out", str(out), "--overwrite"]
    command += ["--size", work.size, "--steps", str(STEPS), "--max-length", "128", "--no-preflight"]
    command += ["--batch-tokens", str(work.batch_tokens), "--threads", str(threads), "--set"]
    command += ["train.evaluations=0"]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ended.stderr[-2000:]}")
    steps = [e["tokens_per_second"] for e in read_metrics(out) if e["kind"] == "train"]
    return statistics.median(steps[FIRST:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks processes")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(sys.argv[2:])
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for work in WORKS:
            speeds: dict[str, list[float]] = {side: [] for side in SIDES}
            for _ in range(arguments.rounds):
                for side, seen in speeds.items():
                    seen.append(speed(arguments.corpus, work, side, Path(folder)))
                    print(f"{work}  {side:<32} {seen[-1]:10,.0f} tokens a second", flush=True)
            middle = {side: statistics.median(seen) for side, seen in speeds.items()}
            results.append({**vars(work), "tokens_a_second": middle, "rounds": speeds})
    print(f"\n| size, tokens a step | {' | '.join(SIDES)} |\n|---|{'---|' * len(SIDES)}")
    for result in results:
        cells = " | ".join(f"{value:,.0f}" for value in result["tokens_a_second"].values())
        print(f"| {result['size']}, {result['batch_tokens']:,} | {cells} |")
    save("processes", {"works": results})
