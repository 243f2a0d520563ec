"""Locks on files and folders that end with the process that holds them, however it ends.

Where Python has `fcntl` (Linux, macOS), the file or folder itself is locked. Elsewhere (Windows)
the library filelock locks a file. A folder cannot be locked there, so a file beside it is locked
in its place (a stand-in).
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STAND_IN_SUFFIX = ".locked"  # suffix of a stand-in for a folder


# How systems report a lock that is held.
LOCK_HELD_ERRORS = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class LockHeld(BlockingIOError):
    """Another process holds the lock; `holder` is what it wrote into the file, "" if unreadable."""

    def __init__(self, path: Path, holder: str = "") -> None:
        super().__init__(errno.EWOULDBLOCK, "is locked by another process", str(path))
        self.holder = holder


@contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock an existing file or folder while the block runs; raise `LockHeld` unless `wait`."""
    if fcntl is None:
        stand_in = path if is_stand_in(path) else path.with_name(path.name + STAND_IN_SUFFIX)
        with _library_lock(stand_in, wait=wait):
            yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        _flock(handle, path, wait=wait)
        yield
    finally:
        os.close(handle)


@contextmanager
def lock_file(path: Path, holder: str) -> Iterator[None]:
    """Lock a file, created if it is missing, and write into it who holds the lock.

    Without `fcntl` nothing is written, because other processes cannot read a locked file there.
    """
    if fcntl is None:
        with _library_lock(path):
            yield
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            _flock(handle, path)
        except LockHeld:
            raise LockHeld(path, os.read(handle, 100).decode("utf-8", "replace").strip()) from None
        # Not before the lock is acquired: until then, the file names the process that holds it.
        os.ftruncate(handle, 0)
        os.write(handle, holder.encode())
        yield
    finally:
        os.close(handle)


def is_stand_in(path: Path) -> bool:
    """Whether a file exists only to be locked in place of a folder."""
    return fcntl is None and path.name.endswith(STAND_IN_SUFFIX)


def _flock(handle: int, path: Path, *, wait: bool = False) -> None:
    if sys.platform == "win32":  # for type checkers: Windows has no flock
        raise NotImplementedError
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        # Other errors, as on a disk without locks, must not look like a lock that is held.
        if error.errno in LOCK_HELD_ERRORS:
            raise LockHeld(path) from None
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _library_lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a file with filelock; a stand-in for a folder is removed afterwards."""
    import filelock

    file_lock = filelock.FileLock(path)
    try:
        file_lock.acquire(timeout=-1 if wait else 0)
    except filelock.Timeout:
        raise LockHeld(path) from None
    try:
        yield
    finally:
        file_lock.release()
        if is_stand_in(path):
            with suppress(OSError):  # another process has it open
                path.unlink()
