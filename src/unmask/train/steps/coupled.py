"""A step whose loss couples all its texts, as in-batch negatives do: exact, in little memory.

    pass 1    every micro-batch -> its vectors, without a graph; gathered from all processes
    couple    the loss of all vectors, computed on every process; its gradient for each vector
    pass 2    every micro-batch again, under the same seed, so that its vectors are the same bits;
              the sum of vectors times their gradients is backpropagated through the network

The result does not depend on the size of the micro-batches or the number of processes, apart from
rounding (GradCache, Gao et al. 2021). Parameters that the objective uses in `couple`, such as a
temperature, get their gradient in pass 2: the same on every process, so the mean that DDP takes is
that gradient. Excluding them from DDP would need another wrapper for each objective.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from unmask.data.batch import Batch
from unmask.objectives.base import Objective, Sums
from unmask.system.distributed import Processes
from unmask.system.errors import SettingsError
from unmask.train.steps.base import MicroBatch, StepResult, StepSite, clear, clipped, count

VECTORS, RECORD, LABEL = "vectors", "record", "label."  # keys of the tensors that are gathered


class Coupled:
    """Runs each micro-batch twice, and computes the loss of all of them in between."""

    def __init__(self, objective: Objective, *, shard: bool = False) -> None:
        self.objective = objective
        self.terms, self.weights = sorted(objective.terms), dict(objective.weights)
        self.parameter_names = [n for n, p in objective.named_parameters() if p.requires_grad]
        if shard and self.parameter_names:
            raise SettingsError(
                "--shard: the objective has parameters of its own "
                f"({', '.join(self.parameter_names)}), and its loss couples all texts of a step; "
                "sharding does not support both together. Remove --shard."
            )

    def __call__(
        self, module: nn.Module, micro_batches: Sequence[MicroBatch], site: StepSite
    ) -> StepResult | None:
        """Compute the gradient of the coupled loss of the whole step; see `Step`."""
        processes = site.processes
        counts = count(micro_batches, self.terms, processes)
        clear(module)
        rounds = len(micro_batches) if site.rounds is None else site.rounds
        vectors: list[Tensor] = []
        for number in range(rounds):
            # Without gradients there is nothing to exchange: idle rounds can come last here.
            if number and site.give_up():
                return None
            if number < len(micro_batches):
                vectors.append(_encode(module, micro_batches[number], site))
        whole_step, slices = self._gather(
            vectors, [micro_batch.batch for micro_batch in micro_batches], processes
        )
        whole_step = whole_step.to(processes.device)
        losses, vector_gradients, parameter_gradients = self._couple(whole_step, counts)
        for number in range(rounds):
            if number and site.give_up():
                clear(module)
                return None
            # Gradients are exchanged in the last round, as in a summed step, so idle rounds come
            # first; DDP needs the first forward pass of every process nevertheless.
            if number < rounds - len(micro_batches):
                if not number:
                    with processes.syncing(module, False), site.casting():
                        module(micro_batches[0].batch.to(processes.device), "encode")
                continue
            index = number - rounds + len(micro_batches)
            last = number == rounds - 1
            # Gradients of own parameters are those of the whole step, so they are added only once.
            self._replay(
                module,
                micro_batches[index],
                vector_gradients[slices[index]],
                parameter_gradients if last else {},
                site,
                last=last,
            )
        norm = clipped(module, site.clip)
        return StepResult(losses, self.weights, norm, int(counts["tokens"]))

    def _gather(
        self, vectors: Sequence[Tensor], batches: Sequence[Batch], processes: Processes
    ) -> tuple["WholeStep", list[slice]]:
        """Gather what `couple` needs; also return where this process's micro-batches are in it."""
        payload: dict[str, Tensor] = {}
        for number, (batch_vectors, batch) in enumerate(zip(vectors, batches, strict=True)):
            record = torch.arange(len(batch.row)) if batch.record is None else batch.record
            tensors = {VECTORS: batch_vectors.cpu(), RECORD: record}
            tensors |= {f"{LABEL}{name}": batch.labels[name] for name in self.objective.couples}
            payload |= {f"{number}/{name}": value.contiguous() for name, value in tensors.items()}
        parts: dict[int, dict[str, Tensor]] = {}  # by the place of the micro-batch in the step
        # As bytes, labels, records and vectors of any type travel in one message on any backend.
        for rank, message in enumerate(processes.gather(save(payload))):
            for name, value in load(message).items():
                index, _, key = name.partition("/")
                # The dealer gave micro-batch i to process i % world; this is the way back.
                parts.setdefault(int(index) * processes.world + rank, {})[key] = value
        order = sorted(parts)
        bounds = list(accumulate((len(parts[number][VECTORS]) for number in order), initial=0))
        slices = {number: slice(bounds[i], bounds[i + 1]) for i, number in enumerate(order)}
        own_positions = range(processes.rank, len(vectors) * processes.world, processes.world)
        whole_step = WholeStep.of([parts[number] for number in order])
        return whole_step, [slices[number] for number in own_positions]

    def _couple(
        self, whole_step: "WholeStep", counts: dict[str, float]
    ) -> tuple[dict[str, float], Tensor, dict[str, Tensor]]:
        """Return the losses of the whole step, and the gradients of vectors and own parameters."""
        # Leaves: the graph ends here, not in the network.
        vectors = whole_step.vectors.requires_grad_()
        batch = replace(whole_step.batch, counts={name: int(counts[name]) for name in self.terms})
        sums: Sums = self.objective.couple(vectors, batch)
        divisors = {name: max(counts[name], 1) for name in self.terms if name in sums}
        # Every process has all vectors, so this is the loss of the whole step already.
        parts = [
            sums[name].float() * (self.weights.get(name, 1.0) / divisors[name]) for name in divisors
        ]
        parameters = dict(self.objective.named_parameters())
        inputs = [vectors, *(parameters[name] for name in self.parameter_names)]
        gradients = torch.autograd.grad(torch.stack(parts).sum(), inputs, allow_unused=True)
        vector_gradients = torch.zeros_like(vectors) if gradients[0] is None else gradients[0]
        parameter_gradients = {
            name: gradient
            for name, gradient in zip(self.parameter_names, gradients[1:], strict=True)
            if gradient is not None
        }
        losses = {name: float(sums[name].detach()) / divisors[name] for name in divisors}
        return losses, vector_gradients.detach(), parameter_gradients

    def _replay(
        self,
        module: nn.Module,
        micro_batch: MicroBatch,
        vector_gradients: Tensor,
        parameter_gradients: dict[str, Tensor],
        site: StepSite,
        *,
        last: bool,
    ) -> None:
        """Run a micro-batch again and backpropagate the given gradients of its vectors."""
        processes = site.processes
        # The seed of the first pass: other dropout would make these the gradients of other vectors.
        torch.manual_seed(micro_batch.seed)
        with processes.syncing(module, last), site.casting():
            # DDP takes the mean over processes, but each has other vectors: their sum is needed.
            vector_gradients = vector_gradients.to(processes.device) * processes.world
            batch = micro_batch.batch.to(processes.device)
            sums: Sums = module(batch, "replay", vector_gradients, parameter_gradients)
            sums["replayed"].backward()


def _encode(module: nn.Module, micro_batch: MicroBatch, site: StepSite) -> Tensor:
    """Compute the vectors of a micro-batch without a graph: the first pass."""
    torch.manual_seed(micro_batch.seed)
    with torch.no_grad(), site.casting():
        vectors: Tensor = module(micro_batch.batch.to(site.processes.device), "encode")["vectors"]
    return vectors.float()


@dataclass(frozen=True)
class WholeStep:
    """All vectors of a step in the order of its micro-batches, with labels and records."""

    vectors: Tensor
    batch: Batch

    @classmethod
    def of(cls, parts: Sequence[dict[str, Tensor]]) -> "WholeStep":
        """Concatenate the micro-batches of a step and number their records through."""
        records, before = [], 0
        for part in parts:
            records.append(part[RECORD] + before)
            before += int(part[RECORD].amax()) + 1
        labels = {
            name.removeprefix(LABEL): torch.cat([part[name] for part in parts])
            for name in parts[0]
            if name.startswith(LABEL)
        }
        # `couple` gets labels, records and counts of the whole step, but no inputs.
        rows, texts = torch.zeros(0, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
        record = torch.cat(records)
        batch = Batch({}, rows, rows, texts, texts, texts, record=record, labels=labels)
        return cls(torch.cat([part[VECTORS] for part in parts]), batch)

    def to(self, device: torch.device) -> "WholeStep":
        """Copy vectors and batch to a device."""
        return WholeStep(self.vectors.to(device), self.batch.to(device))
