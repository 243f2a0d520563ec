"""A safetensors file -> its header, checked before any memory is allocated.

The file begins with eight bytes, the length of a JSON header; the header gives the type, shape and
byte range of each tensor. Everything in it is checked here: that it is small, that shapes match
byte ranges, and that the ranges fill the file without gaps or overlaps.
"""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path

from unmask.system.errors import FolderError
from unmask.system.settings import parse_json

HEADER_LIMIT = 2**20  # bytes: a BERT of 24 layers needs 50,000
TENSOR_LIMIT = 10_000
DIMENSION_LIMIT = 2**31
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}  # I64 only for a buffer that is ignored
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


@dataclass(frozen=True, slots=True)
class Entry:
    """Header entry of one tensor: type, shape and byte range."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """Read and check the header of a safetensors file; return its tensors by name."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        # The length is whatever the file claims: compare it before reading that much.
        if size < 8 or length > size - 8:
            raise FolderError(
                f"{path}: claims a header of {length:,} bytes, but the file has {size:,}; it is "
                "truncated or not a safetensors file. Download it again."
            )
        if length > HEADER_LIMIT:
            raise FolderError(
                f"{path}: the header has {length:,} bytes; unmask reads at most {HEADER_LIMIT:,}, "
                "twenty times what the largest BERT needs."
            )
        table: dict[str, object] = parse_json(file.read(length), where=f"{path} (header)")
    table.pop("__metadata__", None)
    if len(table) > TENSOR_LIMIT:
        raise FolderError(
            f"{path}: has {len(table):,} tensors; unmask reads at most {TENSOR_LIMIT:,}."
        )
    entries = {name: _entry(name, value, path) for name, value in table.items()}
    _refuse_gaps(entries, size - 8 - length, path)
    return entries


def _entry(name: str, value: object, path: Path) -> Entry:
    where = f"{path}: tensor {name[:80]!r}"
    if not _NAME.fullmatch(name):
        raise FolderError(f"{where}: invalid name; only letters, digits, '.', '_' and '-'.")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise FolderError(f"{where}: need dtype, shape and data_offsets, and nothing else.")
    dtype: object = value["dtype"]
    shape, offsets = _sizes(value["shape"]), _sizes(value["data_offsets"])
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise FolderError(f"{where}: type {dtype!r:.20}; need one of {', '.join(sorted(BYTES))}.")
    if shape is None or offsets is None or len(offsets) != 2:
        sizes = f"shape {value['shape']!r:.60} or offsets {value['data_offsets']!r:.60}"
        raise FolderError(f"{where}: {sizes} are not valid sizes.")
    if len(shape) > 4 or any(not 0 < n <= DIMENSION_LIMIT for n in shape):
        raise FolderError(
            f"{where}: shape {shape!r:.60} is out of range; need at most 4 dimensions of 1 to "
            f"{DIMENSION_LIMIT:,}."
        )
    begin, end = offsets
    if end - begin != prod(shape) * BYTES[dtype]:
        raise FolderError(
            f"{where}: has {end - begin:,} bytes, but shape {shape} of {dtype} needs "
            f"{prod(shape) * BYTES[dtype]:,}."
        )
    return Entry(dtype, tuple(shape), begin, end)


def _sizes(value: object) -> list[int] | None:
    """Return a list of sizes, or None for anything else."""
    numbers: list[object] = value if isinstance(value, list) else [None]
    # `type` and not isinstance, because True is an int too.
    sizes = [n for n in numbers if type(n) is int and 0 <= n < 2**63]
    return sizes if len(sizes) == len(numbers) else None


def _refuse_gaps(entries: dict[str, Entry], size: int, path: Path) -> None:
    """Raise an error unless the tensors follow each other and end where the file ends."""
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].begin):
        if entry.begin != position:
            problem = (
                "overlaps the tensor before it"
                if entry.begin < position
                else "leaves a gap before it"
            )
            raise FolderError(f"{path}: tensor '{name}' {problem} (byte {entry.begin:,}).")
        position = entry.end
    if position != size:
        raise FolderError(
            f"{path}: the tensors take {position:,} bytes, but the file holds {size:,}; it was "
            "truncated, or data was appended."
        )
