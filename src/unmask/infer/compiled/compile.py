"""Model -> compiled model folder, written only if its answers agree with the model's.

The new folder is the model's own folder with an ONNX graph of the engine's forward pass beside the
weights. For int8, half of the texts calibrate the input ranges of each layer. The other half
measures the agreement, in fp32 as well.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from unmask.checkpoint.folder import save_folder
from unmask.data.labelled.columns import Columns
from unmask.data.read.docstrings import read_library
from unmask.data.read.texts import read_texts
from unmask.infer.compiled.graph import (
    COMPILED,
    CompiledForward,
    refuse_other_encoders,
    refuse_other_than_transformers,
    write_rows,
)
from unmask.infer.model import Model
from unmask.infer.predict import read_records
from unmask.model.kernels.int8 import observing, quantized
from unmask.model.shape import LABELS
from unmask.system.console import Console
from unmask.system.disk import check_output_folder
from unmask.system.errors import DataError, FolderError, SettingsError, require
from unmask.tasks.forward import Forward, LiveForward

MIN_TEXTS, DEFAULT_TEXTS, MAX_TEXTS = (
    20,
    400,
    2000,
)  # texts: required; taken by default; taken of a file
MIN_COSINE = 0.985  # least cosine between a vector and its full-precision counterpart


@dataclass(frozen=True)
class Agreements:
    """Agreement of the compiled model with the original, as a share or a cosine."""

    found: float
    bar: float  # the least value to accept
    texts: int
    text: str  # the result as a sentence


def compile_model(
    model: Model,
    out: Path,
    records: Sequence[Any],
    *,
    int8: bool,
    least: float | None = None,
    say: Callable[[str], None] = Console().say,
) -> Agreements:
    """Compile a model into a new folder; refuse a result whose answers differ too much.

    `records` are records of the model's task, or texts for an encoder. `least` replaces the usual
    limit of the agreement.
    """
    check_output_folder(out, renamed=True)
    require("an ONNX graph", "onnxruntime", "onnxscript", extra="onnx")
    refuse_other_than_transformers(model.network, model.path)
    if len(records) < MIN_TEXTS:
        raise DataError(
            f"{len(records)} texts to compile with; need at least {MIN_TEXTS}. Give more (--texts)."
        )
    network = model.network
    if int8:
        refuse_other_encoders(network, model.path, [LABELS], "--int8 covers")
        say(f"watching the layers read {len(records[::2]):,} texts")
        # Calibration and comparison never share a text: agreement on the texts that the ranges were
        # fitted to would be too good.
        with observing(network) as seen:
            _answers(model, _Alone(network), records[::2])
        network = quantized(network, seen)
    compared: list[Agreements] = []

    # Runs inside the unfinished folder, so an error here leaves nothing behind.
    def beside(folder: Path) -> None:
        say("writing the graph")
        write_rows(network, folder / COMPILED)
        say(f"comparing the answers to {len(records[1::2]):,} others")
        compared.append(_compared(model, CompiledForward(folder / COMPILED), records[1::2], say))
        found = compared[-1]
        bar = found.bar if least is None else least
        if not found.found >= bar:  # written this way, NaN is refused, too
            raise FolderError(
                f"{model.path}: {found.text}; need at least {bar}. Nothing was written. Give "
                "texts like those it will read (--texts), or accept less (--least)."
            )

    manifest = model.manifest or {}
    save_folder(
        out,
        model.network,
        model.tokenizer,
        recipe=manifest.get("recipe"),
        provenance={**(manifest.get("provenance") or {}), "compiled": "int8" if int8 else "fp32"},
        task=manifest.get("task"),
        beside=beside,
    )
    return compared[0]


def records_for(model: Model, source: str | None, column: str | None = None) -> list[Any]:
    """Read the records of a file; without one, use documentation of the standard library."""
    plain = model.network.shape.labels is None
    if source is not None:
        if plain:
            return [record.text for record in islice(read_texts(source, column=column), MAX_TEXTS)]
        found = read_records(model.task, source, Columns(column))
        return list(islice((record for record in found if "".join(record.key).strip()), MAX_TEXTS))
    modules = read_library("python", limit=DEFAULT_TEXTS * 1000)
    texts = [paragraph for module in modules for paragraph in module.paragraphs][:DEFAULT_TEXTS]
    if plain:
        return texts
    task, records = model.task, []
    needed = task.Ask.needed()
    if len(needed) > 1:
        raise SettingsError(
            f"{model.path}: asks about {' and '.join(needed)}, and there are none on this machine. "
            "Give some (--texts), as JSON lines."
        )
    for number, text in enumerate(texts, start=1):
        where = f"text {number}"
        records.append(task.record(task.Ask.of_line(text, where), where, number))
    return records


def _compared(
    model: Model, compiled: CompiledForward, records: Sequence[Any], say: Callable[[str], None]
) -> Agreements:
    truth, found = (_answers(model, forward, records) for forward in (model.live, compiled))
    count = len(records)
    if model.network.shape.labels is None:
        cosines = (np.stack(truth) * np.stack(found)).sum(axis=1)
        # The worst vector decides: the mean hides single texts that int8 changes a lot.
        mean, least = float(cosines.mean()), float(cosines.min())
        text = f"vectors of {count:,} texts: cosine to full precision {mean:.4f} on average, "
        return Agreements(least, MIN_COSINE, count, f"{text}{least:.4f} at least")
    if model.task.alike(truth):
        say("warning: the model says the same of all these texts; give some that differ (--texts)")
    agreement = model.task.agreement(truth, found)
    text = agreement.text.format(share=agreement.share, texts=count)
    return Agreements(agreement.share, agreement.least, count, text)


def _answers(model: Model, forward: Forward, records: Sequence[Any]) -> list[Any]:
    """Answer records with another forward pass."""
    other = copy(model)  # the caller's model keeps its own forward pass and counts
    other.forward = forward
    if model.network.shape.labels is None:
        return list(other.embeddings(records))
    return list(other.predict(records))


class _Alone(LiveForward):
    """A network that runs one batch at a time: observers of ranges are not thread-safe."""

    @property
    def workers(self) -> int:
        return 1
