"""Training state <-> disk: a model folder with the optimizer's tensors and the run's facts beside.

    checkpoints/step-500/   config.json  model.safetensors  tokenizer files   (a model folder)
                            optimizer.safetensors  state.json                 (to go on from)

So every checkpoint can be used as a model, and nothing is pickled. Folders are published whole,
older ones removed after; one that was damaged since is passed over, and said to be.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.weights import write_tensors
from unmask.disk import sweep
from unmask.errors import FolderError
from unmask.model.network import Network, count_parameters
from unmask.settings import read_json
from unmask.text.tokenizer import Tokenizer

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class State:
    """What a run goes on from."""

    path: Path
    network: Network
    optimizer: dict[str, Tensor]
    facts: dict[str, Any]


def save_state(
    folder: Path,
    network: Network,
    tokenizer: Tokenizer,
    optimizer: dict[str, Tensor],
    facts: dict[str, Any],
    *,
    step: int,
    keep: int,
    recipe: dict[str, Any],
    provenance: dict[str, Any],
    target: Tokenizer | None = None,
) -> Path:
    """Publish the state of a run at a step, then remove all but the newest `keep`."""
    _refuse_poison(network, optimizer, folder)
    place = folder / f"step-{step}"
    size = 4 * (count_parameters(network) + sum(t.numel() for t in optimizer.values()))

    def write(inside: Path) -> None:
        tensors = {name: tensor.contiguous() for name, tensor in optimizer.items()}
        write_tensors(tensors, inside / OPTIMIZER)
        (inside / STATE).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")

    save_folder(
        place,
        network,
        tokenizer,
        target=target,
        recipe=recipe,
        provenance=provenance,
        beside=write,
        needed=size + 2**20,
    )
    prune(folder, keep)
    return place


def prune(folder: Path, keep: int) -> None:
    """Remove all states but the newest `keep`."""
    with suppress(OSError):  # the new ones stand; the old ones may go another time
        for old in checkpoints(folder)[keep:]:
            _remove(old)


def checkpoints(folder: Path) -> list[Path]:
    """The published states of a run, newest first."""
    found = [
        (int(m[1]), path) for path in folder.glob("step-*") if (m := _STEP.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


def newest_state(folder: Path, notice: Callable[[str], None]) -> State | None:
    """The newest state that is intact; None where no state has been published yet."""
    sweep(folder, ".step-*.tmp-*")
    damaged: list[Path] = []
    last: FolderError | OSError | None = None
    for path in checkpoints(folder):
        try:
            state = load_state(path)
        except (FolderError, OSError) as error:  # an OSError: a disk that cannot read it
            notice(f"warning: {error} Going on from the one before it.")
            damaged, last = [*damaged, path], error
            continue
        for bad in damaged:  # kept, but not in the way of the same step
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
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path / OPTIMIZER, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensors[name] = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{path / OPTIMIZER}: cannot be read: {str(error)[:200]}") from None
    return State(path, model.network, tensors, read_json(path / STATE))


def _remove(old: Path) -> None:
    """Take a folder out of sight in one step, then delete it."""
    hidden = old.with_name(f".{old.name}.tmp-old")
    shutil.rmtree(hidden, ignore_errors=True)
    old.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _refuse_poison(network: Network, optimizer: dict[str, Tensor], folder: Path) -> None:
    """Nothing that is not a number reaches the disk."""
    for name, tensor in [*network.state_dict().items(), *optimizer.items()]:
        if not bool(torch.isfinite(tensor).all()):
            raise FolderError(
                f"{folder}: '{name}' holds NaN or infinity; it is not saved, and the last "
                "checkpoint stands. Begin again with a lower rate."
            )
