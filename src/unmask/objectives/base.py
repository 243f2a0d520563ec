"""What the training loop asks of an objective or a task.

An objective returns *sums*, one per loss term; the batch carries the *counts*. The loop divides
once, over a whole group of batches and over all processes, so that neither the number of batches
nor the number of processes changes anything but rounding.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.data.batches import Batch
from unmask.model.network import Network
from unmask.settings import Settings
from unmask.text.vocabulary import Vocabulary

Sums = dict[str, Tensor]  # loss term -> [] summed loss, with gradient
RIGHT = "_right"  # in evaluation also `term_right`: [] how many answers were right


class Objective(Protocol):
    """Anything that can be trained: it runs the encoder its own way and returns sums."""

    @property
    def terms(self) -> Sequence[str]:
        """The names of its losses, the main one first."""

    @property
    def chance(self) -> float | None:
        """The main loss of a network that knows nothing; None where it depends on the labels."""

    def __call__(self, network: Network, batch: Batch) -> Sums:
        """Run the network and sum the losses."""


class Reader(Protocol):
    """An objective that is content with the ordinary pass of the encoder.

    One that guesses tokens of the vocabulary labels them `TERM_tokens`, and where in the batch they
    are `TERM_places`: then runs are also compared with guessing by word frequency.
    """

    term: ClassVar[str]  # the name of its loss
    asks: ClassVar[str]  # what it is right or wrong about, in words
    heads: ClassVar[dict[str, bool]]  # what it needs on top of the encoder
    settings: ClassVar[type[Settings]]

    how: Settings  # those that it was made with
    choices: int  # among so many answers it must find the right one

    def __init__(self, settings: Any, vocabulary: Vocabulary) -> None: ...

    def standard(self) -> "Reader":
        """The question as every evaluation puts it, whatever is trained on; by default this one."""
        return self

    def at(self, progress: float) -> "Reader":
        """The question as it is put at a moment of the run; by default always this one."""
        return self

    def begin(self, network: Network, frequencies: Callable[[], NDArray[np.float64]]) -> None:
        """Give a network that is to be trained whatever it need not learn.

        `frequencies` counts the share of each token of the vocabulary in the corpus.
        """

    def prepare(self, batch: Batch, root: int) -> Batch:
        """Hide what must be guessed and add what the answers are: a function of its arguments."""

    def places(self, batch: Batch) -> Tensor:
        """Where it reads: places in the flat batch.  -> [N]"""

    def read(self, network: Network, states: Tensor, batch: Batch) -> Sums:
        """Sum the losses of what the encoder says there.  states [N, D]"""


class OnePass:
    """Run the encoder once and let several readers score what it says: MLM + NSP is BERT."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.readers = readers

    @property
    def terms(self) -> list[str]:
        """The losses, see Objective."""
        return [reader.term for reader in self.readers]

    @property
    def chance(self) -> float:
        """The loss of a guess among all answers."""
        return math.log(self.readers[0].choices)

    @property
    def asks(self) -> dict[str, str]:
        """What each term is about, the main one first."""
        return {reader.term: reader.asks for reader in self.readers}

    def standard(self) -> "OnePass":
        """As it is evaluated, see Reader."""
        return OnePass([reader.standard() for reader in self.readers])

    def at(self, progress: float) -> "OnePass":
        """As it is trained at a moment of the run, see Reader."""
        return OnePass([reader.at(progress) for reader in self.readers])

    def begin(self, network: Network, frequencies: Callable[[], NDArray[np.float64]]) -> None:
        """Let each reader give what it can, see Reader."""
        for reader in self.readers:
            reader.begin(network, frequencies)

    def prepare(self, batch: Batch, root: int) -> Batch:
        """Let each reader hide and label in turn."""
        for reader in self.readers:
            batch = reader.prepare(batch, root)
        return batch

    def __call__(self, network: Network, batch: Batch) -> Sums:
        """One pass, every reader's sums."""
        where = [reader.places(batch) for reader in self.readers]
        states = network.encoder(
            batch.tokens, batch.segments, batch.index, batch.owner, places=torch.cat(where)
        )
        sums: Sums = {}
        parts = states.split([len(places) for places in where])
        for reader, part in zip(self.readers, parts, strict=True):
            sums |= reader.read(network, part, batch)
        return sums
