"""An output that cannot be written is refused before anything is read, by every verb that writes.

The inputs of these commands do not exist: a command that looked for them first would name them.
"""

import os
from pathlib import Path

import pytest

from unmask.cli import app
from unmask.system.errors import UserError

FINETUNE = "finetune classify missing --train missing.tsv --dev missing.tsv"
RENAMED = {  # verbs that rename a finished folder into its place
    "vocab learn": "vocab learn missing.txt --size 99",
    "convert": "convert missing",
    "export": "export missing",
    "compile": "compile missing",
    "get": "get minilm",
}
FILLED = {  # verbs that write into a folder as they go
    "prepare": "prepare missing.txt --tokenizer missing",
    "pretrain": "pretrain missing",
    "finetune": FINETUNE,
    "several seeds": f"{FINETUNE} --seeds 2",
    "search": f"{FINETUNE} --search 2",
    "several tasks": "finetune multi missing.toml missing",
    "translate train": "translate train --train missing.tsv --dev missing.tsv",
    "demo": "demo",
}
FILES = {  # verbs that write a file
    "embed": ("embed missing missing.txt", ".npy"),
    "look": ("look missing text", ".html"),
    "translate evaluate": ("translate evaluate missing missing.tsv", ".txt"),
    "translate look": ("translate look missing text", ".svg"),
}
NOT_UTF8 = os.fsdecode(b"caf\xe9")


def refusal(words, out):
    """What a verb says of an output."""
    with pytest.raises(UserError) as error:
        app([*words.split(), "--out", str(out)], standalone_mode=False)
    return str(error.value)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """The current folder of each of these commands; the tests write beside it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("unmask.checkpoint.fetch._from_index", _never)
    monkeypatch.setattr("unmask.cli.demo_steps.gather", _never)
    yield
    assert not list((tmp_path / "here").iterdir()), "something was written"


def _never(*given, **how):
    raise AssertionError("the work was begun")


@pytest.mark.parametrize("verb", RENAMED)
@pytest.mark.parametrize("out", [".", "../here"])
def test_a_finished_folder_cannot_replace_the_current_one(verb, out):
    assert refusal(RENAMED[verb], out).startswith(f"{out}: the current folder cannot be replaced")


@pytest.mark.parametrize("verb", RENAMED)
def test_nor_a_link_to_an_empty_folder(verb, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    says = f"{tmp_path / 'link'}: already exists (a symbolic link) and is never overwritten. Give "
    assert refusal(RENAMED[verb], tmp_path / "link").startswith(says)


@pytest.mark.parametrize("verb", RENAMED)
def test_nor_a_mount_point(verb, tmp_path, monkeypatch):
    (tmp_path / "mounted").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "mounted")
    says = f"{tmp_path / 'mounted'}: a mount point cannot be replaced"
    assert refusal(RENAMED[verb], tmp_path / "mounted").startswith(says)


@pytest.mark.parametrize("words", [*RENAMED.values(), *FILLED.values()])
def test_a_folder_name_that_is_not_utf8_is_refused(words, tmp_path):
    says = f"--out '{tmp_path}/caf\\udce9/out': the name is not UTF-8, so it cannot be written into"
    assert refusal(words, tmp_path / NOT_UTF8 / "out").startswith(says)


@pytest.mark.parametrize(("words", "ending"), FILES.values())
def test_so_is_the_name_of_a_file(words, ending, tmp_path):
    says = f"--out '{tmp_path}/caf\\udce9{ending}': the name is not UTF-8"
    assert refusal(words, tmp_path / f"{NOT_UTF8}{ending}").startswith(says)


@pytest.mark.parametrize("words", [*RENAMED.values(), *FILLED.values()])
def test_a_folder_below_a_file_is_refused(words, tmp_path):
    (tmp_path / "file").write_text("mine")
    says = (
        f"{tmp_path / 'file' / 'a' / 'b'}: {tmp_path / 'file'} is not a folder. Give another --out."
    )
    assert refusal(words, tmp_path / "file" / "a" / "b") == says


@pytest.mark.parametrize("words", [*RENAMED.values(), *FILLED.values()])
def test_a_folder_where_nothing_may_be_written_is_refused(words, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may do anything
    says = f"{tmp_path / 'a' / 'b'}: no permission to write to {tmp_path}. Give another --out."
    assert refusal(words, tmp_path / "a" / "b") == says


@pytest.mark.parametrize("words", FILLED.values())
@pytest.mark.parametrize("kind", ["a file", "a broken symbolic link"])
def test_what_is_no_folder_is_not_written_into(words, kind, tmp_path):
    out = tmp_path / "out"
    out.write_text("mine") if kind == "a file" else out.symlink_to(tmp_path / "nothing")
    assert refusal(words, out).startswith(f"{out}: already exists ({kind}); need a folder. Give")


@pytest.mark.parametrize("verb", ["prepare", "demo"])
def test_the_current_folder_is_not_written_into_while_it_holds_something(
    verb, tmp_path, monkeypatch
):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "precious").write_text("mine")
    monkeypatch.chdir(tmp_path / "taken")
    said = refusal(FILLED[verb], ".")
    assert said.startswith(".: ")
    assert "is not a corpus" in said or "the folder is not empty" in said


@pytest.mark.parametrize(("words", "ending"), FILES.values())
def test_a_file_needs_a_folder_that_exists(words, ending, tmp_path):
    out = tmp_path / "nowhere" / f"out{ending}"
    says = f"--out {out}: the folder {tmp_path / 'nowhere'} does not exist. Create it first."
    assert refusal(words, out) == says


@pytest.mark.parametrize(("words", "ending"), FILES.values())
@pytest.mark.parametrize("kind", ["file", "folder", "link", "link to nothing"])
def test_what_is_in_the_place_of_a_file_is_not_overwritten(words, ending, kind, tmp_path):
    out, other = tmp_path / f"out{ending}", tmp_path / "other"
    if kind == "folder":
        out.mkdir()
    else:
        (out if kind == "file" else other).write_text("mine")
        if kind != "file":
            out.symlink_to(other if kind == "link" else tmp_path / "nothing")
    says = "a broken symbolic link" if kind == "link to nothing" else "already exists and is"
    assert refusal(words, out).startswith(f"--out {out}: {says}")


@pytest.mark.parametrize("words", [*RENAMED.values(), *(words for words, _ in FILES.values())])
def test_a_name_that_leaves_no_room_for_an_unfinished_one_is_refused(words, tmp_path):
    ending = dict(FILES.values()).get(words, "")
    said = refusal(words, tmp_path / ("é" * 120 + ending))
    assert "the name has 24" in said
    assert "bytes; need at most 230. Give a shorter name." in said


def test_a_comparison_refuses_a_variants_folder_before_it_reads_pairs(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one").write_text("mine")
    recipe = tmp_path / "compare.toml"
    recipe.write_text(
        f'out = "{tmp_path / "runs"}"\ntrain = ["missing"]\ndev = ["missing"]\n'
        '[[variants]]\nname = "one"\nrecipe = "lstm"\n'
    )
    with pytest.raises(UserError, match=r"one: already exists \(a file\); need a folder"):
        app(["translate", "compare", str(recipe)], standalone_mode=False)
