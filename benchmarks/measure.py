"""Timing on a noisy machine: all sides in turn, round by round; medians and ratios.

A busy moment of the machine then affects all sides, and the median ignores it.
"""

import json
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

from unmask.train.run_folder import processor

RESULTS = Path("results")  # not part of the repository


def interleaved(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each side in each round, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            begun = time.perf_counter()
            run()
            spent = time.perf_counter() - begun
            if number:
                seconds[name].append(spent)
            print(f"round {number}  {name:<24} {spent:8.3f} s", flush=True)
    return seconds


class Apart:
    """A side in a process of its own, so that its settings (threads, memory) do not affect others.

    `make(*arguments)` is called there once. Calling this object calls what `make` returned.
    """

    def __init__(self, make: Callable[..., Callable[..., object]], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, make, arguments), daemon=True)
        self.process.start()
        self.about = self.pipe.recv()

    def __call__(self, *arguments: object) -> None:
        """Run one round in the process and wait for its end."""
        self.pipe.send(arguments)
        self.pipe.recv()

    def close(self) -> int:
        """End the process and return its peak memory in bytes."""
        self.pipe.send(None)
        peak = self.pipe.recv()
        self.process.join()
        return int(peak)


def _serve(pipe: Connection, make: Callable[..., Callable[..., object]], arguments: tuple) -> None:
    side = make(*arguments)
    pipe.send(getattr(side, "about", None))
    while (given := pipe.recv()) is not None:
        side(*given)
        pipe.send(None)
    pipe.send(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def kilobytes(pid: int, file: str, name: str) -> int:
    """Read a value in kB from /proc; zero if the process has ended or may not be read."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


MATRIX = 2048  # rows and columns of each matrix
PRODUCTS = 10


def matrix_products() -> None:
    """Compute PRODUCTS fp32 matrix products: a side that shows what the machine can do."""
    import torch

    a, b = torch.ones(MATRIX, MATRIX), torch.ones(MATRIX, MATRIX)
    for _ in range(PRODUCTS):
        a @ b


def gflops(seconds: list[float]) -> float:
    """Return the median speed of `matrix_products` in GFLOP/s."""
    return PRODUCTS * 2 * MATRIX**3 / statistics.median(seconds) / 1e9


def ratio(seconds: dict[str, list[float]], ours: str, theirs: str) -> dict[str, float]:
    """Return the speed-up of `ours`: the ratio of medians, and the range of the rounds' ratios."""
    rounds = [t / o for o, t in zip(seconds[ours], seconds[theirs], strict=True)]
    medians = statistics.median(seconds[theirs]) / statistics.median(seconds[ours])
    return {"median": medians, "lowest": min(rounds), "highest": max(rounds)}


def save(name: str, result: dict[str, object]) -> None:
    """Write a measurement as JSON, with date, machine and versions."""
    about = {
        "benchmark": name,
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} x {processor()}",
        "versions": {p: version(p) for p in ("unmask", "torch", "tokenizers", "transformers")},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(about | result, indent=2) + "\n")
    print(f"written to {path}")
