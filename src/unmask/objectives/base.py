"""What is learned: an objective runs a network on a batch and returns the sums of its loss terms.

The batch carries the counts; the step divides once, over all batches and all processes, so that
neither the number of batches nor that of processes changes anything but rounding.

An objective may have parameters of its own. They are trained, saved and resumed with the run, and
are never published: what inference needs is a head of the network.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from unmask.data.batch import Batch
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import Heads, Shape
from unmask.system.errors import SettingsError
from unmask.system.settings import Settings
from unmask.text.vocabulary import Vocabulary

Sums = dict[str, Tensor]  # loss term -> [] summed loss, or [R] one for each record
Companions = Mapping[str, Network]  # frozen networks, by the names that the objective gives them
CORRECT = "_right"  # in evaluation also `term_right`: [] how many answers were right


@dataclass(frozen=True)
class Term:
    """A term of a loss, as evaluations, checks and reports need to know it."""

    name: str
    asks: str  # what is predicted, in words
    choices: int | None = None  # among how many answers; then it has an accuracy
    tokens: str | None = None  # the label with the tokens to predict, where it predicts tokens
    places: str | None = None  # ... and the one with their places in the flat batch


class TextStatistics:
    """What is known of the text before training; computed when it is asked for."""

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """The share of each token of the vocabulary.  [V]"""
        raise SettingsError("this run learns from no corpus, whose word frequencies are unknown.")


class Objective(nn.Module):
    """What a network learns. Only `describe` and `forward` (or `encode`, `couple`) are needed."""

    Config: ClassVar[type[Settings]] = Settings
    needs_pairs: ClassVar[bool] = False  # of segments, in the examples
    coupled: ClassVar[bool] = False  # True: `encode` and `couple` instead of `forward`
    couples: ClassVar[Sequence[str]] = ()  # labels that `couple` needs, an entry for each vector

    config: Settings
    vocabulary: Vocabulary

    def __init__(self, config: Settings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        self.config = config
        if vocabulary is not None:
            self.vocabulary = vocabulary

    def describe(self) -> Sequence[Term]:
        """The terms of the loss, the main one first."""
        raise NotImplementedError

    def heads(self, shape: Shape) -> Heads:
        """The heads that the network needs for it."""
        return {}

    def encoders(self, shape: Shape) -> dict[str, ModelConfig]:
        """Encoders that the network needs beside the main one."""
        return {}

    def publish(self) -> dict[str, Sequence[str]]:
        """Folders of models, each with the encoders and heads in it; none named: all of them."""
        return {"model": ()}

    def companions(self) -> dict[str, str]:
        """Models that help and do not learn: a name for each, and its folder or name."""
        return {}

    def build(self, shape: Shape, companions: Companions) -> None:
        """Make parameters of its own; linear layers and tables are drawn by the run's seed."""

    def begin(self, network: Network, statistics: TextStatistics) -> None:
        """Give a network that is to be trained whatever need not be learned."""

    def standard(self) -> "Objective":
        """The question as every evaluation puts it, whatever is trained on."""
        return self

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Add the answers and mask what must be predicted: a function of the arguments alone.

        It must read no parameter, and may run in a thread ahead of the step. `batch.seed` is the
        seed of this batch, `key` that of the run.
        """
        return batch

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """Run the network and sum the losses; with `each`, one sum for each record of the batch.

        What is coupled is evaluated batch by batch, and has no loss of a single record.
        """
        if not self.coupled:
            raise NotImplementedError
        if each:
            raise SettingsError(
                f"{type(self).__name__}: its loss couples texts, and is not a sum over records."
            )
        return self.couple(self.encode(network, batch), batch)

    def encode(self, network: Network, batch: Batch) -> Tensor:
        """Vectors of the texts of a batch, in their order.  -> [N, K]"""
        raise NotImplementedError

    def couple(self, vectors: Tensor, batch: Batch) -> Sums:
        """The losses of a whole step from the vectors of all its batches.  [N, K]

        `batch` has the records, labels and counts of the whole step, and no inputs.
        """
        raise NotImplementedError

    @property
    def weights(self) -> Mapping[str, float]:
        """How much each term counts; 1 where none is given. Reports show unweighted terms."""
        return {}

    @property
    def terms(self) -> list[str]:
        """The names of the losses, the main one first."""
        return [term.name for term in self.describe()]

    @property
    def chance(self) -> float | None:
        """The main loss of a network that knows nothing, where it can be known."""
        choices = self.describe()[0].choices
        return math.log(choices) if choices else None

    def joined(self, others: "Sequence[Objective]") -> "Objective":
        """One objective made of this and others, which share a pass of the encoder."""
        raise SettingsError(
            f"{type(self).__name__} runs the encoder in its own way, so that the order of pairs "
            'cannot be learned beside it. Set data.pairs="off".'
        )


class PlaceObjective(Objective):
    """An objective that is content with the states of the ordinary pass in some places."""

    # The head whose encoder and layers it reads; None: the last states of the main encoder.
    reads_head: ClassVar[str | None] = None

    def places(self, batch: Batch) -> Tensor:
        """Where it reads: places in the flat batch.  -> [N]"""
        raise NotImplementedError

    def read(self, network: Network, states: Tensor, batch: Batch, *, each: bool = False) -> Sums:
        """Sum the losses of what the encoder has made of these places.  states [N, W]"""
        raise NotImplementedError

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """One pass."""
        states = network.states_for(self.reads_head, batch, places=self.places(batch))
        return self.read(network, states, batch, each=each)

    def joined(self, others: Sequence[Objective]) -> Objective:
        """Readers share a pass, unless one of them runs the encoder in its own way after all."""
        if type(self).forward is not PlaceObjective.forward:
            return super().joined(others)
        readers: list[PlaceObjective] = [self]
        for other in others:
            if (
                not isinstance(other, PlaceObjective)
                or type(other).forward is not PlaceObjective.forward
            ):
                raise SettingsError(
                    f"{type(other).__name__} runs the encoder in its own way, so that it cannot be "
                    f"learned beside {type(self).__name__}. Train it in a run of its own."
                )
            readers.append(other)
        return JointObjective(readers)


class JointObjective(Objective):
    """Several readers on one pass of the encoder: masked tokens and next sentences are BERT."""

    def __init__(self, readers: Sequence[PlaceObjective]) -> None:
        super().__init__(readers[0].config, readers[0].vocabulary)
        self.readers = nn.ModuleList(readers)

    def _each(self) -> list[PlaceObjective]:
        return [reader for reader in self.readers if isinstance(reader, PlaceObjective)]

    def describe(self) -> list[Term]:
        """The terms of all."""
        return [term for reader in self._each() for term in reader.describe()]

    def heads(self, shape: Shape) -> Heads:
        """The heads of all."""
        return {name: own for reader in self._each() for name, own in reader.heads(shape).items()}

    def encoders(self, shape: Shape) -> dict[str, ModelConfig]:
        """The encoders of all."""
        return {n: own for reader in self._each() for n, own in reader.encoders(shape).items()}

    def publish(self) -> dict[str, Sequence[str]]:
        """The folders of all, each with what any of them puts there: whole, if one wants it so."""
        folders: dict[str, Sequence[str]] = {}
        for reader in self._each():
            for folder, names in reader.publish().items():
                before = folders.get(folder, names)
                some = bool(before and names)
                folders[folder] = tuple(dict.fromkeys([*before, *names])) if some else ()
        return folders

    def build(self, shape: Shape, companions: Companions) -> None:
        """Let each make its parameters."""
        for reader in self._each():
            reader.build(shape, companions)

    def companions(self) -> dict[str, str]:
        """The companions of all."""
        return {name: path for reader in self._each() for name, path in reader.companions().items()}

    def begin(self, network: Network, statistics: TextStatistics) -> None:
        """Let each give what it can."""
        for reader in self._each():
            reader.begin(network, statistics)

    def standard(self) -> Self:
        """Each as it is evaluated."""
        return type(self)(
            [r for each in self._each() if isinstance(r := each.standard(), PlaceObjective)]
        )

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Let each mask and label in turn."""
        for reader in self._each():
            batch = reader.prepare(batch, key, progress)
        return batch

    @property
    def weights(self) -> dict[str, float]:
        """The weights of all."""
        return {name: own for reader in self._each() for name, own in reader.weights.items()}

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """One pass, the sums of each."""
        readers = self._each()
        where = [reader.places(batch) for reader in readers]
        states = network.states_for_each([r.reads_head for r in readers], batch, where)
        sums: Sums = {}
        for reader, own in zip(readers, states, strict=True):
            sums |= reader.read(network, own, batch, each=each)
        return sums


def per_record(losses: Tensor, texts: Tensor, batch: Batch) -> Tensor:
    """Sum losses by the records that their texts are of.  [N], [N] -> [R]"""
    records = texts if batch.record is None else batch.record[texts]
    count = len(batch.row) if batch.record is None else int(batch.record.max()) + 1
    return losses.new_zeros(count).index_add(0, records, losses)


class _Idle(FunctionCtx):
    """What is kept of idle parameters."""

    shapes: list[tuple[torch.Size, torch.dtype, torch.device]]


class ZeroGradients(torch.autograd.Function):
    """The identity on a loss, with a gradient of zero for parameters that a batch does not use.

    DDP and FSDP wait for the gradients of all parameters, and weight decay applies to those with a
    gradient. Unlike adding zero times a parameter, a NaN in one of them stays there.
    """

    @staticmethod
    def forward(ctx: _Idle, loss: Tensor, *idle: Tensor) -> Tensor:
        """[] -> []"""
        ctx.shapes = [(tensor.shape, tensor.dtype, tensor.device) for tensor in idle]
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: _Idle, *gradients: Tensor) -> tuple[Tensor, ...]:
        """The gradient as it is, and zeros."""
        return gradients[0], *(torch.zeros(s, dtype=d, device=c) for s, d, c in ctx.shapes)


def with_zero_gradients(loss: Tensor, idle: Sequence[Tensor]) -> Tensor:
    """The same loss, beside which idle parameters get a gradient of zero."""
    apply: Callable[..., Tensor] = ZeroGradients.apply
    return apply(loss, *idle)
