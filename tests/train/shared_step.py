"""Two steps of an objective by one process or, under torchrun, by several: losses and gradients.

python -m tests.train.shared_step CASE SIZES DDP|SHARD FILE
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from tests.conftest import tiny_network
from tests.objectives.conftest import around, batch_of
from unmask.model.shape import VectorConfig
from unmask.objectives.base import Objective, Term
from unmask.system.distributed import full_tensor, join_processes
from unmask.system.settings import Settings
from unmask.train.steps import step_for
from unmask.train.steps.base import MicroBatch, StepSite, TrainingModule

TEXTS = [around([7 + i, 8 + i], [9 + i] * (1 + i % 4)) for i in range(12)]


class Turns(Objective):
    """A batch uses one of two heads, and an own parameter if its first text is an even one."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.heat = nn.Parameter(torch.tensor([2.0]))

    def describe(self) -> list[Term]:
        return [Term("turns", "texts")]

    def forward(self, network: Any, batch: Any, companions: Any, each: bool = False) -> Any:
        turn = int(batch.labels["turn"][0]) % 2
        states = network.states_for(f"head{turn}", batch, places=batch.begins)
        loss = network.heads[f"head{turn}"](states).square().sum()
        return {"turns": loss if turn else loss * self.heat.sum()}


class Pairs(Objective):
    """The first text of each record must find the second one among all."""

    coupled = True
    couples: ClassVar[Sequence[str]] = ("side",)

    def describe(self) -> list[Term]:
        return [Term("turns", "pairs")]

    def encode(self, network: Any, batch: Any) -> Any:
        states = network.states_for("head0", batch, places=batch.begins)
        return network.heads["head0"](states)

    def couple(self, vectors: Any, batch: Any) -> Any:
        side = batch.labels["side"]
        scores = vectors[side == 0] @ vectors[side == 1].T
        right = torch.arange(len(scores))
        return {"turns": F.cross_entropy(scores, right, reduction="sum")}


class Unused(Pairs):
    """With a parameter that `couple` does not use."""

    def __init__(self, config: Settings) -> None:
        super().__init__(config)
        self.heat = nn.Parameter(torch.tensor([2.0, 1.0]))


CASES = {
    "turns": (Turns, 2),
    "pairs": (lambda: Pairs(Settings()), 1),
    "unused": (lambda: Unused(Settings()), 1),
    "idle head": (lambda: Pairs(Settings()), 2),
}


def pieces(sizes: Sequence[int]) -> list[MicroBatch]:
    """Batches with these numbers of records, each of two texts."""
    found, at = [], 0
    for number, size in enumerate(sizes):
        count = torch.arange(2 * size)
        batch = replace(
            batch_of(TEXTS[2 * at : 2 * (at + size)], row_length=24),
            labels={"side": count % 2, "turn": torch.tensor([number])},
            record=count // 2,
            counts={"turns": size},
        )
        found.append(MicroBatch(batch, seed=number))
        at += size
    return found


def main(case: str, sizes: str, how: str, out: Path) -> None:
    make, heads = CASES[case]
    torch.set_num_threads(1)
    config = {f"head{i}": VectorConfig(width=5) for i in range(heads)}
    network = tiny_network(config, dropout=0.0, attention_dropout=0.0)
    module = TrainingModule(network, make()).train()
    parts = pieces([int(size) for size in sizes.split(",")])
    with join_processes() as own:
        shard = how == "SHARD" and own.world > 1
        wrapped = own.wrap(module, list(network.blocks()), shard=shard)
        step = step_for(module.objective, shard=shard)
        rounds = -(-len(parts) // own.world)
        for _ in range(2):
            site = StepSite(own, rounds=rounds)
            result = step(wrapped, parts[own.rank :: own.world], site)
        assert result is not None
        found = {}
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, f"{name} has no gradient"
            found[name] = full_tensor(parameter.grad).contiguous()
        found["loss"] = torch.tensor(result.loss)
        found["norm"] = torch.tensor(result.norm)
        if own.first:
            save_file(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]))
