"""Network and batch -> summed losses: base classes of objectives, and several that share a pass.

An objective returns sums of losses, and the batch carries their counts. A training step divides
once, by the counts of all its micro-batches on all processes, so neither the number of
micro-batches nor that of processes changes the result, except for rounding.

An objective may have parameters of its own. They are trained and saved in checkpoints, but not
published: whatever inference needs must be a head of the network.
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

Sums = dict[str, Tensor]  # loss term -> [] summed loss, or [R] a loss per record
Companions = Mapping[str, Network]  # frozen networks such as teachers, by names of the objective
CORRECT = "_right"  # suffix of a term in evaluation: [] number of correct predictions


@dataclass(frozen=True)
class Term:
    """Description of a loss term, for evaluation, checks and reports."""

    name: str
    target: str  # what is predicted, as reports name it
    choices: int | None = None  # number of classes, if the term has an accuracy
    tokens: str | None = None  # if tokens are predicted: name of the label that has them
    places: str | None = None  # ... and of the label with their flat indices in the batch


class TextStatistics:
    """Statistics of the training text, computed on first use; this base class has none."""

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """Relative frequency of each token of the vocabulary.  [V]"""
        raise SettingsError("token frequencies are unknown: this run does not train on a corpus.")


class Objective(nn.Module):
    """Base class of objectives: what a network learns.

    Subclasses must define `describe` and `forward`, or `describe`, `encode` and `couple` if they
    are coupled. The loss of a coupled objective is not a sum over texts (in-batch negatives).
    """

    Config: ClassVar[type[Settings]] = Settings
    needs_pairs: ClassVar[bool] = False  # whether examples must be pairs of segments
    coupled: ClassVar[bool] = False  # True: `encode` and `couple` are used instead of `forward`
    couples: ClassVar[Sequence[str]] = ()  # labels that `couple` needs, with one entry per vector

    config: Settings
    vocabulary: Vocabulary

    def __init__(self, config: Settings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        self.config = config
        if vocabulary is not None:
            self.vocabulary = vocabulary

    def describe(self) -> Sequence[Term]:
        """Return the terms of the loss, the main one first."""
        raise NotImplementedError

    def heads(self, shape: Shape) -> Heads:
        """Return the heads that the network needs for this objective."""
        return {}

    def encoders(self, shape: Shape) -> dict[str, ModelConfig]:
        """Return encoders that the network needs in addition to the main one."""
        return {}

    def publish(self) -> dict[str, Sequence[str]]:
        """Return the model folders to publish, with the encoders and heads of each; (): all."""
        return {"model": ()}

    def companions(self) -> dict[str, str]:
        """Return frozen models to load, such as teachers: own name -> model name or folder."""
        return {}

    def build(self, shape: Shape, companions: Companions) -> None:
        """Create the objective's own parameters, now that the network's shape is known.

        The caller then initialises linear layers and embedding tables from the run's seed.
        """

    def begin(self, network: Network, statistics: TextStatistics) -> None:
        """Adjust a newly initialised network before training, for example by text statistics."""

    def standard(self) -> "Objective":
        """Return the objective as it is evaluated, the same for all training settings."""
        # Held-out losses are comparable only if runs with different settings answer one question.
        return self

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Add labels, and mask what must be predicted.

        `key` is the seed of the run, `batch.seed` that of this batch, `progress` the part of the
        run that is done, from 0 to 1.
        """
        # It must be a function of the arguments alone and read no parameters: it may run in a
        # thread ahead of the step, and a resumed run must prepare the same batches again.
        return batch

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """Run the network and sum the losses; with `each`, return one sum per record.

        The default is that of coupled objectives, which are evaluated batch by batch and have no
        loss of a single record.
        """
        if not self.coupled:
            raise NotImplementedError
        if each:
            raise SettingsError(
                f"{type(self).__name__}: the loss compares texts, so no record has its own loss."
            )
        return self.couple(self.encode(network, batch), batch)

    def encode(self, network: Network, batch: Batch) -> Tensor:
        """Return a vector for each text of a batch, in order.  -> [N, K]"""
        raise NotImplementedError

    def couple(self, vectors: Tensor, batch: Batch) -> Sums:
        """Return the losses of a whole step from the vectors of all its micro-batches.  [N, K]

        `batch` has the records, labels and counts of the whole step, and no inputs.
        """
        raise NotImplementedError

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of each term in the loss; 1 by default. Reports show unweighted terms."""
        return {}

    @property
    def terms(self) -> list[str]:
        """Names of the loss terms, the main one first."""
        return [term.name for term in self.describe()]

    @property
    def chance(self) -> float | None:
        """Main loss of a network that predicts all classes as equally likely, if known."""
        choices = self.describe()[0].choices
        return math.log(choices) if choices else None

    def joined(self, others: "Sequence[Objective]") -> "Objective":
        """Join this and other objectives into one that runs the encoder once."""
        raise SettingsError(
            f"{type(self).__name__} overrides the encoder pass, so it cannot be combined with "
            'sentence-pair prediction. Set data.pairs="off".'
        )


class PlaceObjective(Objective):
    """Base class of objectives that need only the states of some tokens after an ordinary pass."""

    # Name of the head that determines encoder and layers; None: the main encoder's last layer.
    reads_head: ClassVar[str | None] = None

    def places(self, batch: Batch) -> Tensor:
        """Return the flat indices of the tokens whose states are needed.  -> [N]"""
        raise NotImplementedError

    def read(self, network: Network, states: Tensor, batch: Batch, *, each: bool = False) -> Sums:
        """Compute the losses from the states at `places`.  states [N, W]"""
        raise NotImplementedError

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """Run the encoder once and compute the losses."""
        states = network.states_for(self.reads_head, batch, places=self.places(batch))
        return self.read(network, states, batch, each=each)

    def joined(self, others: Sequence[Objective]) -> Objective:
        """Join objectives that share a pass; refuse one that overrides `forward`."""
        # `JointObjective` calls `places` and `read` only: an own `forward` would be ignored.
        if type(self).forward is not PlaceObjective.forward:
            return super().joined(others)
        readers: list[PlaceObjective] = [self]
        for other in others:
            if (
                not isinstance(other, PlaceObjective)
                or type(other).forward is not PlaceObjective.forward
            ):
                raise SettingsError(
                    f"{type(other).__name__} overrides the encoder pass, so it cannot be combined "
                    f"with {type(self).__name__}. Train it in a separate run."
                )
            readers.append(other)
        return JointObjective(readers)


class JointObjective(Objective):
    """Several objectives on one encoder pass; BERT is masked tokens and next sentences."""

    def __init__(self, readers: Sequence[PlaceObjective]) -> None:
        super().__init__(readers[0].config, readers[0].vocabulary)
        self.readers = nn.ModuleList(readers)

    def _readers(self) -> list[PlaceObjective]:
        return [reader for reader in self.readers if isinstance(reader, PlaceObjective)]

    def describe(self) -> list[Term]:
        """Return the terms of all objectives, those of the first one first."""
        return [term for reader in self._readers() for term in reader.describe()]

    def heads(self, shape: Shape) -> Heads:
        """Return the heads of all objectives."""
        return {
            name: head for reader in self._readers() for name, head in reader.heads(shape).items()
        }

    def encoders(self, shape: Shape) -> dict[str, ModelConfig]:
        """Return the additional encoders of all objectives."""
        return {
            name: config
            for reader in self._readers()
            for name, config in reader.encoders(shape).items()
        }

    def publish(self) -> dict[str, Sequence[str]]:
        """Return the folders of all objectives; one of the same name has the parts of each.

        An empty list of parts means the whole network, and stays empty.
        """
        folders: dict[str, Sequence[str]] = {}
        for reader in self._readers():
            for folder, parts in reader.publish().items():
                earlier = folders.get(folder, parts)
                partial = bool(earlier and parts)
                folders[folder] = tuple(dict.fromkeys([*earlier, *parts])) if partial else ()
        return folders

    def build(self, shape: Shape, companions: Companions) -> None:
        """Create the parameters of all objectives."""
        for reader in self._readers():
            reader.build(shape, companions)

    def companions(self) -> dict[str, str]:
        """Return the companions of all objectives."""
        return {
            name: path for reader in self._readers() for name, path in reader.companions().items()
        }

    def begin(self, network: Network, statistics: TextStatistics) -> None:
        """Let each objective adjust the newly initialised network."""
        for reader in self._readers():
            reader.begin(network, statistics)

    def standard(self) -> Self:
        """Join the objectives as they are evaluated."""
        return type(self)(
            [
                part
                for reader in self._readers()
                if isinstance(part := reader.standard(), PlaceObjective)
            ]
        )

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        """Let each objective mask and label the batch in turn."""
        for reader in self._readers():
            batch = reader.prepare(batch, key, progress)
        return batch

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the terms of all objectives."""
        return {
            name: weight for reader in self._readers() for name, weight in reader.weights.items()
        }

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """Run each encoder once and compute the losses of all objectives."""
        readers = self._readers()
        places = [reader.places(batch) for reader in readers]
        states = network.states_for_each([r.reads_head for r in readers], batch, places)
        sums: Sums = {}
        for reader, reader_states in zip(readers, states, strict=True):
            sums |= reader.read(network, reader_states, batch, each=each)
        return sums


def per_record(losses: Tensor, texts: Tensor, batch: Batch) -> Tensor:
    """Sum the losses of each record, given the text of each loss.  [N], [N] -> [R]"""
    # Without `batch.record`, each text is a record of its own.
    records = texts if batch.record is None else batch.record[texts]
    count = len(batch.row) if batch.record is None else int(batch.record.max()) + 1
    return losses.new_zeros(count).index_add(0, records, losses)


class _IdleShapes(FunctionCtx):
    """Context of `ZeroGradients`: shapes are enough to make zeros."""

    shapes: list[tuple[torch.Size, torch.dtype, torch.device]]


class ZeroGradients(torch.autograd.Function):
    """Identity of a loss, which gives zero gradients to parameters that a batch does not use.

    DDP and FSDP wait for the gradients of all parameters, and the optimizer applies weight decay
    only to parameters with a gradient.
    """

    # Not `loss + 0 * parameter.sum()`: a NaN in an unused parameter would make the loss NaN.

    @staticmethod
    def forward(ctx: _IdleShapes, loss: Tensor, *idle: Tensor) -> Tensor:
        """Return the loss as it is.  [] -> []"""
        ctx.shapes = [(tensor.shape, tensor.dtype, tensor.device) for tensor in idle]
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: _IdleShapes, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient as it is, and zeros for the other parameters."""
        return gradients[0], *(
            torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.shapes
        )


def with_zero_gradients(loss: Tensor, idle: Sequence[Tensor]) -> Tensor:
    """Return a loss of the same value whose backward pass gives zeros to idle parameters."""
    apply: Callable[..., Tensor] = ZeroGradients.apply
    return apply(loss, *idle)
