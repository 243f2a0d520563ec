"""A step whose loss is a sum over its batches: as if they were one big batch.

The losses of all batches, on all processes, are divided by the counts of all.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn

from unmask.objectives.base import Objective, Sums
from unmask.train.steps.base import MicroBatch, StepResult, StepSite, clear, clipped, count


class Summed:
    """Run each batch, forward and back, and let the gradients add up."""

    def __init__(self, objective: Objective) -> None:
        self.terms, self.weights = sorted(objective.terms), dict(objective.weights)

    def __call__(
        self, module: nn.Module, pieces: Sequence[MicroBatch], site: StepSite
    ) -> StepResult | None:
        """See Step."""
        processes, terms = site.processes, self.terms
        counts = count(pieces, terms, processes)
        # Wrappers average the gradients of the processes, and we want their sum.
        least = {name: max(counts[name], 1) for name in terms}
        shares = {n: processes.world * self.weights.get(n, 1.0) / least[n] for n in terms}
        sums: Counter[str] = Counter()
        known: set[str] = set()  # terms that this process's batches have
        clear(module)
        rounds = len(pieces) if site.rounds is None else site.rounds
        for number in range(rounds):
            if number and site.give_up():
                clear(module)
                return None
            # Gradients are exchanged in the last round: who has fewer batches is idle at first.
            if number < rounds - len(pieces):
                if not number:  # DDP talks to all processes in the first pass of a step
                    with processes.syncing(module, False), site.casting():
                        module(pieces[0].batch.to(processes.device))
                continue
            piece = pieces[number - rounds]
            torch.manual_seed(piece.seed)  # of this batch alone, whoever computes it and when
            with processes.syncing(module, number == rounds - 1), site.casting():
                found: Sums = module(piece.batch.to(processes.device))
                own = [name for name in terms if name in found]
                parts = [(found[name] * shares[name]).float() for name in own]
                torch.stack(parts).sum().backward()
            sums.update({name: float(found[name].detach()) for name in own})
            known.update(own)
        totals = processes.total([sums[n] for n in terms] + [float(n in known) for n in terms])
        everywhere = zip(terms, totals, totals[len(terms) :], strict=False)
        losses = {name: total / least[name] for name, total, given in everywhere if given}
        norm = clipped(module, site.clip)
        return StepResult(losses, self.weights, norm, int(counts["tokens"]))
