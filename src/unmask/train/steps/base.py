"""The protocol of a step: micro-batches in, the gradient of the whole step in `.grad` out.

A step counts what the losses are divided by, decides when processes exchange gradients, and clips.
Updating the weights is left to the loop, which can therefore skip a step that is not finite.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from unmask.data.batch import Batch
from unmask.model.network import Network
from unmask.objectives.base import Companions, Objective, Sums, with_zero_gradients
from unmask.system.distributed import Processes, full_tensor
from unmask.system.errors import SettingsError
from unmask.train.optim.precision import Precision

Mode = Literal["loss", "encode", "replay"]


class TrainingModule(nn.Module):
    """A network and its objective in one module, so that DDP and FSDP wrap a single `forward`."""

    def __init__(
        self, network: Network, objective: Objective, companions: Companions | None = None
    ) -> None:
        super().__init__()
        self.network, self.objective = network, objective
        # In a dict, so that they are no submodules: they are neither trained, sharded nor saved.
        self.unregistered = {"companions": dict(companions or {})}

    def refuse_scalars(self) -> None:
        """Refuse objective parameters without a dimension: FSDP shards along the first one."""
        for name, parameter in self.objective.named_parameters():
            if not parameter.ndim:
                raise SettingsError(
                    f"the objective's parameter '{name}' has no dimension; need at least one. Make "
                    "it a tensor of shape [1]."
                )

    def forward(
        self,
        batch: Batch,
        mode: Mode = "loss",
        gradient: Tensor | None = None,
        parameter_gradients: Mapping[str, Tensor] | None = None,
    ) -> Sums:
        """Return summed losses, vectors, or a scalar that backpropagates given gradients.

        In mode "replay", the scalar's gradient is `gradient` for the vectors and
        `parameter_gradients` for the objective's parameters. A coupled step uses it to send the
        gradient of a loss over all micro-batches through one of them.
        """
        if mode == "loss":
            sums: Sums = self.objective(self.network, batch, self.unregistered["companions"])
            return self._with_zero_gradients(sums, self.objective.terms)
        vectors = self.objective.encode(self.network, batch)
        if mode == "encode":
            return {"vectors": vectors}
        assert gradient is not None
        # d/dv sum(v * g) = g. As a forward pass, it takes place inside DDP, whose hooks see it.
        parts = [(vectors * gradient).sum()]
        parameters = dict(self.objective.named_parameters())
        for name, parameter_gradient in (parameter_gradients or {}).items():
            parts.append((parameters[name] * parameter_gradient).sum())
        return self._with_zero_gradients({"replayed": torch.stack(parts).sum()}, ["replayed"])

    def _with_zero_gradients(self, sums: Sums, terms: Sequence[str]) -> Sums:
        """Give a gradient of zero to heads and objective parameters that a batch does not reach.

        DDP waits for the gradients of all parameters, and AdamW skips those without one.
        """
        used = {name: sums[name] for name in terms if name in sums and sums[name].requires_grad}
        parameters = chain(self.network.heads.parameters(), self.objective.parameters())
        idle = unreached(used.values(), parameters)
        if not used or not idle:
            return sums
        # Attached to any one loss: zeros have to flow exactly once.
        name, loss = next(iter(used.items()))
        return {**sums, name: with_zero_gradients(loss, idle)}


def unreached(losses: Iterable[Tensor], parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the trainable parameters that no loss depends on.

    Walks the autograd graph breadth first from the losses. Heads are near them, so the search ends
    soon if all of them are used.
    """
    idle = {id(tensor): tensor for tensor in parameters if tensor.requires_grad}
    waiting = deque(loss.grad_fn for loss in losses)
    seen = set(waiting)
    while waiting and idle:
        node = waiting.popleft()
        if node is None:
            continue
        # Only the leaves of the graph, which accumulate gradients, have a `variable`.
        idle.pop(id(getattr(node, "variable", None)), None)
        unseen = {other for other, _ in node.next_functions} - seen
        seen |= unseen
        waiting.extend(unseen)
    return list(idle.values())


@dataclass(frozen=True)
class MicroBatch:
    """One of the batches of a step, with the seed of its dropout."""

    batch: Batch
    seed: int


@dataclass(frozen=True)
class StepResult:
    """Losses and gradient norm of a step."""

    losses: dict[str, float]  # unweighted mean of each term
    weights: dict[str, float]  # of terms; 1 where none is given
    norm: float  # of the gradient before clipping
    tokens: int  # over all processes, without padding

    @property
    def loss(self) -> float:
        """The weighted sum of the terms."""
        return sum(self.weights.get(name, 1.0) * loss for name, loss in self.losses.items())

    @property
    def taken(self) -> bool:
        """Whether losses and gradient are finite; otherwise the weights must not be updated."""
        return math.isfinite(self.norm) and all(map(math.isfinite, self.losses.values()))


@dataclass(frozen=True)
class StepSite:
    """The surroundings of a step: processes, precision, clipping and stop requests.

    `rounds` is the largest number of micro-batches on any process. `give_up` is a collective call,
    made between two rounds and equally often on every process: a step of a large network takes too
    long to make a stop request wait for its end.
    """

    processes: Processes
    precision: Precision = "fp32"
    clip: float = math.inf
    rounds: int | None = None
    give_up: Callable[[], bool] = lambda: False

    def casting(self) -> AbstractContextManager[object]:
        """Context of the forward pass: autocast to bf16, or nothing."""
        lower, device = self.precision == "bf16", self.processes.device
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=lower)


class Step(Protocol):
    """Computes the gradient of a whole step."""

    def __call__(
        self, module: nn.Module, micro_batches: Sequence[MicroBatch], site: StepSite
    ) -> StepResult | None:
        """Leave the gradient in `.grad`; return None and leave none if the step is given up."""


def clear(module: nn.Module) -> None:
    """Drop the gradients of the previous step."""
    for parameter in module.parameters():
        parameter.grad = None


def clipped(module: nn.Module, clip: float) -> float:
    """Clip the gradient to the norm `clip`; return its norm before clipping."""
    # Frozen parameters have no gradient; with sharded weights the norm itself is sharded.
    parameters = [p for p in module.parameters() if p.requires_grad]
    return float(full_tensor(clip_grad_norm_(parameters, clip)))


def count(
    micro_batches: Sequence[MicroBatch], terms: Sequence[str], processes: Processes
) -> dict[str, float]:
    """Count the labels of each loss term, and the tokens, in the whole step of all processes."""
    counts: Counter[str] = Counter()
    for micro_batch in micro_batches:
        counts.update({**micro_batch.batch.counts, "tokens": micro_batch.batch.real})
    # One collective call for all counts, in an order that is the same on every process.
    names = [*sorted(terms), "tokens"]
    return dict(zip(names, processes.total([counts[name] for name in names]), strict=True))
