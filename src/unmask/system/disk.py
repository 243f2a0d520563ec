"""Bytes -> disk, so that a crash leaves the old state or the new one, never a mixture.

    write_file          a file: temporary name, fsync, rename, fsync of the folder
    temporary_folder    a folder beside its target, locked while its writer lives
    put_in_place        renames such a folder to its target
    file_lock           a lock that one process holds and that ends with that process
    check_output_*      whether an output can be written, checked before the work starts

This module knows nothing about what the bytes mean.
"""

import errno
import hashlib
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from unmask.system import locks
from unmask.system.errors import FolderError, SettingsError

DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
NAME_LIMIT = 255  # bytes in a file name
WINDOWS = os.name == "nt"
# Bytes that `_temporary_path` adds to a name at most: punctuation, "tmp", a process id and eight
# hex digits. On Windows, the lock on a temporary folder is a file whose name is 7 bytes longer.
TEMPORARY_BYTES = 32 if WINDOWS else 25


def write_file(path: Path, contents: bytes | Iterable[bytes]) -> None:
    """Write a file completely or not at all; an existing file stays until the new one is complete.

    Contents in chunks are written as they come, so that they need not fit into memory.
    """
    chunks = [contents] if isinstance(contents, bytes) else contents
    temporary = _temporary_path(path)
    try:
        with temporary.open("wb") as file:
            file.writelines(chunks)
            # The data must be on disk before the rename is, or a crash could leave the final name
            # on an empty file.
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        # The rename is an entry in the folder, and only durable once that is on disk as well.
        fsync(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        needed = len(contents) if isinstance(contents, bytes) else None
        raise disk_error(path, error, needed=needed) from error


def open_like_others(path: Path) -> None:
    """Give a file the permissions that `open` would give it; some libraries create private files.

    The permissions are read off an empty probe file: the umask can only be queried by setting it,
    which affects all threads.
    """
    probe = _temporary_path(path)
    try:
        probe.touch(exist_ok=False)
        path.chmod(probe.stat().st_mode & 0o777)
    finally:
        probe.unlink(missing_ok=True)


def _temporary_path(path: Path) -> Path:
    """Return a new hidden name in the same folder, for something unfinished."""
    # The same folder, because a rename is atomic only within one file system. Random, because
    # machines that share a disk may have equal process ids.
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")


def sha256_of_file(path: Path) -> str:
    """Compute the sha256 of a file in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk; Windows flushes folders by itself."""
    if WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows needs write access
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside `target`, locked while its writer lives and removed after the block."""
    temporary = _temporary_path(target)
    temporary.mkdir()  # mkdir, as mkdtemp ignores the umask
    try:
        # The lock tells `remove_leftovers` in other processes that the writer is alive.
        with locks.lock(temporary, wait=True):
            yield temporary
    finally:
        # Nothing is left to remove if the folder has been renamed into place.
        shutil.rmtree(temporary, ignore_errors=True)


def put_in_place(finished: Path, target: Path) -> None:
    """Rename a finished folder to `target`, which must not exist or be an empty folder."""
    if WINDOWS and target.is_dir():  # elsewhere, rename replaces an empty folder
        target.rmdir()
    finished.rename(target)


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove what killed writers have left behind: every match that nobody holds a lock on."""
    for leftover in folder.glob(pattern):
        with suppress(OSError), locks.lock(leftover):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            elif not locks.is_stand_in(leftover):  # a stand-in is removed when it is unlocked
                leftover.unlink()


@contextmanager
def file_lock(path: Path, *, what: str) -> Iterator[None]:
    """Hold a lock while the block runs; a second process is refused and told who holds the lock.

    The file stays on disk; the lock ends with the process, however that ends.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.lock_file(path, f"{os.getpid()} on {platform.node()}"))
        except locks.LockHeld as busy:
            process = f"process {busy.holder}" if busy.holder else "another process"
            raise FolderError(
                f"{path.parent}: {process} is using {what}. Wait for it, stop it, or give another "
                "--out."
            ) from None
        yield


def disk_error(
    target: Path,
    error: OSError,
    *,
    needed: int | None = None,
    left: str = "nothing was left behind",
) -> FolderError:
    """Build the error for a failed write; for a full disk, it says how much is free and missing."""
    remedy = "Give another --out."
    if error.errno in DISK_FULL_ERRORS:
        # The target may not exist yet: the nearest folder that does is on the same disk.
        existing = next(path for path in target.resolve().parents if path.is_dir())
        free = shutil.disk_usage(existing).free
        remedy = f"{free:,} bytes are free there. Free some space. {remedy}"
        if needed is not None and needed > free:
            remedy = f"{needed:,} bytes are needed, {needed - free:,} more than available: {remedy}"
    return FolderError(f"{target}: could not be written ({error.strerror}); {left}. {remedy}")


def check_output_file(path: Path) -> None:
    """Refuse an output file that cannot be written, before any work is done for it.

    The file will be written under a temporary name beside `path` and renamed. Nothing is
    overwritten.
    """
    _check_name(path, beside=True)
    if path.exists():
        raise SettingsError(f"--out {path}: already exists and is never overwritten. Move it away.")
    if path.is_symlink():
        raise SettingsError(f"--out {path}: a broken symbolic link. Give another --out.")
    if not path.parent.is_dir():
        raise SettingsError(
            f"--out {path}: the folder {path.parent} does not exist. Create it first."
        )
    _check_parent(path)


def check_output_folder(path: Path, *, renamed: bool) -> None:
    """Refuse an output folder that cannot be written, before any work is done for it.

    With `renamed`, the folder will be written under a temporary name and renamed, so the target
    must be new, or empty and replaceable. Otherwise files are written into it as the work
    proceeds, which also works through a link, in a mount point and in the current folder.
    """
    _check_name(path, beside=renamed)
    is_empty = path.is_dir() and not any(path.iterdir())
    is_link = path.is_symlink()
    if renamed and (is_link or (path.exists() and not is_empty)):
        description = "a folder that is not empty" if path.is_dir() else "a file"
        description = "a symbolic link" if is_link else description
        raise FolderError(
            f"{path}: already exists ({description}) and is never overwritten. Give another "
            "--out, or move it away first."
        )
    if not renamed and (is_link or path.exists()) and not path.is_dir():
        description = "a file" if path.exists() else "a broken symbolic link"
        raise FolderError(
            f"{path}: already exists ({description}); need a folder. Give another --out."
        )
    if renamed and (path.name in ("", "..") or (is_empty and path.samefile(os.curdir))):
        raise FolderError(
            f"{path}: the current folder cannot be replaced by the output. Give the name of a new "
            "folder in it as --out."
        )
    if renamed and os.path.ismount(path):
        raise FolderError(
            f"{path}: a mount point cannot be replaced by the output. Give the name of a new "
            "folder in it as --out."
        )
    _check_parent(path)


def _check_name(path: Path, *, beside: bool) -> None:
    """Refuse names that are too long or that cannot be written into logs and JSON."""
    try:
        # Python decodes names that are not UTF-8 to lone surrogates, which cannot be encoded. The
        # name of "." only appears in its absolute path.
        f"{path} {path.absolute().name}".encode()
    except UnicodeEncodeError:
        raise SettingsError(
            f"--out {ascii(str(path))}: the name is not UTF-8, so it cannot be written into logs "
            "and manifests. Give another --out."
        ) from None
    longest = NAME_LIMIT - TEMPORARY_BYTES if beside else NAME_LIMIT
    size = len(path.name.encode())
    if size > longest:
        raise SettingsError(
            f"--out {path.name[:40]}...: the name has {size} bytes; need at most {longest}. Give "
            "a shorter name."
        )


def _check_parent(path: Path) -> None:
    """Refuse a path below a file, or in a folder that is not writable."""
    # The nearest ancestor that exists; lexists, because a link to nothing is in the way too.
    ancestor = next(
        candidate
        for candidate in (path.absolute(), *path.absolute().parents)
        if os.path.lexists(candidate)
    )
    if not ancestor.is_dir():
        raise FolderError(f"{path}: {ancestor} is not a folder. Give another --out.")
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise FolderError(f"{path}: no permission to write to {ancestor}. Give another --out.")
