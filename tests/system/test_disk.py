"""Bytes on disk: whole or not at all, locked while somebody writes, swept when nobody does."""

import errno
import hashlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from unmask.system.disk import (
    disk_error,
    file_lock,
    open_like_others,
    remove_leftovers,
    sha256_of_file,
    temporary_folder,
    write_file,
)
from unmask.system.errors import FolderError


@contextmanager
def no_file_above(size):
    """The system refuses to let a file grow beyond this, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def another_process(program, *arguments):
    """A process that runs until the block ends, from the moment it has said something."""
    command = [
        sys.executable,
        "-c",
        "from unmask.system.disk import *\n" + program,
        *map(str, arguments),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.read(1)
            yield process
        finally:
            process.kill()


HOLD = "import sys, time\nwith file_lock(Path(sys.argv[1]), what='it'):\n print(1, flush=True)\n "
HOLD += "time.sleep(60)"
MAKE = "import sys, time\nwith temporary_folder(Path(sys.argv[1])):\n print(1, flush=True)\n "
MAKE += "time.sleep(60)"
WRITE = """
import itertools, sys
for i in itertools.count():
    write_file(Path(sys.argv[1]), bytes([65 + i % 26]) * 300_000)
    if not i: print(1, flush=True)
"""


def test_a_written_file_holds_the_bytes_and_nothing_lies_beside_it(tmp_path):
    path = tmp_path / "a"
    write_file(path, b"old")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_are_on_disk_before_they_have_the_name_and_then_the_name_is(tmp_path, monkeypatch):
    seen = []
    sync, replace = os.fsync, os.replace

    def watched_sync(handle):
        seen.append(("sync", os.readlink(f"/proc/self/fd/{handle}")))
        sync(handle)

    def watched_replace(old, new):
        seen.append(("rename", str(old), str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_replace)
    path = tmp_path / "a"
    write_file(path, b"new")
    (_, temporary), *_ = seen
    assert temporary != str(path)
    assert seen == [
        ("sync", temporary),
        ("rename", temporary, str(path)),
        ("sync", str(tmp_path)),
    ]


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path):
    path, draw = tmp_path / "a", random.Random(0)
    for _ in range(5):
        with another_process(WRITE, path) as process:
            time.sleep(draw.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
        raw = path.read_bytes()
        assert raw == raw[:1] * 300_000


def test_a_write_that_fails_leaves_the_old_file_alone_and_nothing_of_the_new(tmp_path):
    path = tmp_path / "a"
    write_file(path, b"old")
    with no_file_above(1000), pytest.raises(FolderError) as error:
        write_file(path, b"x" * 5000)
    assert re.fullmatch(
        rf"{path}: could not be written \(File too large\); nothing was left behind\. "
        r"[\d,]+ bytes are free there\. Free some space\. Give another --out\.",
        str(error.value),
    )
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_cannot_be_written_into_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FolderError, match=r"nowhere/a: could not be written \(No such file or dir"):
        write_file(tmp_path / "nowhere" / "a", b"new")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_how_many_bytes_are_needed_free_and_missing(tmp_path, number):
    error = disk_error(tmp_path / "a", OSError(number, os.strerror(number)), needed=10**18)
    found = re.search(
        r"([\d,]+) bytes are needed, ([\d,]+) more than available: ([\d,]+) bytes are free",
        str(error),
    )
    needed, missing, free = (int(figure.replace(",", "")) for figure in found.groups())
    assert needed == 10**18
    assert needed - free == missing


def test_a_full_disk_with_room_for_this_file_does_not_say_that_bytes_are_missing(tmp_path):
    error = disk_error(tmp_path / "a", OSError(errno.EDQUOT, "Quota exceeded"), needed=1)
    assert "missing" not in str(error)


def test_an_error_that_has_nothing_to_do_with_space_does_not_speak_of_it(tmp_path):
    error = disk_error(tmp_path / "a", OSError(errno.EACCES, "Permission denied"), needed=10**18)
    assert str(error).endswith("(Permission denied); nothing was left behind. Give another --out.")


def test_a_digest_is_the_sha256_of_the_file(tmp_path):
    raw = bytes(range(256)) * 9999
    (tmp_path / "a").write_bytes(raw)
    assert sha256_of_file(tmp_path / "a") == hashlib.sha256(raw).hexdigest()


@pytest.fixture(params=[0o077, 0o027, 0o022, 0o002], ids="{:03o}".format)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_folders_and_locks_have_the_permissions_that_the_umask_leaves(tmp_path, umask):
    write_file(tmp_path / "file", b"x")
    with file_lock(tmp_path / ".lock", what="it"), temporary_folder(tmp_path / "model") as folder:
        (tmp_path / "private").touch(mode=0o600)
        open_like_others(tmp_path / "private")
        assert sorted(path.name for path in tmp_path.iterdir() if path != folder) == [
            ".lock",
            "file",
            "private",
        ]
        for path in tmp_path.iterdir():
            expected = (0o777 if path.is_dir() else 0o666) & ~umask
            assert f"{path.stat().st_mode & 0o777:03o}" == f"{expected:03o}", path.name


def test_an_unfinished_folder_lies_beside_its_place_and_is_gone_when_the_block_ends(tmp_path):
    with temporary_folder(tmp_path / "model") as folder:
        assert folder.parent == tmp_path
        (folder / "weights").write_bytes(b"half")
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_folder_is_gone_when_the_block_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), temporary_folder(tmp_path / "model"):
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_leaves_the_folder_of_a_living_writer_and_takes_that_of_a_killed_one(tmp_path):
    with another_process(MAKE, tmp_path / "model") as process:
        (folder,) = tmp_path.iterdir()
        remove_leftovers(tmp_path, ".model.tmp-*")
        assert folder.is_dir()
        process.kill()
        process.wait()
        remove_leftovers(tmp_path, ".other.tmp-*")
        assert folder.is_dir()
        remove_leftovers(tmp_path, ".model.tmp-*")
        assert list(tmp_path.iterdir()) == []


def test_a_second_process_is_refused_with_the_number_of_the_first(tmp_path):
    path = tmp_path / ".lock"
    with another_process(HOLD, path) as process:
        with (
            pytest.raises(
                FolderError, match=f"^{tmp_path}: process {process.pid} on .* is using"
            ) as error,
            file_lock(path, what="this corpus"),
        ):
            pass
        assert str(error.value).endswith(
            "is using this corpus. Wait for it, stop it, or give another --out."
        )


def test_a_lock_dies_with_the_process_that_held_it(tmp_path):
    path = tmp_path / ".lock"
    with another_process(HOLD, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with file_lock(path, what="it"):
            assert path.read_text().startswith(f"{os.getpid()} on ")


def test_a_lock_is_free_again_after_the_block(tmp_path):
    for _ in range(2):
        with file_lock(tmp_path / ".lock", what="it"):
            pass


def test_a_lock_that_is_held_is_refused_within_the_same_process_too(tmp_path):
    with (
        file_lock(tmp_path / ".lock", what="it"),
        pytest.raises(FolderError, match=f"process {os.getpid()} on "),
        file_lock(tmp_path / ".lock", what="it"),
    ):
        pass


def test_free_bytes_are_those_of_the_disk_of_a_place_that_does_not_exist_yet(tmp_path):
    error = disk_error(tmp_path / "a" / "b" / "c", OSError(errno.ENOSPC, "No space left"))
    assert re.search(r"\(No space left\); .* [\d,]+ bytes are free there", str(error))
    assert not Path(tmp_path / "a").exists()
