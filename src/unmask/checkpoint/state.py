"""Training state <-> disk: a model folder, with the optimizer's tensors and the state of the run.

    checkpoints/step-500/   config.json  model.safetensors  tokenizer files   (a model folder)
                            optimizer.safetensors  state.json                 (to resume from)
                            objective.safetensors   the objective's own parameters, if it has any

So every checkpoint can be used as a model, and nothing is pickled. Checkpoints are published whole,
and older ones are removed afterwards. A checkpoint that was damaged is skipped with a warning.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unmask.checkpoint.folder import load_folder
from unmask.checkpoint.old_names import tensor_name
from unmask.checkpoint.weights import write_tensors
from unmask.model.network import Network
from unmask.system.disk import remove_leftovers
from unmask.system.errors import FolderError
from unmask.system.settings import read_json

OPTIMIZER, OBJECTIVE, STATE = "optimizer.safetensors", "objective.safetensors", "state.json"
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class State:
    """Everything that a run resumes from."""

    path: Path
    network: Network
    optimizer: dict[str, Tensor]
    own: dict[str, Tensor]  # the objective's own parameters
    facts: dict[str, Any]


def write_state(
    inside: Path, moments: dict[str, Tensor], own: dict[str, Tensor], facts: dict[str, Any]
) -> None:
    """Add the state of a run to a model folder that is not published yet.

    `own` are the objective's own parameters.
    """
    write_tensors(moments, inside / OPTIMIZER)
    if own:
        write_tensors(own, inside / OBJECTIVE)
    (inside / STATE).write_text(json.dumps(facts, indent=1) + "\n", "utf-8", newline="\n")


def refuse_non_finite(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raise an error if a tensor holds NaN or infinity, before anything is written to disk."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise FolderError(
                f"{folder}: '{name}' contains NaN or infinity, so no checkpoint is saved; the last "
                "one is unchanged. Start over with a lower learning rate."
            )


def prune(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`."""
    with suppress(OSError):  # a run must not end because old files remain
        for old in checkpoints(folder)[keep:]:
            # Renamed first, so that a process killed in rmtree leaves no half checkpoint under its
            # name.
            hidden = old.with_name(f".{old.name}.tmp-old")
            shutil.rmtree(hidden, ignore_errors=True)
            old.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """List the published checkpoints of a run, newest first."""
    # By number, because as text step-9 would be newer than step-10.
    numbered = [
        (int(match[1]), path)
        for path in folder.glob("step-*")
        if (match := _STEP.fullmatch(path.name))
    ]
    return [path for _, path in sorted(numbered, reverse=True)]


def newest_state(folder: Path, notice: Callable[[str], None]) -> State | None:
    """Load the newest intact checkpoint; return None if none has been published yet."""
    remove_leftovers(folder, ".step-*.tmp-*")
    last_error: FolderError | OSError | None = None
    paths = checkpoints(folder)
    for index, path in enumerate(paths):
        try:
            state = load_state(path)
        except (FolderError, OSError) as error:  # OSError: the disk cannot read it
            notice(f"warning: {error} Resuming from the checkpoint before it.")
            last_error = error
            continue
        for damaged in paths[:index]:  # set aside: the run will write these steps again
            with suppress(FileNotFoundError):  # another process has renamed it
                damaged.rename(damaged.with_name(f"damaged-{damaged.name}-{os.urandom(3).hex()}"))
        return state
    if last_error:
        raise FolderError(f"{folder}: every checkpoint is damaged. The last error: {last_error}")
    return None


def load_state(path: Path) -> State:
    """Load a checkpoint, verifying every byte of it."""
    model = load_folder(path)  # verifies the digests of all files
    if model.manifest is None:
        raise FolderError(f"{path}: has no unmask.json, so unmask did not publish it.")
    if not (path / STATE).is_file() or not (path / OPTIMIZER).is_file():
        raise FolderError(f"{path}: has no training state to resume from, only a model.")
    moments = {_optimizer_key(key): tensor for key, tensor in _read(path / OPTIMIZER).items()}
    objective_parameters = _read(path / OBJECTIVE) if (path / OBJECTIVE).is_file() else {}
    return State(path, model.network, moments, objective_parameters, read_json(path / STATE))


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{path}: cannot be read: {str(error)[:200]}") from None


def _optimizer_key(key: str) -> str:
    """Translate the name of an optimizer's tensor to today's.

    >>> _optimizer_key("exp_avg/encoder.norm.weight")
    'exp_avg/encoders.main.embeddings.norm.weight'
    """
    kind, _, name = key.partition("/")
    return f"{kind}/{tensor_name(name)}"
