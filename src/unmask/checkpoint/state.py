"""Training state <-> disk: a model folder with the optimizer's tensors and the run's facts beside.

    checkpoints/step-500/   config.json  model.safetensors  tokenizer files   (a model folder)
                            optimizer.safetensors  state.json                 (to resume from)
                            objective.safetensors   the objective's own parameters, if it has any

So every checkpoint can be used as a model, and nothing is pickled. Folders are published whole,
older ones removed after; one that was damaged since is passed over, and said to be.
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
    """What a run goes on from."""

    path: Path
    network: Network
    optimizer: dict[str, Tensor]
    own: dict[str, Tensor]  # parameters of the objective
    facts: dict[str, Any]


def write_state(
    inside: Path, moments: dict[str, Tensor], own: dict[str, Tensor], facts: dict[str, Any]
) -> None:
    """Write what a model folder needs to be the state of a run, before it is published.

    `own` are the parameters of the objective.
    """
    write_tensors(moments, inside / OPTIMIZER)
    if own:
        write_tensors(own, inside / OBJECTIVE)
    (inside / STATE).write_text(json.dumps(facts, indent=1) + "\n", "utf-8", newline="\n")


def refuse_poison(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse a state with NaN or infinity before anything of it reaches the disk."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise FolderError(
                f"{folder}: '{name}' holds NaN or infinity; it is not saved, and the last "
                "checkpoint stands. Begin again with a lower rate."
            )


def prune(folder: Path, keep: int) -> None:
    """Remove all states but the newest `keep`: out of sight in one step, then from the disk."""
    with suppress(OSError):  # the new ones stand; the old ones may go another time
        for old in checkpoints(folder)[keep:]:
            hidden = old.with_name(f".{old.name}.tmp-old")
            shutil.rmtree(hidden, ignore_errors=True)
            old.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """The published states of a run, newest first."""
    found = [
        (int(m[1]), path) for path in folder.glob("step-*") if (m := _STEP.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


def newest_state(folder: Path, notice: Callable[[str], None]) -> State | None:
    """The newest state that is intact; None where no state has been published yet."""
    remove_leftovers(folder, ".step-*.tmp-*")
    last: FolderError | OSError | None = None
    found = checkpoints(folder)
    for damaged, path in enumerate(found):
        try:
            state = load_state(path)
        except (FolderError, OSError) as error:  # an OSError: a disk that cannot read it
            notice(f"warning: {error} Going on from the one before it.")
            last = error
            continue
        for bad in found[:damaged]:  # kept, but not in the way of the same step
            with suppress(FileNotFoundError):  # another process of the run was quicker
                bad.rename(bad.with_name(f"damaged-{bad.name}-{os.urandom(3).hex()}"))
        return state
    if last:
        raise FolderError(f"{folder}: every checkpoint is damaged. The last: {last}")
    return None


def load_state(path: Path) -> State:
    """Read a checkpoint, every byte of it checked."""
    model = load_folder(path)  # compares the digests of all files
    if model.manifest is None:
        raise FolderError(f"{path}: no unmask.json in it; it was not published by unmask.")
    if not (path / STATE).is_file() or not (path / OPTIMIZER).is_file():
        raise FolderError(f"{path}: a model without its training state; nothing to go on from.")
    moments = {_moment(key): tensor for key, tensor in _read(path / OPTIMIZER).items()}
    own = _read(path / OBJECTIVE) if (path / OBJECTIVE).is_file() else {}
    return State(path, model.network, moments, own, read_json(path / STATE))


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{path}: cannot be read: {str(error)[:200]}") from None


def _moment(key: str) -> str:
    """Today's name of an optimizer's tensor.

    >>> _moment("exp_avg/encoder.norm.weight")
    'exp_avg/encoders.main.embeddings.norm.weight'
    """
    kind, _, name = key.partition("/")
    return f"{kind}/{tensor_name(name)}"
