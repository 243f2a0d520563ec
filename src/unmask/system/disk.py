"""Bytes -> disk, so that a crash leaves the old state or the new one and nothing between.

    write_file(path)   a file: another name, fsync, rename, fsync of the folder
    unfinished(path)   a folder beside its place, locked while its writer lives; the caller renames
    held(path)         a lock that one process holds and that dies with it
    check_output_*     whether an output can be written there, asked before the work

It knows nothing of what the bytes mean.
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

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
LONGEST = 255  # bytes of a file name
WINDOWS = os.name == "nt"
BESIDE = 32 if WINDOWS else 25  # bytes that the name of an unfinished file or folder has more


def write_file(path: Path, contents: bytes | Iterable[bytes]) -> None:
    """Put a file in its place, whole or not at all; what was there stays until then.

    Contents in pieces are written as they come, so that they need not fit into memory.
    """
    pieces = [contents] if isinstance(contents, bytes) else contents
    temporary = _beside(path)
    try:
        with temporary.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        needed = len(contents) if isinstance(contents, bytes) else None
        raise disk_error(path, error, needed=needed) from error


def open_like_others(path: Path) -> None:
    """Give a file the permissions of one made by `open`: libraries may make theirs private.

    What the umask leaves is read off an empty file, because asking for the umask sets it.
    """
    probe = _beside(path)
    try:
        probe.touch(exist_ok=False)
        path.chmod(probe.stat().st_mode & 0o777)
    finally:
        probe.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Name something that is not finished; the name is new."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")


def sha256_of_file(path: Path) -> str:
    """The sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Force a file, or the names in a folder, to disk; Windows does that for folders by itself."""
    if WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows: only what is writable
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target, locked while its writer lives and gone when the block ends."""
    temporary = _beside(target)
    temporary.mkdir()  # with the permissions that the umask leaves, which mkdtemp does not give
    try:
        with locks.lock(temporary, wait=True):
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_in_place(finished: Path, target: Path) -> None:
    """Rename a finished folder; where it is to be there is nothing, or an empty folder."""
    if WINDOWS and target.is_dir():  # Windows renames a folder only to a name that is free
        target.rmdir()
    finished.rename(target)


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove what writers that were killed have left: whatever nobody has locked."""
    for left in folder.glob(pattern):
        with suppress(OSError), locks.lock(left):
            if left.is_dir():
                shutil.rmtree(left)
            elif not locks.is_stand_in(left):  # that one goes when it is unlocked
                left.unlink()


@contextmanager
def file_lock(path: Path, *, what: str) -> Iterator[None]:
    """Hold a lock while the block runs; a second process is refused, with the number of the first.

    The file stays, the lock goes with the process however it ends.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.lock_file(path, f"{os.getpid()} on {platform.node()}"))
        except locks.Busy as busy:
            raise FolderError(
                f"{path.parent}: process {busy.holder or 'of unknown number'} is at work on "
                f"{what}. Wait for it, stop it, or give another --out."
            ) from None
        yield


def disk_error(
    target: Path,
    error: OSError,
    *,
    needed: int | None = None,
    left: str = "nothing was left behind",
) -> FolderError:
    """Say what could not be written, and what is free and missing where the disk is full."""
    remedy = "Give another --out."
    if error.errno in FULL:
        above = next(path for path in target.resolve().parents if path.is_dir())
        free = shutil.disk_usage(above).free
        remedy = f"{free:,} bytes are free there. Make room. {remedy}"
        if needed is not None and needed > free:
            remedy = f"{needed:,} bytes are needed, {needed - free:,} are missing: {remedy}"
    return FolderError(f"{target}: could not be written ({error.strerror}); {left}. {remedy}")


def check_output_file(path: Path) -> None:
    """Refuse a file that cannot be written, before any work is done for it.

    It will be written under another name beside its place and renamed. Nothing is overwritten.
    """
    _check_name(path, beside=True)
    if path.exists():
        raise SettingsError(f"--out {path}: exists already; it is never overwritten. Move it away.")
    if path.is_symlink():
        raise SettingsError(f"--out {path}: a symbolic link to nothing. Give another --out.")
    if not path.parent.is_dir():
        raise SettingsError(f"--out {path}: there is no folder {path.parent}. Make it first.")
    _check_place(path)


def check_output_folder(path: Path, *, renamed: bool) -> None:
    """Refuse a folder that cannot be written, before any work is done for it.

    `renamed`: it will be written under another name beside its place and renamed, so it must be
    new, or empty and replaceable. Otherwise files are written into it as the work goes on, which
    also works through a link, in a mount point and in the current folder.
    """
    _check_name(path, beside=renamed)
    empty = path.is_dir() and not any(path.iterdir())
    link = path.is_symlink()
    if renamed and (link or (path.exists() and not empty)):
        what = "a folder that is not empty" if path.is_dir() else "a file"
        what = "a symbolic link" if link else what
        raise FolderError(
            f"{path}: exists already, {what}; it is never overwritten. Give another --out, or "
            "move it away first."
        )
    if not renamed and (link or path.exists()) and not path.is_dir():
        what = "a file" if path.exists() else "a symbolic link to nothing"
        raise FolderError(f"{path}: exists already, {what}; need a folder. Give another --out.")
    if renamed and (path.name in ("", "..") or (empty and path.samefile(os.curdir))):
        raise FolderError(
            f"{path}: the current folder cannot be replaced by the finished one. Give the name of "
            "a folder to make in it as --out."
        )
    if renamed and os.path.ismount(path):
        raise FolderError(
            f"{path}: a mount point, which cannot be replaced by the finished folder. Give the "
            "name of a folder to make in it as --out."
        )
    _check_place(path)


def _check_name(path: Path, *, beside: bool) -> None:
    """Refuse names that could not be written into logs and JSON, or are too long."""
    try:
        f"{path} {path.absolute().name}".encode()
    except UnicodeEncodeError:
        raise SettingsError(
            f"--out {ascii(str(path))}: the name is not UTF-8, so it cannot be written into logs "
            "and manifests. Give another --out."
        ) from None
    longest = LONGEST - BESIDE if beside else LONGEST
    size = len(path.name.encode())
    if size > longest:
        raise SettingsError(
            f"--out {path.name[:40]}...: the name has {size} bytes; need at most {longest}. Give "
            "a shorter one."
        )


def _check_place(path: Path) -> None:
    """Refuse a place below a file, or in a folder that may not be written."""
    place = next(p for p in (path.absolute(), *path.absolute().parents) if os.path.lexists(p))
    if not place.is_dir():
        raise FolderError(f"{path}: {place} is no folder. Give another --out.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise FolderError(f"{path}: {place} may not be written to. Give another --out.")
