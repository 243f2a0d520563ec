"""Fair timing on a noisy machine: all sides in turn, round by round; medians and ratios."""

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
    """Seconds of each side in each round, after one round that is not counted."""
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
    """A side in a process of its own, so that what one sets there does not help the other.

    `make(*arguments)` is called there, once; what it returns is called whenever this is called.
    """

    def __init__(self, make: Callable[..., Callable[..., object]], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, make, arguments), daemon=True)
        self.process.start()
        self.about = self.pipe.recv()

    def __call__(self, *arguments: object) -> None:
        """Run it there, and wait."""
        self.pipe.send(arguments)
        self.pipe.recv()

    def close(self) -> int:
        """End it; returns the most bytes that it has had in memory."""
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
    """A figure of a process; zero if it has ended or may not be looked at."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


MATRIX = 2048  # rows and columns of the product that shows what the machine can do
PRODUCTS = 10


def matrix_products() -> None:
    """A side of its own: PRODUCTS fp32 matrix products, in the same rounds as the others."""
    import torch

    a, b = torch.ones(MATRIX, MATRIX), torch.ones(MATRIX, MATRIX)
    for _ in range(PRODUCTS):
        a @ b


def gflops(seconds: list[float]) -> float:
    """What `matrix_products` reached, in GFLOP/s, at the median."""
    return PRODUCTS * 2 * MATRIX**3 / statistics.median(seconds) / 1e9


def ratio(seconds: dict[str, list[float]], ours: str, theirs: str) -> dict[str, float]:
    """How many times faster ours is: the ratio of medians, and its range over rounds."""
    rounds = [t / o for o, t in zip(seconds[ours], seconds[theirs], strict=True)]
    medians = statistics.median(seconds[theirs]) / statistics.median(seconds[ours])
    return {"median": medians, "lowest": min(rounds), "highest": max(rounds)}


def save(name: str, result: dict[str, object]) -> None:
    """Write a measurement with what is needed to understand it later."""
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
