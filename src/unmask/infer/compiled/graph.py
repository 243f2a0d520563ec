"""The engine's pass as an ONNX graph, and ONNX Runtime to run it.

tokens, segments, index, owner [B, S]              -> states [B, S, D], of the last block
the same, and places [P] in the flat batch         -> scores [P, C], of a model with labels
"""

import logging
import warnings
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.data.batch import Batch
from unmask.infer.engine import cores
from unmask.model.network import Network, PlainRows
from unmask.model.shape import MAIN
from unmask.system.errors import FolderError, SettingsError, require
from unmask.tasks.forward import READ, scores_at

COMPILED = "compiled.onnx"  # in a model's folder
SLOW = "SkipLayerNormFusion"  # takes eight times as long as what it fuses, on one core
ROWS = "tokens", "segments", "index", "owner"
PLACES, STATES, SCORES = "places", "states", "scores"
Array = NDArray[Any]
SHAPES = {1: {0: "places"}, 2: {0: "batch", 1: "length"}}  # by how many dimensions an input has


class GraphSession(Protocol):
    """A graph in ONNX Runtime."""

    def run(self, names: list[str], inputs: dict[str, Array]) -> list[Array]:
        """The outputs of these names."""


class EngineGraph(nn.Module):
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
        rows = PlainRows(tokens, segments, index, owner)
        if places is None:
            return self.network.encode(rows, shared=True)
        return scores_at(self.network, rows, places, shared=True)


def refuse_other_than_transformers(network: Network, path: Path) -> None:
    """Graphs are of BERT: of an encoder, and of labels on it."""
    cells = {config.cell for config in network.shape.encoders.values()}
    if network.shape.decoder or cells != {"attention"}:
        raise SettingsError(
            f"{path}: a model that translates, or whose layers are recurrent; graphs are made of "
            "Transformer encoders and their labels."
        )


def refuse_other_encoders(
    network: Network, path: Path | str, names: Iterable[str], what: str
) -> None:
    """Refuse some heads on another encoder, where only the main one can be followed."""
    for name in names:
        head = network.shape.heads.get(name)
        if head is not None and head.encoder != MAIN:
            raise SettingsError(
                f"{path}: its head '{name}' reads the encoder '{head.encoder}', and {what} the "
                "main encoder alone. Publish that encoder with its heads as a folder of its own "
                "(Objective.publish), and give that folder."
            )


def write_rows(network: Network, path: Path) -> None:
    """Write the graph of a network: of its labels, if it has one head for them."""
    inputs = {name: torch.zeros(2, 3, dtype=torch.long) for name in ROWS}
    if network.shape.labels:
        inputs[PLACES] = torch.arange(3)
    output = SCORES if network.shape.labels else STATES
    write_onnx(EngineGraph(network).eval(), inputs, [output], path)


def write_onnx(
    graph: nn.Module, inputs: dict[str, Tensor], outputs: Sequence[str], path: Path
) -> None:
    """Let torch write a graph, in one file and in silence."""
    require("an ONNX graph", "onnxruntime", "onnxscript", extra="onnx")
    logger = logging.getLogger("torch.onnx")  # warns of what we do not have and do not need
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                graph,
                tuple(inputs.values()),
                path,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes={name: SHAPES[given.ndim] for name, given in inputs.items()},
                external_data=False,
                dynamo=True,
                verbose=False,
            )
    finally:
        logger.setLevel(before)


def installed() -> bool:
    """Is ONNX Runtime here?"""
    return find_spec("onnxruntime") is not None


class CompiledForward:
    """A graph in ONNX Runtime: many batches side by side on a core each, or one on all cores."""

    def __init__(self, path: Path) -> None:
        require("a compiled model", "onnxruntime", extra="onnx")
        self.path = path
        self.sessions: dict[int, GraphSession] = {}  # by the number of their threads
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

    def _run(self, batch: Batch, more: dict[str, Array], output: str) -> Tensor:
        rows = batch.tokens, batch.segments, batch.index, batch.owner
        inputs = {name: row.numpy() for name, row in zip(ROWS, rows, strict=True)}
        try:
            (found,) = self._session().run([output], inputs | more)
        except Exception as error:  # it has no common kind
            why = " ".join(str(error).split())[:200]
            raise FolderError(
                f"{self.path}: ONNX Runtime cannot run it ({why}). Compile the model again, with "
                "what is installed here."
            ) from error
        return torch.from_numpy(found)

    def _session(self) -> GraphSession:
        """One for as many threads as the caller has; made once."""
        from onnxruntime import InferenceSession, SessionOptions

        threads = cores()
        with self.lock:
            if threads not in self.sessions:
                options = SessionOptions()
                options.intra_op_num_threads = threads
                options.log_severity_level = 3
                self.sessions[threads] = InferenceSession(
                    self.path,
                    options,
                    providers=["CPUExecutionProvider"],
                    disabled_optimizers=[SLOW],
                )
            return self.sessions[threads]
