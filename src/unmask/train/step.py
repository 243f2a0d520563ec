"""Batches -> one step of the optimizer, as if they were one big batch.

The losses of all batches, on all processes, are divided by the counts of all; a step whose loss or
gradient is not finite is not taken.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from unmask.data.batches import Batch
from unmask.errors import SettingsError
from unmask.model.network import Network
from unmask.objectives.base import Objective, Sums
from unmask.train.distributed import Processes, whole

Precision = Literal["fp32", "bf16"]


class Trainee(nn.Module):
    """A network and what it is to learn, as one module, so that wrappers see one call."""

    def __init__(self, network: Network, objective: Objective) -> None:
        super().__init__()
        self.network, self.objective = network, objective

    def forward(self, batch: Batch) -> Sums:
        """Summed losses."""
        return self.objective(self.network, batch)


@dataclass(frozen=True)
class Piece:
    """A batch of a step, and the seed of its dropout."""

    batch: Batch
    seed: int


@dataclass(frozen=True)
class Report:
    """What a step did."""

    losses: dict[str, float]  # mean of each term
    norm: float  # of the gradient, before it was clipped
    tokens: int  # real ones, over all processes
    taken: bool  # False: something was not finite, and the weights are as before

    @property
    def loss(self) -> float:
        """The sum of the terms."""
        return sum(self.losses.values())


def take_step(
    module: nn.Module,
    pieces: Sequence[Piece],
    optimizer: Optimizer,
    processes: Processes,
    *,
    terms: Sequence[str],
    clip: float,
    precision: Precision = "fp32",
    rounds: int | None = None,
    give_up: Callable[[], bool] = lambda: False,
) -> Report | None:
    """Run all batches, add up their gradients, clip, and move the weights.

    `terms` are the losses that the objective may return. `rounds` is the most batches that any
    process has: `give_up` is asked as often on each, between two rounds, because a step of a large
    network takes longer than someone who wants to stop will wait. Then nothing is changed, and
    None returned.
    """
    counts = _counts(pieces, terms, processes)
    terms = sorted(terms)
    sums: Counter[str] = Counter()
    given: set[str] = set()  # terms that this process's batches have
    optimizer.zero_grad(set_to_none=True)
    rounds = len(pieces) if rounds is None else rounds
    lower, device = precision == "bf16", processes.device
    casting = torch.autocast(device.type, dtype=torch.bfloat16, enabled=lower)
    for number in range(rounds):
        if number and give_up():
            return None
        # A process with fewer batches is idle at first: all exchange gradients in the last round.
        if number < rounds - len(pieces):
            if not number:  # DDP talks to all processes in the first pass of a step: none may miss
                with processes.syncing(module, False), casting:
                    module(pieces[0].batch.to(device))
            continue
        piece = pieces[number - rounds]
        torch.manual_seed(piece.seed)  # of this batch alone, whoever computes it and when
        with processes.syncing(module, number == rounds - 1), casting:
            found = module(piece.batch.to(device))
            # Wrappers average the gradients of the processes, and we want their sum.
            shares = {n: processes.world / max(counts[n], 1) for n in terms if n in found}
            parts = [(found[name] * share).float() for name, share in shares.items()]
            torch.stack(parts).sum().backward()
        sums.update({name: float(found[name].detach()) for name in shares})
        given.update(shares)
    totals = processes.total([sums[name] for name in terms] + [float(n in given) for n in terms])
    losses = {
        name: total / max(counts[name], 1)
        for name, total, known in zip(terms, totals, totals[len(terms) :], strict=False)
        if known
    }
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = float(whole(clip_grad_norm_(parameters, clip)))
    taken = math.isfinite(norm) and all(map(math.isfinite, losses.values()))
    if taken:
        optimizer.step()
    return Report(losses, norm, int(counts["tokens"]), taken)


def _counts(
    pieces: Sequence[Piece], terms: Sequence[str], processes: Processes
) -> dict[str, float]:
    """How many answers of each term, and how many tokens, there are in the whole step."""
    counts: Counter[str] = Counter()
    for piece in pieces:
        counts.update({**piece.batch.counts, "tokens": piece.batch.real})
    names = [*sorted(terms), "tokens"]
    return dict(zip(names, processes.total([counts[name] for name in names]), strict=True))


def choose_precision(wanted: str, device: torch.device) -> Precision:
    """Choose bf16 where the hardware has it and it works, unless one of the two is asked for."""
    if wanted == "fp32" or (wanted == "auto" and device.type == "cpu" and not _has_bf16()):
        return "fp32"
    if device.type == "cuda":
        return "bf16" if wanted == "bf16" or torch.cuda.is_bf16_supported() else "fp32"
    if bf16_works():
        return "bf16"
    if wanted == "auto":
        return "fp32"
    raise SettingsError(
        "precision is bf16, but products in bf16 end with an illegal instruction on this machine: "
        "its CPU reports units (AMX) that the system does not let programs use. Set precision to "
        "fp32, or set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16."
    )


def _has_bf16() -> bool:
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


@cache
def bf16_works() -> bool:
    """Try a product in bf16, in a child process where it might kill the process.

    Some virtual machines report AMX without letting programs use it.
    """
    if not getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)():
        return True
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # the threads of the parent are not here
        x = torch.ones(64, 64, dtype=torch.bfloat16)
        code = 0 if float((x @ x).sum()) == 64.0**3 else 1
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0
