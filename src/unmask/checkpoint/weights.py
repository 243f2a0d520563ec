"""Safetensors files <-> the tensors of a network, under Hugging Face's names.

Reading is bounded: headers are checked and compared with the config before any tensor is read, and
every value that is read must be finite.
"""

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unmask.checkpoint import tensors
from unmask.checkpoint.header import Entry, read_header
from unmask.checkpoint.tensors import Slot
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.system.disk import open_like_others
from unmask.system.errors import FolderError
from unmask.system.settings import read_json

WEIGHTS, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
FLOATS = ("F32", "F16", "BF16")
_SHARD = re.compile(r"[A-Za-z0-9_-]{1,100}\.safetensors")


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor on disk: its file, its name in that file, and its header entry."""

    path: Path
    name: str
    entry: Entry


def survey(folder: Path, unpickled: Path | None = None) -> dict[str, Found]:
    """List the tensors of a folder by normalized name, reading only the headers."""
    entries: dict[str, Found] = {}
    for path in [unpickled] if unpickled else _files(folder):
        for name, entry in read_header(path).items():
            normalized = tensors.normalized_name(name)
            if normalized in entries:
                raise FolderError(f"{path}: tensor '{name}' occurs twice.")
            if normalized not in tensors.IGNORED:
                entries[normalized] = Found(path, name, entry)
    return entries


def read_into(network: Network, entries: Mapping[str, Found], slots: Mapping[str, Slot]) -> None:
    """Fill a network on the meta device with weights that `match` has accepted."""
    planned: dict[str, Tensor] = network.state_dict()
    state = {
        name: torch.empty(tensor.shape, dtype=torch.float32) for name, tensor in planned.items()
    }
    readers: dict[Path, Callable[[str], Tensor]] = {}
    for name in sorted(entries, key=lambda name: name in tensors.TIED):  # originals before copies
        item, original = entries[name], tensors.TIED.get(name)
        try:
            if item.path not in readers:
                readers[item.path] = safe_open(item.path, framework="pt").get_tensor
            tensor = readers[item.path](item.name)
        except (SafetensorError, OSError) as error:
            raise FolderError(f"{item.path}: cannot be read: {str(error)[:200]}") from None
        if not bool(torch.isfinite(tensor).all()):
            raise FolderError(
                f"{item.path}: tensor '{item.name}' contains NaN or infinity, so the model is "
                "unusable. Use an earlier checkpoint."
            )
        slot = slots[original or name]
        rows = state[slot.ours][slot.rows]
        if original is None:
            rows.copy_(tensor)
        elif not torch.equal(tensor.float(), rows):
            raise FolderError(
                f"{item.path}: '{item.name}' differs from '{original}'; in BERT they are the same "
                "tensor. This model was trained with two, which unmask cannot represent."
            )
    # Assigned, because parameters on the meta device have no memory to copy into.
    network.load_state_dict(state, assign=True)


def match(entries: Mapping[str, Found], slots: Mapping[str, Slot], folder: Path) -> None:
    """Refuse missing, unknown or misshapen tensors before any tensor is read."""
    for name, item in entries.items():
        where, shape = f"{item.path}: tensor '{item.name}'", item.entry.shape
        slot = slots.get(tensors.TIED.get(name, name))
        if slot is None:
            raise FolderError(
                f"{where} {list(shape)} has no place in the network that config.json describes. "
                "Do the two files belong to the same model?"
            )
        if shape != slot.shape:
            raise FolderError(
                f"{where} has shape {list(shape)}; config.json implies {list(slot.shape)}. Do the "
                "two files belong to the same model?"
            )
        if item.entry.dtype not in FLOATS:
            raise FolderError(f"{where} is {item.entry.dtype}; need one of {', '.join(FLOATS)}.")
    missing = [name for name in slots if name not in entries]
    if missing:
        raise FolderError(
            f"{folder}: {len(missing)} of {len(slots)} tensors are missing, the first is "
            f"'{missing[0]}'. Do weights and config.json belong to the same model?"
        )


def write(network: Network, folder: Path) -> None:
    """Write the weights of a network as one safetensors file."""
    state: dict[str, Tensor] = network.state_dict()
    named_tensors = {
        # Copies, because safetensors refuses slices that share memory, as query and key do.
        tensors.on_disk(name, network.shape): state[slot.ours][slot.rows].to("cpu", copy=True)
        for name, slot in tensors.layout(network).items()
    }
    write_tensors(named_tensors, folder / WEIGHTS)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write named tensors as a safetensors file; a full disk raises an OSError."""
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, path, metadata={"format": "pt"})
        open_like_others(path)  # safetensors creates files that only their owner may read
    except SafetensorError as error:  # raised when the disk is full
        raise OSError(errno.EIO, str(error)[:200]) from error


def empty(shape: Shape) -> Network:
    """Build a network on the meta device, without memory for its weights."""
    with torch.device("meta"):
        return Network(shape)


def _files(folder: Path) -> list[Path]:
    """List the weight files of a folder: one file, or the shards in its index."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        if (folder / PICKLED).exists():
            raise FolderError(
                f"{folder / PICKLED}: is a Python pickle, which may run code when it is read; "
                f"need {WEIGHTS}. Convert it safely: unmask convert {folder} --out NEW"
            )
        raise FolderError(f"{folder}: has no {WEIGHTS}; need the weights of a model.")
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise FolderError(f"{index}: has no 'weight_map'; need a table of tensors and their files.")
    files = sorted({str(name) for name in shards.values()})
    for name in files:
        # Only plain names, so that an index cannot lead to files outside its folder.
        if not _SHARD.fullmatch(name):
            raise FolderError(
                f"{index}: the file '{name[:80]}' is not a plain file name; need "
                "something like model-00001-of-00002.safetensors."
            )
        if not (folder / name).is_file():
            raise FolderError(f"{folder / name}: is missing, but {INDEX} lists it. Download it.")
    return [folder / name for name in files]
