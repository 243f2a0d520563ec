"""NaN and infinity in states, losses and gradients at random steps: no checkpoint has them."""

import math
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.faults.world import STEPS, World, recipe, run_here
from unmask.model.network import Network
from unmask.objectives.base import Sums
from unmask.objectives.mlm import MaskedLM
from unmask.system.console import Console
from unmask.system.errors import UserError


class Heard(Console):
    """A console that keeps the lines of a run."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        """Keep a line that a run reports."""
        self.said.append(line)


KINDS = ("states", "loss", "gradient", "infinite", "bf16", "rate")


def injections(world: World, count: int, *, seed: int = 0) -> dict[str, object]:
    """Run `count` times, each with one poisoned step, and search all checkpoints for bad values."""
    dice = random.Random(seed)
    finished = stopped = left_out = poisoned = 0
    for number in range(count):
        kind, step = KINDS[number % len(KINDS)], dice.randrange(STEPS)
        out = world.path / f"poisoned-{number}"
        loop = {"keep_checkpoints": 50, "save_steps": 1, "max_skipped_steps": 3}
        table = recipe(loop=loop | ({"precision": "bf16"} if kind == "bf16" else {}))
        # With this learning rate, training diverges without an injected value.
        if kind == "rate":
            table = recipe(loop=loop, optimizer={"learning_rate": 1e20})
        heard = Heard()
        try:
            with _poison(kind, step):
                run_here(world.corpus, out, table, console=heard, resume=False)
            finished += 1
        except UserError:
            stopped += 1
        left_out += any("skipped" in line for line in heard.said)
        poisoned += _count_poisoned(out)
        shutil.rmtree(out)
    return {
        "injections": count,
        "finished": finished,
        "stopped": stopped,
        "left_out": left_out,
        "poisoned_checkpoints": poisoned,
    }


@contextmanager
def _poison(kind: str, step: int) -> Iterator[None]:
    """Put a bad value into one training step while the block runs."""
    read = MaskedLM.read
    calls = 0

    def spoiled(self: MaskedLM, network: Network, states: Tensor, batch, **how) -> Sums:  # noqa: ANN001, ANN003
        nonlocal calls
        now = network.training and calls == 2 * step  # a step has two micro-batches
        calls += network.training
        if not now or kind == "rate":
            return read(self, network, states, batch, **how)
        if kind == "states":
            states = states * math.nan
        sums = read(self, network, states, batch, **how)
        if kind in ("loss", "bf16"):
            sums["mlm"] = sums["mlm"] * math.nan
        if kind == "infinite":
            sums["mlm"] = sums["mlm"] * math.inf
        if kind == "gradient":
            sums["mlm"].register_hook(lambda gradient: gradient * math.nan)
        return sums

    MaskedLM.read = spoiled  # type: ignore[method-assign]
    try:
        yield
    finally:
        MaskedLM.read = read  # type: ignore[method-assign]


def _count_poisoned(out: Path) -> int:
    files = [*out.glob("checkpoints/*/*.safetensors"), *out.glob("model/*.safetensors")]
    return sum(
        not all(bool(torch.isfinite(tensor).all()) for tensor in load_file(file).values())
        for file in files
    )
