"""Locks: one holder at a time, free again when it ends; with `fcntl` and without."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from unmask.system import locks
from unmask.system.disk import file_lock, put_in_place, remove_leftovers, temporary_folder
from unmask.system.errors import FolderError
from unmask.system.locks import LockHeld, lock, lock_file

PROGRAM = """
import sys, time
from pathlib import Path
from unmask.system import locks
from unmask.system.disk import file_lock, temporary_folder
if sys.argv[1] == "without":
    locks.fcntl = None
with eval(sys.argv[2]):
    print(1, flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["with", "without"])
def fcntl(request, monkeypatch):
    """Whether Python has fcntl. Without it, filelock locks, as on Windows."""
    if request.param == "without":
        pytest.importorskip("filelock")
        monkeypatch.setattr(locks, "fcntl", None)
    return request.param


@contextmanager
def another_process(fcntl, holds):
    """A process that holds a lock until the block ends, from the moment it has it."""
    command = [sys.executable, "-c", PROGRAM, fcntl, holds]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.read(1)
            yield process
        finally:
            process.kill()


def test_a_file_that_another_process_has_locked_is_busy_until_that_process_dies(tmp_path, fcntl):
    path = tmp_path / "a"
    with another_process(fcntl, f"file_lock(Path({str(path)!r}), what='it')") as process:
        with pytest.raises(LockHeld) as busy, lock_file(path, "me"):
            pass
        named = str(process.pid) if fcntl == "with" else ""
        assert busy.value.holder.partition(" ")[0] == named
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock_file(path, "me"):
            pass


def test_a_lock_that_is_held_is_refused_with_its_folder_and_what_to_do(tmp_path, fcntl):
    path = tmp_path / "a"
    holder = f"process {os.getpid()}" if fcntl == "with" else "another process"
    with (
        file_lock(path, what="it"),
        pytest.raises(FolderError) as error,
        file_lock(path, what="it"),
    ):
        pass
    assert str(error.value).startswith(f"{tmp_path}: {holder} ")
    assert "is using it. Wait for it, stop it, or give another --out." in str(error.value)


def test_an_error_of_the_block_is_raised_as_it_is_and_the_lock_is_free_again(tmp_path, fcntl):
    for _ in range(2):
        with pytest.raises(BlockingIOError, match="of the block"), lock_file(tmp_path / "a", "me"):
            raise BlockingIOError("of the block")


def test_a_sweep_spares_the_folder_of_a_living_writer_and_takes_that_of_a_killed_one(
    tmp_path, fcntl
):
    with another_process(fcntl, f"temporary_folder(Path({str(tmp_path / 'model')!r}))") as process:
        (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
        remove_leftovers(tmp_path, ".model.tmp-*")
        assert folder.is_dir()
        process.kill()
        process.wait()
        remove_leftovers(tmp_path, ".model.tmp-*")
        assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_folder_is_in_its_place_is_swept(tmp_path, monkeypatch):
    """The writer was killed between the two."""
    pytest.importorskip("filelock")
    monkeypatch.setattr(locks, "fcntl", None)
    (tmp_path / ".model.tmp-1-ab.locked").touch()
    remove_leftovers(tmp_path, ".model.tmp-*")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_put_in_its_place_leaves_nothing_beside_it(tmp_path, fcntl):
    target = tmp_path / "model"
    with temporary_folder(target) as folder:
        (folder / "weights").write_bytes(b"whole")
        put_in_place(folder, target)
    assert list(tmp_path.iterdir()) == [target]
    assert (target / "weights").read_bytes() == b"whole"


def test_a_folder_that_is_not_there_cannot_be_locked(tmp_path):
    with pytest.raises(FileNotFoundError), lock(tmp_path / "nowhere"):
        pass


def test_a_disk_that_has_no_locks_is_not_taken_for_a_lock_that_is_held(tmp_path, monkeypatch):
    def refuse(handle, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    path = tmp_path / "a"
    with pytest.raises(OSError, match="No locks available") as error, file_lock(path, what="it"):
        pass
    assert error.value.filename == str(path)
