"""The engine's pass as an ONNX graph, and the runtimes that run it.

tokens, segments, index, owner [B, S]              -> states [B, S, D], of the last block
the same, and places [P] in the flat batch         -> scores [P, C], of a model with labels
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from unmask.data.batches import Batch
from unmask.errors import FolderError
from unmask.model.network import Network
from unmask.tasks.engine import READ, cores, scores_at, side_by_side
from unmask.use.runtimes import (
    Runner,
    installed,
    multiplies_bytes,
    needed,
    onnx_runtime,
    openvino,
)

COMPILED = "compiled.onnx"  # in a model's folder
ROWS = "tokens", "segments", "index", "owner"
PLACES, STATES, SCORES = "places", "states", "scores"


class Rows(nn.Module):
    """What the engine asks of a network, in one call."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        index: Tensor,
        owner: Tensor,
        places: Tensor | None = None,
    ) -> Tensor:
        """See the top of the file."""
        inputs = tokens, segments, index, owner
        if places is None:
            states: Tensor = self.network.encoder(*inputs, shared=True)
            return states
        return scores_at(self.network, inputs, places, shared=True)


def write_rows(network: Network, path: Path) -> None:
    """Write the graph of a network: of its labels, if it has one head for them."""
    rows = {0: "rows", 1: "length"}
    inputs = {name: torch.zeros(2, 3, dtype=torch.long) for name in ROWS}
    shapes: dict[str, dict[int, str]] = {name: rows for name in ROWS}
    if network.heads.labels:
        inputs[PLACES] = torch.arange(3)
        shapes[PLACES] = {0: "places"}
    output = SCORES if network.heads.labels else STATES
    write_onnx(Rows(network).eval(), inputs, shapes, [output], path)


def write_onnx(
    graph: nn.Module,
    inputs: dict[str, Tensor],
    shapes: dict[str, dict[int, str]],
    outputs: Sequence[str],
    path: Path,
) -> None:
    """Let torch write a graph, in one file and in silence."""
    needed("onnxruntime", "onnxscript")
    with warnings.catch_warnings(), torch.no_grad(), _quiet():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=shapes,
            external_data=False,
            dynamo=True,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of what we do not have and do not need."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


class Compiled:
    """A graph in its runtimes: many batches side by side on a core each, or one on all cores."""

    def __init__(self, path: Path, *, int8: bool) -> None:
        needed("onnxruntime")
        self.path, self.int8 = path, int8
        self.runners: dict[int, Runner] = {}  # by the number of their threads
        self.lock = Lock()

    @property
    def workers(self) -> int:
        """One for each core, since they then wait for nothing."""
        return torch.get_num_threads()

    def scores(self, batch: Batch) -> Tensor:
        """What the head says at the places to read.  -> [P, C]"""
        return self._run(batch, {PLACES: batch.labels[READ].numpy()}, SCORES)

    def last(self, batch: Batch) -> Tensor:
        """The states of the last block.  -> [B, S, D]"""
        return self._run(batch, {}, STATES)

    def _run(self, batch: Batch, more: dict[str, Any], output: str) -> Tensor:
        rows = {name: getattr(batch, name).numpy() for name in ROWS}
        try:
            return torch.from_numpy(self._runner()(output, {**rows, **more}))
        except Exception as error:  # they have no common kind
            why = " ".join(str(error).split())[:200]
            raise FolderError(
                f"{self.path}: cannot be run ({why}). Compile the model again, with what is "
                "installed here."
            ) from error

    def _runner(self) -> Runner:
        """One for as many threads as the caller has; made once."""
        threads = cores()
        with self.lock:
            if threads not in self.runners:
                self.runners[threads] = self._made(threads)
            return self.runners[threads]

    def _made(self, threads: int) -> Runner:
        if threads == 1 and multiplies_bytes() and installed("openvino"):
            return openvino(self.path, side_by_side(), exact=not self.int8)
        return onnx_runtime(self.path, threads)
