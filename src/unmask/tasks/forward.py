"""Packed rows -> numbers: what a task asks of a network, as it is or compiled."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unmask.data.batch import Batch
from unmask.model.network import Network
from unmask.model.network import PackedRows as NetworkRows
from unmask.model.shape import LABELS

READ = "read"  # among a batch's labels: the places in the flat batch


class Forward(Protocol):
    """Rows -> numbers: a network as it is, or as a runtime has compiled it."""

    @property
    def workers(self) -> int:
        """Batches that are best computed side by side."""

    def scores(self, batch: Batch) -> Tensor:
        """What the head says at the places to read.  -> [P, C]"""

    def last(self, batch: Batch) -> Tensor:
        """The states of the last block.  -> [B, S, D]"""


@dataclass(frozen=True)
class LiveForward:
    """A network as it is."""

    network: Network

    @property
    def workers(self) -> int:
        """One for each core, since they then wait for nothing; one on other devices."""
        return torch.get_num_threads() if self._device.type == "cpu" else 1

    def scores(self, batch: Batch) -> Tensor:
        """What the head says at the places to read.  -> [P, C]"""
        return scores_of(self.network, batch.to(self._device))

    def last(self, batch: Batch) -> Tensor:
        """The states of the last block.  -> [B, S, D]"""
        return self.states(batch)[-1]

    def states(self, batch: Batch) -> list[Tensor]:
        """The embeddings and the output of every block: layers + 1 tensors [B, S, D]."""
        batch = batch.to(self._device)
        trace: list[Tensor] = []
        self.network.encode(batch, trace=trace)
        return trace

    @property
    def _device(self) -> torch.device:
        return self.network.table().device


def network_of(forward: Forward) -> Network:
    """The network of a live model, which alone can say texts."""
    assert isinstance(forward, LiveForward), "a compiled model says no texts"
    return forward.network


def scores_of(network: Network, batch: Batch, head: str = LABELS) -> Tensor:
    """Scores of labels at the places to read.  -> [P, C]"""
    return scores_at(network, batch, batch.labels[READ], head=head)


def scores_at(
    network: Network,
    rows: NetworkRows,
    places: Tensor,
    *,
    head: str = LABELS,
    shared: bool = False,
) -> Tensor:
    """The same of any rows and places.  [P] -> [P, C]"""
    states = network.states_for(head, rows, places=places, shared=shared)
    return network.label_scores(states, head)
