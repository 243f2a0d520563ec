"""A step whose loss is a sum over its micro-batches: the gradient is that of one big batch.

Losses are summed over all micro-batches of all processes and divided once, by the counts of the
whole step. The mean of the means would give micro-batches with few labels too much weight.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn

from unmask.objectives.base import Objective, Sums
from unmask.train.steps.base import MicroBatch, StepResult, StepSite, clear, clipped, count


class Summed:
    """Runs each micro-batch forward and backward, and lets the gradients accumulate."""

    def __init__(self, objective: Objective) -> None:
        self.terms, self.weights = sorted(objective.terms), dict(objective.weights)

    def __call__(
        self, module: nn.Module, micro_batches: Sequence[MicroBatch], site: StepSite
    ) -> StepResult | None:
        """Accumulate the gradient of the whole step, exchange and clip it; see `Step`."""
        processes, terms = site.processes, self.terms
        counts = count(micro_batches, terms, processes)
        # DDP and FSDP average gradients over processes; times world size, the mean becomes the sum.
        divisors = {name: max(counts[name], 1) for name in terms}
        scales = {
            name: processes.world * self.weights.get(name, 1.0) / divisors[name] for name in terms
        }
        sums: Counter[str] = Counter()
        seen_terms: set[str] = set()  # terms that occur in the micro-batches of this process
        clear(module)
        rounds = len(micro_batches) if site.rounds is None else site.rounds
        for number in range(rounds):
            # Asked in every round, idle ones too: it is a collective call.
            if number and site.give_up():
                clear(module)
                return None
            # All processes exchange gradients in the last round, so one with fewer micro-batches is
            # idle in the first ones.
            if number < rounds - len(micro_batches):
                # DDP communicates in the first forward pass of a step: without this process the
                # others would hang. The result is not used.
                if not number:
                    with processes.syncing(module, False), site.casting():
                        module(micro_batches[0].batch.to(processes.device))
                continue
            micro_batch = micro_batches[number - rounds]
            # Dropout depends on the micro-batch alone, whichever process computes it and when: its
            # source made the seed from the run's seed, the step and the place in the step.
            torch.manual_seed(micro_batch.seed)
            with processes.syncing(module, number == rounds - 1), site.casting():
                batch_sums: Sums = module(micro_batch.batch.to(processes.device))
                present = [name for name in terms if name in batch_sums]
                parts = [(batch_sums[name] * scales[name]).float() for name in present]
                # Divided before the sum: what adds up over micro-batches is already the mean.
                torch.stack(parts).sum().backward()
            sums.update({name: float(batch_sums[name].detach()) for name in present})
            seen_terms.update(present)
        totals = processes.total(
            [sums[name] for name in terms] + [float(name in seen_terms) for name in terms]
        )
        # A term without a label in the whole step is omitted rather than reported as zero.
        everywhere = zip(terms, totals, totals[len(terms) :], strict=False)
        losses = {name: total / divisors[name] for name, total, occurs in everywhere if occurs}
        norm = clipped(module, site.clip)
        return StepResult(losses, self.weights, norm, int(counts["tokens"]))
