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
        self.own = [name for name, p in objective.named_parameters() if p.requires_grad]
        if shard and self.own:
            raise SettingsError(
                f"--shard: the objective has parameters of its own ({', '.join(self.own)}), and "
                "its loss couples all texts of a step; both together cannot be sharded. Leave "
                "out --shard."
            )

    def __call__(
        self, module: nn.Module, pieces: Sequence[MicroBatch], site: StepSite
    ) -> StepResult | None:
        """Compute the gradient of the coupled loss of the whole step; see `Step`."""
        processes = site.processes
        counts = count(pieces, self.terms, processes)
        clear(module)
        rounds = len(pieces) if site.rounds is None else site.rounds
        vectors: list[Tensor] = []
        for number in range(rounds):
            # Without gradients there is nothing to exchange: idle rounds can come last here.
            if number and site.give_up():
                return None
            if number < len(pieces):
                vectors.append(_vectors(module, pieces[number], site))
        every, mine = self._gathered(vectors, [piece.batch for piece in pieces], processes)
        losses, slopes, own = self._couple(every.to(processes.device), counts)
        for number in range(rounds):
            if number and site.give_up():
                clear(module)
                return None
            # Gradients are exchanged in the last round, as in a summed step, so idle rounds come
            # first; DDP needs the first forward pass of every process nevertheless.
            if number < rounds - len(pieces):
                if not number:
                    with processes.syncing(module, False), site.casting():
                        module(pieces[0].batch.to(processes.device), "encode")
                continue
            at = number - rounds + len(pieces)
            last = number == rounds - 1
            # Gradients of own parameters are those of the whole step, so they are added only once.
            self._replay(module, pieces[at], slopes[mine[at]], own if last else {}, site, last=last)
        norm = clipped(module, site.clip)
        return StepResult(losses, self.weights, norm, int(counts["tokens"]))

    def _gathered(
        self, vectors: Sequence[Tensor], batches: Sequence[Batch], processes: Processes
    ) -> tuple["WholeStep", list[slice]]:
        """Gather what `couple` needs; also return where this process's micro-batches are in it."""
        payload: dict[str, Tensor] = {}
        for number, (found, batch) in enumerate(zip(vectors, batches, strict=True)):
            record = torch.arange(len(batch.row)) if batch.record is None else batch.record
            known = {VECTORS: found.cpu(), RECORD: record}
            known |= {f"{LABEL}{name}": batch.labels[name] for name in self.objective.couples}
            payload |= {f"{number}/{name}": value.contiguous() for name, value in known.items()}
        parts: dict[int, dict[str, Tensor]] = {}  # by the place of the micro-batch in the step
        # As bytes, labels, records and vectors of any type travel in one message on any backend.
        for rank, raw in enumerate(processes.gather(save(payload))):
            for name, value in load(raw).items():
                place, _, key = name.partition("/")
                # The dealer gave micro-batch i to process i % world; this is the way back.
                parts.setdefault(int(place) * processes.world + rank, {})[key] = value
        order = sorted(parts)
        ends = list(accumulate((len(parts[number][VECTORS]) for number in order), initial=0))
        places = {number: slice(ends[i], ends[i + 1]) for i, number in enumerate(order)}
        own = range(processes.rank, len(vectors) * processes.world, processes.world)
        return WholeStep.of([parts[number] for number in order]), [places[number] for number in own]

    def _couple(
        self, whole: "WholeStep", counts: dict[str, float]
    ) -> tuple[dict[str, float], Tensor, dict[str, Tensor]]:
        """Return the losses of the whole step, and the gradients of vectors and own parameters."""
        vectors = whole.vectors.requires_grad_()  # leaves: the graph ends here, not in the network
        batch = replace(whole.batch, counts={name: int(counts[name]) for name in self.terms})
        sums: Sums = self.objective.couple(vectors, batch)
        least = {name: max(counts[name], 1) for name in self.terms if name in sums}
        # Every process has all vectors, so this is the loss of the whole step already.
        parts = [sums[n].float() * (self.weights.get(n, 1.0) / least[n]) for n in least]
        parameters = dict(self.objective.named_parameters())
        wanted = [vectors, *(parameters[name] for name in self.own)]
        found = torch.autograd.grad(torch.stack(parts).sum(), wanted, allow_unused=True)
        slopes = torch.zeros_like(vectors) if found[0] is None else found[0]
        own = {n: slope for n, slope in zip(self.own, found[1:], strict=True) if slope is not None}
        losses = {name: float(sums[name].detach()) / least[name] for name in least}
        return losses, slopes.detach(), own

    def _replay(
        self,
        module: nn.Module,
        piece: MicroBatch,
        slopes: Tensor,
        own: dict[str, Tensor],
        site: StepSite,
        *,
        last: bool,
    ) -> None:
        """Run a micro-batch again and backpropagate the given gradients of its vectors."""
        processes = site.processes
        # The seed of the first pass: other dropout would make these the gradients of other vectors.
        torch.manual_seed(piece.seed)
        with processes.syncing(module, last), site.casting():
            # DDP takes the mean over processes, but each has other vectors: their sum is needed.
            slopes = slopes.to(processes.device) * processes.world
            batch = piece.batch.to(processes.device)
            sums: Sums = module(batch, "replay", slopes, own)
            sums["replayed"].backward()


def _vectors(module: nn.Module, piece: MicroBatch, site: StepSite) -> Tensor:
    """Compute the vectors of a micro-batch without a graph: the first pass."""
    torch.manual_seed(piece.seed)
    with torch.no_grad(), site.casting():
        found: Tensor = module(piece.batch.to(site.processes.device), "encode")["vectors"]
    return found.float()


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
