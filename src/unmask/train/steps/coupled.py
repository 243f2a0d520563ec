"""A step whose loss couples all its texts, as in-batch negatives do: exact, in little memory.

    pass 1    every batch -> its vectors, without a graph; gathered from all processes
    couple    the loss of all vectors, the same on every process; its gradient for each vector
    pass 2    every batch again, under the same seed, so that its vectors are the same bits; each
              vector is multiplied with its gradient, and the sum goes back through the network

So neither the size of the batches nor the number of processes changes anything but rounding
(GradCache, Gao et al. 2021). Parameters that the objective uses in `couple`, such as a temperature,
get their gradient in pass 2, from every process the same, of which wrappers take the mean.
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

VECTORS, RECORD, LABEL = "vectors", "record", "label."


class Coupled:
    """Two passes over the batches of a step, with the loss of all between them."""

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
        """See Step."""
        processes = site.processes
        counts = count(pieces, self.terms, processes)
        clear(module)
        rounds = len(pieces) if site.rounds is None else site.rounds
        vectors: list[Tensor] = []
        for number in range(rounds):
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
            if number < rounds - len(pieces):  # as in a summed step: who has fewer is idle at first
                if not number:
                    with processes.syncing(module, False), site.casting():
                        module(pieces[0].batch.to(processes.device), "encode")
                continue
            at = number - rounds + len(pieces)
            last = number == rounds - 1
            self._replay(module, pieces[at], slopes[mine[at]], own if last else {}, site, last=last)
        norm = clipped(module, site.clip)
        return StepResult(losses, self.weights, norm, int(counts["tokens"]))

    def _gathered(
        self, vectors: Sequence[Tensor], batches: Sequence[Batch], processes: Processes
    ) -> tuple["WholeStep", list[slice]]:
        """Exchange what `couple` needs; and where this process's own batches are in it."""
        payload: dict[str, Tensor] = {}
        for number, (found, batch) in enumerate(zip(vectors, batches, strict=True)):
            record = torch.arange(len(batch.row)) if batch.record is None else batch.record
            known = {VECTORS: found.cpu(), RECORD: record}
            known |= {f"{LABEL}{name}": batch.labels[name] for name in self.objective.couples}
            payload |= {f"{number}/{name}": value.contiguous() for name, value in known.items()}
        parts: dict[int, dict[str, Tensor]] = {}  # by the number of the batch in the step
        for rank, raw in enumerate(processes.gather(save(payload))):
            for name, value in load(raw).items():
                place, _, key = name.partition("/")
                parts.setdefault(int(place) * processes.world + rank, {})[key] = value
        order = sorted(parts)
        ends = list(accumulate((len(parts[number][VECTORS]) for number in order), initial=0))
        places = {number: slice(ends[i], ends[i + 1]) for i, number in enumerate(order)}
        own = range(processes.rank, len(vectors) * processes.world, processes.world)
        return WholeStep.of([parts[number] for number in order]), [places[number] for number in own]

    def _couple(
        self, whole: "WholeStep", counts: dict[str, float]
    ) -> tuple[dict[str, float], Tensor, dict[str, Tensor]]:
        """The losses of the whole step, and their gradients for vectors and own parameters."""
        vectors = whole.vectors.requires_grad_()
        batch = replace(whole.batch, counts={name: int(counts[name]) for name in self.terms})
        sums: Sums = self.objective.couple(vectors, batch)
        least = {name: max(counts[name], 1) for name in self.terms if name in sums}
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
        """The second pass of a batch. Wrappers take means over processes; vectors need the sum."""
        processes = site.processes
        torch.manual_seed(piece.seed)
        with processes.syncing(module, last), site.casting():
            slopes = slopes.to(processes.device) * processes.world
            batch = piece.batch.to(processes.device)
            sums: Sums = module(batch, "replay", slopes, own)
            sums["replayed"].backward()


def _vectors(module: nn.Module, piece: MicroBatch, site: StepSite) -> Tensor:
    """The first pass of a batch."""
    torch.manual_seed(piece.seed)
    with torch.no_grad(), site.casting():
        found: Tensor = module(piece.batch.to(site.processes.device), "encode")["vectors"]
    return found.float()


@dataclass(frozen=True)
class WholeStep:
    """All vectors of a step in the order of its batches, and what is known of their texts."""

    vectors: Tensor
    batch: Batch

    @classmethod
    def of(cls, parts: Sequence[dict[str, Tensor]]) -> "WholeStep":
        """Join what the batches of a step have; records are numbered through all of them."""
        records, before = [], 0
        for part in parts:
            records.append(part[RECORD] + before)
            before += int(part[RECORD].amax()) + 1
        labels = {
            name.removeprefix(LABEL): torch.cat([part[name] for part in parts])
            for name in parts[0]
            if name.startswith(LABEL)
        }
        rows, texts = torch.zeros(0, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
        record = torch.cat(records)
        batch = Batch({}, rows, rows, texts, texts, texts, record=record, labels=labels)
        return cls(torch.cat([part[VECTORS] for part in parts]), batch)

    def to(self, device: torch.device) -> "WholeStep":
        """The same on another device."""
        return WholeStep(self.vectors.to(device), self.batch.to(device))
