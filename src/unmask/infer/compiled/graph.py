"""Network -> ONNX graph of the engine's forward pass, run by ONNX Runtime.

    tokens, segments, index, owner [B, S]             -> states [B, S, D] of the last block
    tokens, segments, index, owner, and places [P]    -> scores [P, C] of a model with labels

Rows are packed; `owner` tells their texts apart. `places` are positions in the flattened batch.
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
from unmask.tasks.forward import READ_PLACES, scores_at

COMPILED = "compiled.onnx"  # file name in a model folder
DISABLED_FUSION = "SkipLayerNormFusion"  # eight times as slow on one core as unfused
ROWS = "tokens", "segments", "index", "owner"
PLACES, STATES, SCORES = "places", "states", "scores"
Array = NDArray[Any]
SHAPES = {1: {0: "places"}, 2: {0: "batch", 1: "length"}}  # dynamic dimensions by rank


class GraphSession(Protocol):
    """The part of onnxruntime.InferenceSession that is used here."""

    def run(self, names: list[str], inputs: dict[str, Array]) -> list[Array]:
        """Compute the named outputs."""


class EngineGraph(nn.Module):
    """A network as the graph computes it: hidden states or, at given places, label scores."""

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
        """Run the encoder, and the label head if `places` are given (see the module docstring)."""
        rows = PlainRows(tokens, segments, index, owner)
        # `shared` keeps the mask of texts, which single texts as example inputs would not need.
        if places is None:
            return self.network.encode(rows, shared=True)
        return scores_at(self.network, rows, places, shared=True)


def refuse_other_than_transformers(network: Network, path: Path) -> None:
    """Refuse decoders and recurrent layers, for which no graph can be written."""
    cells = {config.cell for config in network.shape.encoders.values()}
    if network.shape.decoder or cells != {"attention"}:
        raise SettingsError(
            f"{path}: the model has a decoder or recurrent layers; ONNX graphs can only be made of "
            "Transformer encoders and their label heads."
        )


def refuse_other_encoders(
    network: Network, path: Path | str, names: Iterable[str], feature: str
) -> None:
    """Refuse the named heads if they read another encoder than the main one."""
    for name in names:
        head = network.shape.heads.get(name)
        if head is not None and head.encoder != MAIN:
            raise SettingsError(
                f"{path}: its head '{name}' reads the encoder '{head.encoder}', but {feature} "
                "only the main encoder. Publish that encoder with its heads in its own folder "
                "(Objective.publish), and use that folder."
            )


def write_rows(network: Network, path: Path) -> None:
    """Write the graph of a network, up to its label scores if it has labels."""
    # Sizes of 0 and 1 would be taken as constants.
    inputs = {name: torch.zeros(2, 3, dtype=torch.long) for name in ROWS}
    if network.shape.labels:
        inputs[PLACES] = torch.arange(3)
    output = SCORES if network.shape.labels else STATES
    write_onnx(EngineGraph(network).eval(), inputs, [output], path)


def write_onnx(
    graph: nn.Module, inputs: dict[str, Tensor], outputs: Sequence[str], path: Path
) -> None:
    """Export a graph into one file, without torch's log output and warnings."""
    require("an ONNX graph", "onnxruntime", "onnxscript", extra="onnx")
    logger = logging.getLogger("torch.onnx")  # warns of packages that are not needed here
    log_level = logger.level
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
                dynamic_shapes={name: SHAPES[tensor.ndim] for name, tensor in inputs.items()},
                external_data=False,
                dynamo=True,
                verbose=False,
            )
    finally:
        logger.setLevel(log_level)


def onnxruntime_installed() -> bool:
    """Return whether ONNX Runtime is installed."""
    return find_spec("onnxruntime") is not None


class CompiledForward:
    """A compiled graph in ONNX Runtime: one batch per core in parallel, or one on all cores."""

    def __init__(self, path: Path) -> None:
        require("a compiled model", "onnxruntime", extra="onnx")
        self.path = path
        self.sessions: dict[int, GraphSession] = {}  # by number of threads
        self.lock = Lock()

    @property
    def workers(self) -> int:
        """One worker per core: cores with batches of their own need no synchronisation."""
        return torch.get_num_threads()

    def scores(self, batch: Batch) -> Tensor:
        """Compute the label scores at the places that the batch names.  -> [P, C]"""
        return self._run(batch, {PLACES: batch.labels[READ_PLACES].numpy()}, SCORES)

    def last(self, batch: Batch) -> Tensor:
        """Compute the hidden states of the last block.  -> [B, S, D]"""
        return self._run(batch, {}, STATES)

    def _run(self, batch: Batch, more_inputs: dict[str, Array], output: str) -> Tensor:
        rows = batch.tokens, batch.segments, batch.index, batch.owner
        inputs = {name: row.numpy() for name, row in zip(ROWS, rows, strict=True)}
        try:
            (outputs,) = self._session().run([output], inputs | more_inputs)
        except Exception as error:  # its errors share no class below Exception
            reason = " ".join(str(error).split())[:200]
            raise FolderError(
                f"{self.path}: ONNX Runtime cannot run it ({reason}). Compile the model again with "
                "the versions installed here."
            ) from error
        return torch.from_numpy(outputs)

    def _session(self) -> GraphSession:
        """Return a session with as many threads as the caller has cores."""
        from onnxruntime import InferenceSession, SessionOptions

        # A session's number of threads is fixed, so workers (one core each) and callers with all
        # cores need different ones. The lock: several workers may ask for the first one at once.
        threads = cores()
        with self.lock:
            if threads not in self.sessions:
                options = SessionOptions()
                options.intra_op_num_threads = threads
                options.log_severity_level = 3  # errors only
                self.sessions[threads] = InferenceSession(
                    self.path,
                    options,
                    providers=["CPUExecutionProvider"],
                    disabled_optimizers=[DISABLED_FUSION],
                )
            return self.sessions[threads]
