"""Answers in a table: beside the columns of the input, in its order, whole or not there."""

import csv
import json
import os
import time
import tracemalloc

import pandas as pd
import pytest

from tests.infer.test_predict import model
from unmask.data.labelled.columns import Columns
from unmask.data.read.lines import StopOrSkip
from unmask.infer.predict import predict_lines
from unmask.infer.predict_files import predict_file
from unmask.system.errors import DataError, FolderError, SettingsError

__all__ = ["model"]
TEXTS = ['the cat, "sat"', "a good\nfilm", "a bad\tfilm", "paris é 我", "john smith lives in paris"]


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")]


def labelled(tmp_path, name="in.csv"):
    """A table with other columns beside the text, and one that is called as an answer is."""
    rows = [
        {"id": str(i), "text": text, "label": f"{i % 2}", "note": f"é, {i}"}
        for i, text in enumerate(TEXTS)
    ]
    path = tmp_path / name
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        pd.DataFrame(rows).to_parquet(path)
    return path, rows


def predicted(loaded, source, out, columns=Columns(text="text"), **how):
    return predict_file(loaded, str(source), out, columns, **how)


@pytest.mark.parametrize("given", ["in.csv", "in.jsonl", "in.parquet"])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_the_input_stands_beside_the_answers_that_are_printed(model, tmp_path, given, ending):
    source, rows = labelled(tmp_path, given)
    loaded, out, said = model("classify"), tmp_path / f"out{ending}", []
    assert predicted(loaded, source, out, say=said.append) == len(rows)
    printed = [*predict_lines(loaded, str(source), Columns(text="text"))]
    if ending == ".parquet":
        found = pd.read_parquet(out).to_dict("records")
    elif ending == ".jsonl":
        found = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    else:
        found = table(out)
        for row in found:
            row |= {name: json.loads(row[name]) for name in ("score", "probabilities")}
    names = ["id", "text", "label", "note", "predicted_label", "score", "probabilities"]
    for row, before, answer in zip(found, rows, printed, strict=True):
        assert list(row) == names
        assert {name: row[name] for name in before} == before
        assert (row["predicted_label"],) == answer["labels"]
        assert row["probabilities"] == pytest.approx(answer["probabilities"])
        assert row["score"] == pytest.approx(max(answer["probabilities"].values()))
    assert said[-1] == (
        "the input has a column 'label' already; the answer is in 'predicted_label'"
    )


def test_names_that_are_taken_are_counted_on(model, tmp_path):
    source = tmp_path / "in.jsonl"
    rows = [{"text": "a", "label": "x"}, {"text": "b", "predicted_label": 1, "score": 2}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    predicted(model("classify"), source, tmp_path / "out.jsonl")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    answers = ["predicted_label2", "predicted_score", "probabilities"]
    assert [list(row) for row in found] == [["text", "label", *answers], [*rows[1], *answers]]


def test_plain_text_is_the_column_text(model, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text('a cat, "b"\n\n{"text": "the dog", "id": 7}\n')
    assert predict_file(model("regress"), str(source), tmp_path / "out.csv", Columns()) == 3
    found = table(tmp_path / "out.csv")
    assert [(row["text"], row["id"]) for row in found] == [
        ('a cat, "b"', ""),
        ("", ""),
        ("the dog", "7"),
    ]
    assert all(float(row["score"]) for row in found)


def test_standard_input_is_read_once(model, tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.write(writer, b"a cat\nthe dog\n")
    os.close(writer)
    with os.fdopen(reader) as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        assert predict_file(model("regress"), "-", tmp_path / "out.parquet", Columns()) == 2
    assert pd.read_parquet(tmp_path / "out.parquet")["text"].tolist() == ["a cat", "the dog"]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_names_are_found_in_the_texts_of_a_table(model, tmp_path, ending):
    """A column with a usual name is recognised, and any other can be named."""
    loaded, texts = model("ner"), ["john smith lives in paris", "the cat"]
    for name, columns in (("sentence", Columns()), ("body", Columns(text="body"))):
        frame, path = pd.DataFrame({"id": [1, 2], name: texts}), tmp_path / f"{name}{ending}"
        if ending == ".parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False, sep="," if ending == ".csv" else "\t")
        said = []
        found = [*predict_lines(loaded, str(path), columns, say=said.append)]
        assert said == [f"{path}: text is column '{name}'"]
        assert [len(answer["tags"]) for answer in found] == [5, 2]
        assert predict_file(loaded, str(path), tmp_path / f"{name}.jsonl", columns) == 2
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["entities"] for line in lines] == [
            json.loads(json.dumps(answer["entities"])) for answer in found
        ]


def test_words_and_tags_in_a_tsv_file_are_still_read_as_such(model, tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("john\tB-PER\nlives\tO\n\nthe\tO\ncat\tO\n")
    assert predict_file(model("ner"), str(path), tmp_path / "out.csv", Columns()) == 2
    found = table(tmp_path / "out.csv")
    assert [row["text"] for row in found] == ["john lives", "the cat"]
    assert [len(json.loads(row["tags"])) for row in found] == [2, 2]


def test_nested_answers_are_json_in_text_and_structs_in_parquet(model, tmp_path):
    loaded, source = model("ner"), tmp_path / "in.txt"
    source.write_text("john smith lives in paris\nthe cat\n")
    for ending in (".csv", ".parquet"):
        predict_file(loaded, str(source), tmp_path / f"out{ending}", Columns())
    text = [json.loads(row["entities"]) for row in table(tmp_path / "out.csv")]
    typed = [[*row] for row in pd.read_parquet(tmp_path / "out.parquet")["entities"]]
    assert text == typed
    assert text[0][0]["label"] == "PER"


def test_questions_have_their_passage_and_their_answer(model, tmp_path):
    question = {"id": "q7", "question": "when ?"}
    paragraph = {"context": "it began in october 1973 .", "qas": [question]}
    source = tmp_path / "squad.json"
    source.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    loaded = model("qa")
    assert predict_file(loaded, str(source), tmp_path / "out.csv", Columns()) == 1
    (row,) = table(tmp_path / "out.csv")
    (answer,) = predict_lines(loaded, str(source), Columns())
    assert {name: row[name] for name in ("id", "question", "context")} == {
        **question,
        "context": paragraph["context"],
    }
    assert row["answer"] == answer["text"]
    assert json.loads(row["candidates"])[0]["text"] == answer["candidates"][0]["text"]


def test_skipped_rows_leave_no_gap(model, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("n,text\n1,the cat\n2,\n3,too,many\n4,the dog\n")
    said = []
    watcher = StopOrSkip(True, said.append)
    out = tmp_path / "out.csv"
    assert predict_file(model("classify"), str(source), out, Columns(), watcher) == 2
    assert [(row["n"], row["text"]) for row in table(out)] == [("1", "the cat"), ("4", "the dog")]
    assert watcher.skipped == 2
    assert [line.split(":")[2] for line in said] == ["3", "4"]


def test_a_bad_row_leaves_nothing_behind(model, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("n,text\n1,the cat\n2,\n")
    with pytest.raises(DataError, match="in.csv:3: the text is empty"):
        predict_file(model("classify"), str(source), tmp_path / "out.csv", Columns())
    assert {path.name for path in tmp_path.iterdir()} == {"in.csv", "classify"}


@pytest.mark.parametrize("source", ["empty.txt", "empty.jsonl"])
def test_a_file_without_a_record_is_refused(model, tmp_path, source):
    (tmp_path / source).write_text("")
    with pytest.raises(DataError):
        predict_file(model("regress"), str(tmp_path / source), tmp_path / "out.csv", Columns())
    assert not (tmp_path / "out.csv").exists()


def test_an_old_file_stays_until_the_new_one_is_complete(model, tmp_path):
    source, _ = labelled(tmp_path)
    out, loaded = tmp_path / "out.csv", model("classify")
    out.write_text("old")
    with pytest.raises(SettingsError, match="--overwrite"):
        predicted(loaded, source, out)

    def stop(answers):
        assert out.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predicted(loaded, source, out, progress=stop, overwrite=True)
    assert out.read_text() == "old"
    assert not [*tmp_path.glob(".out.csv.tmp-*")]
    predicted(loaded, source, out, overwrite=True)
    assert len(table(out)) == len(TEXTS)


def test_what_a_killed_job_left_is_removed(model, tmp_path):
    source, _ = labelled(tmp_path)
    left = tmp_path / ".out.csv.tmp-1-0123abcd"
    left.mkdir()
    (left / "answers.jsonl").write_text("[")
    predicted(model("classify"), source, tmp_path / "out.csv")
    assert not left.exists()


@pytest.mark.parametrize("how", ["shorter", "later"])
def test_an_input_that_changes_meanwhile_is_noticed(model, tmp_path, how):
    source, _ = labelled(tmp_path)

    def change(answers):
        if how == "shorter":
            source.write_text("text\none\n")
        else:
            os.utime(source, (time.time() + 9, time.time() + 9))

    with pytest.raises(DataError, match="was changed while it was read"):
        predicted(model("classify"), source, tmp_path / "out.csv", progress=change)
    assert not (tmp_path / "out.csv").exists()


def test_a_full_disk_is_named(model, tmp_path, monkeypatch):
    source, _ = labelled(tmp_path)

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unmask.infer.predict_files.write_table", full)
    with pytest.raises(FolderError, match="out.csv: could not be written .No space left"):
        predicted(model("classify"), source, tmp_path / "out.csv")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(model, tmp_path, monkeypatch):
    """Ten times as many rows, each with a note of a kilobyte that only the output needs."""
    monkeypatch.setattr("unmask.infer.engine.GROUP", 64)
    monkeypatch.setattr("unmask.data.labelled.table_files.BATCH", 64)
    loaded, peaks = model("classify"), []
    for rows in (500, 5000):
        source = tmp_path / f"{rows}.csv"
        source.write_text("text,note\n" + f"the cat,{'x' * 1000}\n" * rows)
        tracemalloc.start()
        assert predicted(loaded, source, tmp_path / f"{rows}.parquet") == rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_000_000, "4.5 MB of notes were added"
