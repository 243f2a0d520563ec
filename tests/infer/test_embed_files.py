"""Files of vectors: as the library computes them, complete, resumed after a kill."""

import errno
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unmask
from tests.conftest import tiny_network
from unmask.checkpoint.folder import save_folder
from unmask.data.read.lines import ErrorPolicy
from unmask.infer import embed_files, engine
from unmask.infer.embed_files import embed_file, embed_lines
from unmask.infer.vector_files import VectorWriter
from unmask.system.errors import DataError, FolderError, SettingsError

TEXTS = ["the cat sat", "", "a dog", "the mat", " "] * 4 + ["the dog"]  # some lines are blank


@pytest.fixture
def model(tmp_path, tokenizer):
    save_folder(tmp_path / "m", tiny_network(), tokenizer)
    return unmask.load(tmp_path / "m")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS))
    return str(path)


def test_an_array_holds_what_the_library_computes(model, source, tmp_path):
    done = []
    embed_file(model, source, tmp_path / "v.npy", progress=done.append, pool="cls")
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model.embed(TEXTS, pool="cls"), atol=1e-6)
    assert sum(done) == len(TEXTS)


def test_lines_hold_the_same(model, source, tmp_path):
    embed_file(model, source, tmp_path / "v.jsonl")
    found = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(found, model.embed(TEXTS), atol=1e-6)


@pytest.mark.parametrize("end", ["", "\n"])
def test_row_n_is_line_n_whichever_lines_are_blank(model, tmp_path, end):
    """A line break at the end of the file begins no line."""
    (tmp_path / "t.txt").write_text("\n\nthe cat\n \t\n\na dog" + end)
    count = embed_file(model, str(tmp_path / "t.txt"), tmp_path / "v.npy")
    expected = model.embed(["", "", "the cat", "", "", "a dog"])
    assert count == 6
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)


def test_a_blank_line_has_the_vector_of_cls_and_sep_alone(model, tmp_path):
    (tmp_path / "t.txt").write_text("the cat\n\n")
    embed_file(model, str(tmp_path / "t.txt"), tmp_path / "v.npy", normalize=False)
    states = model.states(model.example(""))
    assert states[-1].shape[1] == 2
    mean = states[-1][0].mean(dim=0).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "v.npy")[1], mean, atol=1e-6)


TABLES = {
    "t.jsonl": '{"text": "the cat"}\n{"text": ""}\n\n{"text": "a dog"}\n',
    "t.csv": 'text,more\nthe cat,1\n"",2\n\na dog,3\n',
    "one.csv": "text\nthe cat\n\na dog\n",
    "t.tsv": "text\tmore\nthe cat\t1\n\t2\n\na dog\t3\n",
    "one.tsv": "text\nthe cat\n\na dog\n",
    "t.parquet": ["the cat", "", "a dog"],
    "none.parquet": ["the cat", None, "a dog"],
}


@pytest.mark.parametrize("name", TABLES)
def test_every_record_of_a_table_has_a_row_also_one_without_text(model, tmp_path, name):
    """A blank line is a record only where an empty text has no other way to be written."""
    path, contents = tmp_path / name, TABLES[name]
    if isinstance(contents, str):
        path.write_text(contents)
    else:
        pq.write_table(pa.table({"text": contents}), path)
    watcher, out = ErrorPolicy(), tmp_path / "v.parquet"
    assert embed_file(model, str(path), out, watcher=watcher) == 3
    assert watcher.blanks == 1
    found = pq.read_table(out)
    assert found["text"].to_pylist() == ["the cat", "", "a dog"]
    expected = model.embed(["the cat", "", "a dog"])
    np.testing.assert_allclose(found["vector"].to_pylist(), expected, atol=1e-6)


def test_lines_on_the_way_have_a_row_each_too(model, source):
    watcher = ErrorPolicy()
    found = [json.loads(line) for line in embed_lines(model, source, watcher=watcher)]
    np.testing.assert_allclose(found, model.embed(TEXTS), atol=1e-6)
    assert watcher.blanks == 8


def test_a_text_that_is_too_long_is_named_by_its_line_and_leaves_no_file(model, tmp_path):
    source = tmp_path / "texts.txt"
    source.write_text("the cat\n\n\n" + "the cat " * 100)
    with pytest.raises(DataError, match=r"texts.txt:4: 202 tokens; the model reads at most 32"):
        embed_file(model, str(source), tmp_path / "v.npy", truncate=False)
    assert {path.name for path in tmp_path.iterdir()} == {"m", "texts.txt"}


def test_a_table_holds_each_text_with_its_vector(model, source, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.infer.vector_files.BLOCK", 4)
    embed_file(model, source, tmp_path / "v.parquet")
    found = pq.read_table(tmp_path / "v.parquet")
    assert found["text"].to_pylist() == TEXTS
    np.testing.assert_allclose(found["vector"].to_pylist(), model.embed(TEXTS), atol=1e-6)
    assert not list(tmp_path.glob(".*")), "what it was made in is gone"


@pytest.fixture
def small_groups(monkeypatch):
    """Vectors are saved every four texts."""
    monkeypatch.setattr(engine, "GROUP", 4)
    monkeypatch.setattr(embed_files, "GROUP", 4)


def stop_after(count):
    """A progress callback that raises after this many vectors, as if the process had ended."""
    seen = []

    def progress(step):
        seen.append(step)
        if sum(seen) >= count:
            raise KeyboardInterrupt

    return progress


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("ending", [".npy", ".parquet", ".jsonl"])
def test_an_interrupted_file_is_gone_on_with_and_ends_with_the_same_bytes(
    model, source, tmp_path, ending
):
    whole, broken = tmp_path / f"whole{ending}", tmp_path / f"broken{ending}"
    embed_file(model, source, whole)
    with pytest.raises(KeyboardInterrupt):
        embed_file(model, source, broken, progress=stop_after(11))
    assert not broken.exists()
    said, made, watcher = [], [], ErrorPolicy()
    how = {"say": said.append, "progress": made.append, "watcher": watcher}
    assert embed_file(model, source, broken, **how) == len(TEXTS)
    assert watcher.blanks == 8, "those before the interruption are counted too"
    assert said == [f"{broken}: resuming after 8 vectors that are already saved"]
    assert sum(made) == len(TEXTS) - 8, "none is computed twice, none is skipped"
    assert broken.read_bytes() == whole.read_bytes()


@pytest.mark.usefixtures("small_groups")
def test_it_is_not_gone_on_with_from_anything_else(model, source, tmp_path):
    out = tmp_path / "v.npy"
    with pytest.raises(KeyboardInterrupt):
        embed_file(model, source, out, progress=stop_after(11))
    with pytest.raises(FolderError, match=r"\.v\.npy\.unfinished: was started with another pool"):
        embed_file(model, source, out, pool="cls")


@pytest.mark.usefixtures("small_groups")
def test_rows_of_a_version_that_skipped_blank_lines_are_not_gone_on_with(model, source, tmp_path):
    out, record = tmp_path / "v.npy", tmp_path / ".v.npy.unfinished" / "record.json"
    with pytest.raises(KeyboardInterrupt):
        embed_file(model, source, out, progress=stop_after(11))
    table = json.loads(record.read_text())
    del table["layout of rows"]
    record.write_text(json.dumps(table))
    with pytest.raises(FolderError, match="was started with another layout of rows"):
        embed_file(model, source, out)


@pytest.mark.parametrize("rows", [-1, 2.5, True, None])
@pytest.mark.usefixtures("small_groups")
def test_a_record_that_makes_no_sense_is_refused(model, source, tmp_path, rows):
    out, record = tmp_path / "v.npy", tmp_path / ".v.npy.unfinished" / "record.json"
    with pytest.raises(KeyboardInterrupt):
        embed_file(model, source, out, progress=stop_after(11))
    record.write_text(json.dumps({**json.loads(record.read_text()), "rows": rows}))
    with pytest.raises(FolderError, match="was started with another number of rows"):
        embed_file(model, source, out)


def test_a_planted_link_is_not_followed(model, source, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / ".v.npy.unfinished"
    folder.mkdir()
    (folder / "rows.npy").symlink_to(precious)
    with pytest.raises(FolderError, match=r"rows\.npy: is a link"):
        embed_file(model, source, tmp_path / "v.npy")
    assert precious.read_text() == "mine"


@pytest.mark.usefixtures("small_groups")
def test_on_a_full_disk_what_is_safe_stays_so(model, source, tmp_path, monkeypatch):
    out, save = tmp_path / "v.npy", VectorWriter.save

    def full(rows):
        if rows.count > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(rows)

    monkeypatch.setattr(VectorWriter, "save", full)
    with pytest.raises(FolderError, match=r"\(No space left on device\); 8 vectors are saved"):
        embed_file(model, source, out)
    monkeypatch.setattr(VectorWriter, "save", save)
    made = []
    embed_file(model, source, out, progress=made.append)
    assert sum(made) == len(TEXTS) - 8
    np.testing.assert_allclose(np.load(out), model.embed(TEXTS), atol=1e-6)


def test_a_file_that_is_there_is_never_overwritten(model, source, tmp_path):
    out = tmp_path / "v.npy"
    out.write_text("precious")
    with pytest.raises(SettingsError, match=r"v\.npy: already exists and is never overwritten"):
        embed_file(model, source, out)
    assert out.read_text() == "precious"


def test_texts_that_can_be_read_only_once_do_not_go_into_a_table(model, tmp_path):
    with pytest.raises(SettingsError, match="standard input can be read only once"):
        embed_file(model, "-", tmp_path / "v.parquet")


def test_a_text_that_is_changed_on_the_way_is_noticed(model, source, tmp_path):
    def change(step):
        with open(source, "a") as file:
            file.write("\nthe dog")

    with pytest.raises(DataError, match="was changed while it was read"):
        embed_file(model, source, tmp_path / "v.parquet", progress=change)
    assert {path.name for path in tmp_path.iterdir()} == {"m", "texts.txt"}


@pytest.mark.usefixtures("small_groups")
def test_rows_that_never_reached_the_disk_are_made_again(model, source, tmp_path):
    out = tmp_path / "v.npy"
    with pytest.raises(KeyboardInterrupt):
        embed_file(model, source, out, progress=stop_after(11))
    rows = tmp_path / ".v.npy.unfinished" / "rows.npy"
    rows.write_bytes(rows.read_bytes()[:200])
    embed_file(model, source, out)
    np.testing.assert_allclose(np.load(out), model.embed(TEXTS), atol=1e-6)


@pytest.mark.parametrize("ending", [".npy", ".parquet", ".jsonl"])
def test_a_file_name_may_have_the_characters_of_patterns(model, source, tmp_path, ending):
    out = tmp_path / "[v]*?" / f"v[1]*?{ending}"
    out.parent.mkdir()
    embed_file(model, source, out)
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_an_output_that_cannot_be_written_is_refused_before_a_text_is_read(
    model, source, tmp_path, monkeypatch
):
    def never(*given, **how):
        raise AssertionError("a text was read")

    monkeypatch.setattr(embed_files, "read_texts", never)
    (tmp_path / "link.npy").symlink_to(tmp_path / "nothing")
    for name, says in {"link.npy": "a broken symbolic link", "no/v.npy": "does not exist"}.items():
        with pytest.raises(SettingsError, match=says):
            embed_file(model, source, tmp_path / name)
