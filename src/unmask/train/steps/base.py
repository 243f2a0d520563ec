"""What every step has: its batches, its result, and the module that it runs.

A step leaves the gradient of the whole step in `.grad`; the loop moves the weights. It counts what
the losses are divided by, it decides when processes exchange gradients, and it clips.
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
    """A network and its objective: the only entry to both in training, so wrappers see one call."""

    def __init__(
        self, network: Network, objective: Objective, companions: Companions | None = None
    ) -> None:
        super().__init__()
        self.network, self.objective = network, objective
        # In a table, so that they are no modules inside of this one: nothing of them is trained.
        self.held = {"companions": dict(companions or {})}

    def refuse_scalars(self) -> None:
        """Refuse parameters of the objective without a dimension, which cannot be sharded."""
        for name, parameter in self.objective.named_parameters():
            if not parameter.ndim:
                raise SettingsError(
                    f"the objective's parameter '{name}' is a single number without a dimension; "
                    "need at least one. Make it a tensor of shape [1]."
                )

    def forward(
        self,
        batch: Batch,
        mode: Mode = "loss",
        gradient: Tensor | None = None,
        own: Mapping[str, Tensor] | None = None,
    ) -> Sums:
        """Summed losses; or vectors; or what has a given gradient for vectors and own parameters.

        The latter is how a coupled step sends the gradient of a loss over all batches through one.
        """
        if mode == "loss":
            sums: Sums = self.objective(self.network, batch, self.held["companions"])
            return self._with_idle(sums, self.objective.terms)
        vectors = self.objective.encode(self.network, batch)
        if mode == "encode":
            return {"vectors": vectors}
        assert gradient is not None
        parts = [(vectors * gradient).sum()]
        parameters = dict(self.objective.named_parameters())
        parts += [(parameters[name] * slope).sum() for name, slope in (own or {}).items()]
        return self._with_idle({"replayed": torch.stack(parts).sum()}, ["replayed"])

    def _with_idle(self, sums: Sums, terms: Sequence[str]) -> Sums:
        """Give heads and own parameters that a batch does not reach a gradient of zero.

        Wrappers wait for the gradients of all parameters, whatever a process's batches use.
        """
        used = {name: sums[name] for name in terms if name in sums and sums[name].requires_grad}
        every = chain(self.network.heads.parameters(), self.objective.parameters())
        idle = unreached(used.values(), every)
        if not used or not idle:
            return sums
        name, loss = next(iter(used.items()))
        return {**sums, name: with_zero_gradients(loss, idle)}


def unreached(losses: Iterable[Tensor], parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that are trained and that no loss depends on.

    Heads are near the losses, so that the search ends soon where all of them are used.
    """
    idle = {id(tensor): tensor for tensor in parameters if tensor.requires_grad}
    waiting = deque(loss.grad_fn for loss in losses)
    seen = set(waiting)
    while waiting and idle:
        node = waiting.popleft()
        if node is None:
            continue
        idle.pop(id(getattr(node, "variable", None)), None)
        new = {other for other, _ in node.next_functions} - seen
        seen |= new
        waiting.extend(new)
    return list(idle.values())


@dataclass(frozen=True)
class MicroBatch:
    """A batch of a step, and the seed of its dropout."""

    batch: Batch
    seed: int


@dataclass(frozen=True)
class StepResult:
    """What a step found."""

    losses: dict[str, float]  # mean of each term, unweighted
    weights: dict[str, float]  # of the terms, where they are not 1
    norm: float  # of the gradient, before it was clipped
    tokens: int  # real ones, over all processes

    @property
    def loss(self) -> float:
        """The weighted sum of the terms."""
        return sum(self.weights.get(name, 1.0) * loss for name, loss in self.losses.items())

    @property
    def taken(self) -> bool:
        """Is all of it finite? Otherwise the weights must stay as they are."""
        return math.isfinite(self.norm) and all(map(math.isfinite, self.losses.values()))


@dataclass(frozen=True)
class StepSite:
    """Where a step is taken.

    `rounds` is the most batches that any process has: `give_up` is asked as often on each, between
    two rounds, because a step of a large network takes longer than someone who stops it will wait.
    """

    processes: Processes
    precision: Precision = "fp32"
    clip: float = math.inf
    rounds: int | None = None
    give_up: Callable[[], bool] = lambda: False

    def casting(self) -> AbstractContextManager[object]:
        """The precision of the forward pass."""
        lower, device = self.precision == "bf16", self.processes.device
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=lower)


class Step(Protocol):
    """Computes the gradient of a step."""

    def __call__(
        self, module: nn.Module, pieces: Sequence[MicroBatch], site: StepSite
    ) -> StepResult | None:
        """Leave it in `.grad`; None if the step was given up, with nothing left behind."""


def clear(module: nn.Module) -> None:
    """Forget the gradients of the step before."""
    for parameter in module.parameters():
        parameter.grad = None


def clipped(module: nn.Module, clip: float) -> float:
    """Shorten the gradient to a norm of `clip`; returns the norm that it had."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return float(full_tensor(clip_grad_norm_(parameters, clip)))


def count(
    pieces: Sequence[MicroBatch], terms: Sequence[str], processes: Processes
) -> dict[str, float]:
    """How many answers of each term, and how many tokens, there are in the whole step."""
    counts: Counter[str] = Counter()
    for piece in pieces:
        counts.update({**piece.batch.counts, "tokens": piece.batch.real})
    names = [*sorted(terms), "tokens"]
    return dict(zip(names, processes.total([counts[name] for name in names]), strict=True))
