"""Old pickled weights -> safetensors, in a child process that can do little harm.

pytorch_model.bin is a Python pickle, which is a program that builds tensors. It is read only here,
when `unmask convert` asks for it: with torch's restricted reader (`weights_only=True`), in a child
process with limited memory and time, after the directory of the zip file has been checked.
"""

import os
import pickle
import platform
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

from unmask.system.errors import FolderError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

SECONDS = 300
MEMORY_FACTOR = 4  # bytes of address space per byte of the file, above what torch itself needs
TORCH_NEEDS = 6 * 2**30  # bytes of address space


def unpickle(source: Path, target: Path) -> None:
    """Convert the tensors of a .bin file to a safetensors file."""
    _check_zip(source)
    if resource is None:
        raise _without_limits(source, "Python has no module 'resource' here")
    # The child gets nothing of the user's: neither their environment nor the current folder's
    # modules.
    command = [sys.executable, "-I", "-m", "unmask.checkpoint.pickled", str(source), str(target)]
    size = source.stat().st_size
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
            check=False,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: _limit(size),
        )
    except subprocess.TimeoutExpired:
        raise FolderError(f"{source}: reading it took over {SECONDS} s and was stopped.") from None
    except subprocess.SubprocessError:  # from _limit: macOS may refuse to limit memory
        raise _without_limits(source, "the system refused to set them") from None
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["the child process crashed"]
        raise FolderError(f"{source}: refused: {lines[-1][:300]}")


def _limit(size: int) -> None:
    if sys.platform == "win32":  # for type checkers, which know what it lacks
        raise NotImplementedError
    # Runs in the child, before the program starts: the limits hold for all of it.
    memory = TORCH_NEEDS + MEMORY_FACTOR * size
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _without_limits(source: Path, reason: str) -> FolderError:
    return FolderError(
        f"{source}: is a pickle, which unmask reads only in a process with limited memory and "
        f"time. These limits cannot be set on this system ({platform.system() or os.name}: "
        f"{reason}). Convert it on Linux, or get the model's safetensors file."
    )


def _check_zip(source: Path) -> None:
    """Refuse a zip file that unpacks to more than its size; torch stores members uncompressed."""
    if not source.is_file():
        raise FolderError(f"{source}: no such file.")
    if not zipfile.is_zipfile(source):
        return  # the format before torch 1.6: a bare pickle, bounded by the child's limits
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise FolderError(
            f"{source}: the zip file is damaged ({error}). Download it again."
        ) from None
    names = [member.filename.lower() for member in members]
    count = Counter(names)
    for member, name in zip(members, names, strict=True):
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise FolderError(
                f"{source}: '{member.filename[:80]}' is compressed; torch compresses none."
            )
        if count[name] > 1 or ".." in name or name.startswith("/"):
            raise FolderError(f"{source}: '{member.filename[:80]}' occurs twice or leads outside.")
    if sum(member.file_size for member in members) > source.stat().st_size:
        raise FolderError(f"{source}: its members claim more bytes than the file has.")


def _child(source: str, target: str) -> None:
    """Read the pickle, check each tensor and write them all; runs alone in the child process."""
    import torch
    from safetensors.torch import save_file

    try:
        loaded: object = torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as error:
        rejected = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it asks for {rejected[1]}" if rejected else (str(error).strip() or repr(error))
        sys.exit(f"torch's restricted reader refuses it: {reason.splitlines()[0]}")
    if not isinstance(loaded, dict):
        sys.exit(f"holds a {type(loaded).__name__}; need a dictionary of tensors")
    tensors = {}
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            sys.exit(f"'{name!s:.80}' is a {type(tensor).__name__}; need tensors only")
        if tensor.is_sparse or tensor.is_quantized:
            sys.exit(f"tensor '{name[:80]}' is sparse or quantised; need dense tensors")
        # Strides of 0 make a huge tensor of a few bytes, and copying it would fill the memory.
        if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            sys.exit(f"tensor '{name[:80]}' is larger than its stored data")
        # A copy, because old files have views of one storage, which safetensors refuses to write.
        tensors[name] = tensor.clone(memory_format=torch.contiguous_format)
    save_file(tensors, target, metadata={"format": "pt"})


if __name__ == "__main__":
    _child(*sys.argv[1:])
