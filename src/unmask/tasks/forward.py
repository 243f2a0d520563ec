"""Packed batch -> label scores or hidden states, from a PyTorch network or a compiled one."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unmask.data.batch import Batch
from unmask.model.network import Network
from unmask.model.network import PackedRows as NetworkRows
from unmask.model.shape import LABELS

READ_PLACES = "read"  # key in Batch.labels: flat indices of the tokens that the head reads


class Forward(Protocol):
    """The forward pass that tasks call: of a PyTorch network, or of a compiled runtime."""

    @property
    def workers(self) -> int:
        """Number of batches to compute in parallel."""

    def scores(self, batch: Batch) -> Tensor:
        """Return the label scores at the batch's places.  -> [P, C]"""

    def last(self, batch: Batch) -> Tensor:
        """Return the hidden states of the last layer.  -> [B, S, D]"""


@dataclass(frozen=True)
class LiveForward:
    """The forward pass of a PyTorch network."""

    network: Network

    @property
    def workers(self) -> int:
        """One worker per core on a CPU, one on other devices.

        Workers with a core each do not wait for each other, as the threads of one large product do.
        """
        return torch.get_num_threads() if self._device.type == "cpu" else 1

    def scores(self, batch: Batch) -> Tensor:
        """Return the label scores at the batch's places.  -> [P, C]"""
        return scores_of(self.network, batch.to(self._device))

    def last(self, batch: Batch) -> Tensor:
        """Return the hidden states of the last layer.  -> [B, S, D]"""
        return self.states(batch)[-1]

    def states(self, batch: Batch) -> list[Tensor]:
        """Return the embeddings and the output of every layer: layers + 1 tensors [B, S, D]."""
        batch = batch.to(self._device)
        trace: list[Tensor] = []
        self.network.encode(batch, trace=trace)
        return trace

    @property
    def _device(self) -> torch.device:
        return self.network.table().device


def network_of(forward: Forward) -> Network:
    """Return the network of a live model; compiled models cannot generate text."""
    assert isinstance(forward, LiveForward), "a compiled model cannot generate text"
    return forward.network


def scores_of(network: Network, batch: Batch, head: str = LABELS) -> Tensor:
    """Return label scores at the batch's places.  -> [P, C]"""
    return scores_at(network, batch, batch.labels[READ_PLACES], head=head)


def scores_at(
    network: Network,
    rows: NetworkRows,
    places: Tensor,
    *,
    head: str = LABELS,
    shared: bool = False,
) -> Tensor:
    """Return label scores at chosen places of any packed rows.  [P] -> [P, C]"""
    # Given the places, the last layer skips most of its work for all other tokens.
    states = network.states_for(head, rows, places=places, shared=shared)
    return network.label_scores(states, head)
