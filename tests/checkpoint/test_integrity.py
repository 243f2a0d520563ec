"""Publishing a folder, and what its manifest says: whole or not there, whatever happens."""

import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from functools import partial

import pytest

from tests.conftest import tiny_network
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.integrity import publish, verify
from unmask.system.disk import check_output_folder, sha256_of_file
from unmask.system.errors import FolderError, UserError
from unmask.system.manifest import MODEL_MANIFEST

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # FIPS 180-4
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # its first example


def write(target, **about):
    """A folder of two files, one of them in a folder of its own."""
    with publish(target, about) as folder:
        (folder / "a.txt").write_bytes(b"abc")
        (folder / "inner").mkdir()
        (folder / "inner" / "empty").write_bytes(b"")


def write_and_raise(target, error):
    with publish(target, {}) as folder:
        (folder / "a.txt").write_text("half")
        raise error


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_digest_is_sha256(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_of_file(tmp_path / "empty") == EMPTY
    assert sha256_of_file(tmp_path / "abc") == ABC


def test_digest_of_a_file_longer_than_a_piece_is_that_of_its_bytes(tmp_path):
    raw = bytes(range(256)) * 5_000
    (tmp_path / "long").write_bytes(raw)
    assert sha256_of_file(tmp_path / "long") == hashlib.sha256(raw).hexdigest()


def test_a_manifest_lists_every_file_with_its_digest_and_size(tmp_path):
    write(tmp_path / "out", provenance={"by": "hand"})
    manifest = json.loads((tmp_path / "out" / MODEL_MANIFEST).read_text())
    assert manifest["files"] == {
        "a.txt": {"sha256": ABC, "bytes": 3},
        "inner/empty": {"sha256": EMPTY, "bytes": 0},
    }
    assert manifest["format"] == 1
    assert manifest["provenance"] == {"by": "hand"}


def test_a_manifest_has_the_digest_of_itself(tmp_path):
    write(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MODEL_MANIFEST).read_text())
    claimed = manifest.pop("sha256")
    text = json.dumps(manifest, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == claimed


def test_verify_gives_the_manifest_of_a_whole_folder(tmp_path):
    write(tmp_path / "out", recipe={"rate": 1e-05, "name": "é"})
    assert verify(tmp_path / "out")["recipe"] == {"rate": 1e-05, "name": "é"}


def test_verify_has_nothing_to_say_of_a_folder_without_a_manifest(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert verify(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.txt", b"abd", "a.txt: was changed since it was written"),
        ("a.txt", b"abcd", "a.txt: has 4 bytes, but was written with 3"),
        ("inner/empty", b" ", "inner/empty: has 1 bytes, but was written with 0"),
        (MODEL_MANIFEST, b"{}", "unmask.json: was changed since it was written"),
        (MODEL_MANIFEST, b"", "unmask.json: not valid JSON"),
    ],
)
def test_verify_names_the_file_that_differs(tmp_path, name, raw, message):
    write(tmp_path / "out")
    (tmp_path / "out" / name).write_bytes(raw)
    with pytest.raises(FolderError, match=message):
        verify(tmp_path / "out")


def test_a_manifest_of_a_later_format_asks_for_a_later_version(tmp_path):
    write(tmp_path / "out", format=2)
    with pytest.raises(FolderError, match="format 2; this version reads only 1"):
        verify(tmp_path / "out")


def test_a_folder_is_not_there_before_its_block_ends(tmp_path):
    target = tmp_path / "out"
    with publish(target, {}) as folder:
        (folder / "a.txt").write_text("abc")
        assert folder.parent == target.parent  # on the same disk, so that it can be renamed
        assert not target.exists()
    assert names(target) == ["a.txt", MODEL_MANIFEST]


def test_folders_above_the_target_are_made(tmp_path):
    write(tmp_path / "some" / "where" / "out")
    assert verify(tmp_path / "some" / "where" / "out")


@pytest.mark.parametrize("crash", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_crash_in_the_block_leaves_nothing(tmp_path, crash):
    with pytest.raises(crash):
        write_and_raise(tmp_path / "out", crash())
    assert names(tmp_path) == []


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(FolderError, match=r"out: could not be written \(No space left.*are free"):
        write_and_raise(tmp_path / "out", full)
    assert names(tmp_path) == []


def test_weights_that_cannot_be_written_are_a_message_and_leave_nothing(tmp_path, tokenizer):
    network = tiny_network()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, limits[1]))  # the weights have 20,000
    try:
        with pytest.raises(UserError, match="out: could not be written") as refused:
            save_folder(tmp_path / "out", network, tokenizer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "bytes are free there" in str(refused.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["folder", "file", "link to nothing"])
def test_what_exists_is_refused_and_not_touched(tmp_path, kind):
    target = tmp_path / "out"
    if kind == "folder":
        target.mkdir()
        (target / "precious").write_text("kept")
    elif kind == "file":
        target.write_text("kept")
    else:
        target.symlink_to(tmp_path / "nowhere")
    what = {"folder": "a folder that is not empty", "file": "a file"}.get(kind, "a symbolic link")
    for attempt in (partial(check_output_folder, renamed=True), write):
        with pytest.raises(FolderError, match=rf"out: already exists \({what}\) and is never over"):
            attempt(target)
    kept = {"folder": target / "precious", "file": target}.get(kind)
    assert kept is None or kept.read_text() == "kept"
    assert names(tmp_path) == ["out"]


def test_an_empty_folder_may_be_the_target(tmp_path):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert verify(tmp_path / "out")


def test_a_target_below_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(FolderError, match="file"):
        write(tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == "kept"


# A process that publishes a folder and is killed, without warning, at a point of its work. To
# reach the points inside `publish` it replaces what the standard library does there.
KILLED = """
import hashlib, json, os, signal, sys
from pathlib import Path

from unmask.checkpoint.integrity import publish
from unmask.system.manifest import MODEL_MANIFEST


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(work):
    return lambda *given: (work(*given), die())


def die_at_call(number, work):
    calls = iter(range(1, 1000))
    return lambda *given: die() if next(calls) == number else work(*given)


target, point = Path(sys.argv[1]), sys.argv[2]
with publish(target, {}) as folder:
    if point == "before the first file":
        die()
    (folder / "a.txt").write_bytes(b"abc")
    if point == "between two files":
        die()
    with (folder / "b.txt").open("wb") as file:
        file.write(b"half of")
        file.flush()
        if point == "half-way through a file":
            die()
        file.write(b" it")
    if point == "before the digests":
        hashlib.file_digest = die
    elif point == "before the manifest":
        json.dumps = die
    elif point == "before the rename":
        Path.rename = die
    elif point == "after the rename":
        Path.rename = die_after(Path.rename)
    elif point.startswith("sync"):
        os.fsync = die_at_call(int(point.split()[1]), os.fsync)
"""
BEFORE = [
    "before the first file",
    "between two files",
    "half-way through a file",
    "before the digests",
    "before the manifest",
    "before the rename",
]


def publish_in_a_process(target, point):
    command = [sys.executable, "-c", KILLED, str(target), point]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


@pytest.mark.parametrize("point", BEFORE)
def test_a_process_killed_before_the_rename_leaves_no_target_and_can_be_repeated(tmp_path, point):
    target = tmp_path / "out"
    assert publish_in_a_process(target, point) == -signal.SIGKILL
    assert not target.exists()
    assert all(name.startswith(".out.tmp-") for name in names(tmp_path))
    write(target)
    assert verify(target)


def test_a_process_killed_after_the_rename_leaves_a_whole_target(tmp_path):
    target = tmp_path / "out"
    assert publish_in_a_process(target, "after the rename") == -signal.SIGKILL
    assert names(tmp_path) == ["out"]
    assert verify(target)["files"]["b.txt"]["bytes"] == len("half of it")


def test_a_process_killed_at_any_sync_leaves_no_target_or_a_whole_one(tmp_path):
    there = []
    while True:
        target = tmp_path / f"out-{len(there) + 1}"
        ended = publish_in_a_process(target, f"sync {len(there) + 1}")
        if ended == 0:  # it has no more syncs
            break
        assert ended == -signal.SIGKILL
        there.append(target.exists())
        assert not target.exists() or verify(target)
    assert verify(target)
    assert len(there) >= 5  # two files, the manifest, their folder, the folder above
    assert there == sorted(there)  # absent up to the rename, whole from then on
    assert not there[3]
    assert there[-1]


def test_a_model_is_saved_after_another_process_was_killed_at_it(tmp_path, tokenizer):
    target = tmp_path / "out"
    publish_in_a_process(target, "before the rename")
    save_folder(target, tiny_network(), tokenizer)
    assert load_folder(target).manifest["files"].keys() >= {"config.json", "model.safetensors"}


def test_what_a_killed_writer_left_is_swept(tmp_path):
    left = tmp_path / ".out.tmp-killed"
    left.mkdir()
    (left / "half").write_text("...")
    with publish(tmp_path / "out", {}):
        assert not left.exists()


def test_of_two_writers_the_slower_is_told_that_the_folder_exists(tmp_path):
    with (
        pytest.raises(FolderError, match="out: already exists"),
        publish(tmp_path / "out", {}) as slow,
    ):
        (slow / "a").write_text("slow")
        with publish(tmp_path / "out", {}) as quick:
            (quick / "a").write_text("quick")
        assert slow.exists()  # a writer that lives is not swept away
    assert (tmp_path / "out" / "a").read_text() == "quick"


def test_a_file_added_to_a_sealed_folder_is_named(tmp_path):
    with publish(tmp_path / "out", {}) as folder:
        (folder / "config.json").write_text("{}")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    verify(tmp_path / "out")  # nobody reads it
    (tmp_path / "out" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(FolderError, match=r"tokenizer_config.json: was added since"):
        verify(tmp_path / "out")


@pytest.mark.parametrize("name", ["[a]*?", "a{b,c}", "**", "[!x]", "-é ' x"])
def test_a_name_may_have_the_characters_of_patterns(tmp_path, name):
    """What a killed writer left under this name is swept, and under a name that matches is not."""
    for left in (f".{name}.tmp-killed", ".a?.tmp-other", ".b.tmp-other", ".axb.tmp-other"):
        (tmp_path / left).mkdir()
    write(tmp_path / name)
    assert verify(tmp_path / name)
    assert names(tmp_path) == sorted([name, ".a?.tmp-other", ".axb.tmp-other", ".b.tmp-other"])
