"""Objects of Python and of other libraries, read as texts and rows."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from unmask.data.read.objects import (
    cell_of,
    files_in,
    pairs_of,
    refuse_file_name,
    rows_as_file,
    rows_of,
    texts_of,
)
from unmask.system.errors import DataError

TEXTS = ["the cat", "a dog"]


class Labels:
    """Like `datasets.ClassLabel`: classes are stored by number."""

    def __init__(self, names):
        self.names = names


class Listed:
    """Like a list of classes in `datasets`."""

    def __init__(self, feature):
        self.feature = feature


class Dataset:
    """Like `datasets.Dataset`, which is recognised by the module of its type."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, rows, **features):
        self.rows, self.column_names = rows, [*rows[0]]
        self.features = {name: features.get(name) for name in self.column_names}

    def __iter__(self):
        return iter(self.rows)


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        tuple(TEXTS),
        (text for text in TEXTS),
        dict.fromkeys(TEXTS).keys(),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        pd.Series(TEXTS, index=[5, 7]),
        pd.Index(TEXTS),
        pd.Series(TEXTS, dtype="category"),
        pd.DataFrame({"only": TEXTS}),
        pd.DataFrame({"id": [1, 2], "text": TEXTS}),
        pa.table({"text": TEXTS, "id": [1, 2]}),
        Dataset([{"text": text, "id": 1} for text in TEXTS]),
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_texts_come_in_many_forms(texts):
    found = list(texts_of(texts))
    assert found == TEXTS
    assert {type(text) for text in found} == {str}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a"] * 17 + [None], r"texts\[17\] is None; need a string"),
        (["a", 3.5], r"texts\[1\] is 3\.5 \(float\); need a string"),
        ([b"a"], r"texts\[0\] is b'a' \(bytes\); need a string"),
        ([["a", "b"]], r"texts\[0\] is \['a', 'b'\] \(list\)"),
        (pd.Series(["a", None]), r"texts\[1\] is (nan \(float\)|None)"),
        (np.array([["a", "b"]]), r"texts\[0\] is \['a', 'b'\] \(list\)"),
        (5, r"texts is 5 \(int\); need a string, a list, a generator"),
        (None, r"texts is None; need a string, a list"),
        ({"a": 1}, r"texts is \{'a': 1\} \(dict\)"),
        (pd.DataFrame({"a": ["x"], "b": ["y"]}), r"columns a, b; need one .* texts\['a'\]"),
        (pd.DataFrame(), "texts is a table without columns"),
    ],
)
def test_a_wrong_text_is_named_by_its_index_and_type(texts, message):
    with pytest.raises(DataError, match=message):
        list(texts_of(texts))


def test_a_generator_is_read_as_far_as_it_is_needed():
    def endless():
        while True:
            yield "a"

    texts = texts_of(endless())
    assert [next(texts) for _ in range(3)] == ["a"] * 3


def test_pairs_stand_beside_single_texts():
    assert list(pairs_of(["a", ("b", "c"), ["d", "e"]])) == [("a", None), ("b", "c"), ("d", "e")]
    assert list(pairs_of(pd.Series(TEXTS))) == [(text, None) for text in TEXTS]
    assert list(pairs_of(pd.DataFrame({"text": TEXTS}))) == [(text, None) for text in TEXTS]
    with pytest.raises(DataError, match=r"texts\[1\] is \('a', 'b', 'c'\) \(tuple\)"):
        list(pairs_of(["a", ("a", "b", "c")]))
    with pytest.raises(DataError, match=r"texts\[0\]\[1\] is None; need a string"):
        list(pairs_of([("a", None)]))


def test_rows_of_a_table_are_dictionaries():
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    assert list(rows_of(rows)) == rows
    assert list(rows_of(pd.DataFrame(rows))) == rows
    assert list(rows_of(pa.Table.from_pylist(rows))) == rows
    assert list(rows_of(Dataset(rows))) == rows


def test_classes_of_datasets_get_their_names():
    rows = [{"label": 1, "tags": [0, 1]}, {"label": -1, "tags": []}]
    kinds = {"label": Labels(["no", "yes"]), "tags": Listed(Labels(["O", "B-PER"]))}
    found = list(rows_of(Dataset(rows, **kinds)))
    assert found == [{"label": "yes", "tags": ["O", "B-PER"]}, {"label": None, "tags": []}]


def test_a_dictionary_of_parts_is_no_table():
    with pytest.raises(DataError, match="data is a dict with train, test; need rows"):
        list(rows_of({"train": [], "test": []}))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.str_("a"), "a"),
        (float("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (np.float64("nan"), None),
        ((1, [np.int8(2)]), [1, [2]]),
        ({"a": np.int8(1)}, {"a": 1}),
    ],
)
def test_cells_become_values_of_json(value, expected):
    assert cell_of(value, "here") == expected


def test_a_cell_that_json_cannot_hold_is_named():
    with pytest.raises(DataError, match=r"data\[0\]\['a'\]\[1\] is \{1\} \(set\)"):
        cell_of([0, {1}], "data[0]['a']")


def test_strings_and_paths_are_files_and_everything_else_is_rows():
    assert files_in("a.tsv") == files_in(Path("a.tsv")) == [Path("a.tsv")]
    assert files_in(["a.de", Path("a.en")]) == [Path("a.de"), Path("a.en")]
    for rows in ([], [{"a": 1}], [("a", "b")], ["a", ("b", "c")], pd.DataFrame({"a": [1]})):
        assert files_in(rows) is None


@pytest.mark.parametrize("text", ["texts.txt", "a/b.csv", "data.jsonl.gz", "x.parquet"])
def test_a_string_that_looks_like_a_file_is_not_taken_for_a_text(text):
    with pytest.raises(DataError, match=r"looks like a file. Give pathlib\.Path\("):
        refuse_file_name(text, "data")


@pytest.mark.parametrize("text", ["", "e.g.", "the end.", "see texts.txt", "v1.2", "...", ".txt?"])
def test_ordinary_texts_do_not_look_like_files(text):
    refuse_file_name(text, "data")


def test_errors_in_rows_name_the_row():
    message = r"^train\[1\]: empty; train has 2 rows$"
    rows = rows_as_file([{"a": 1}, {"a": ""}], "train")
    with pytest.raises(DataError, match=message), rows as path:
        assert path.read_text() == '{"a": 1}\n{"a": ""}\n'
        raise DataError(f"{path}:2: empty; {path} has 2 rows")
    assert not path.exists()


def test_no_library_is_imported_to_recognise_its_objects():
    code = "import sys; from unmask.data.read.objects import texts_of, rows_of; "
    code += "list(texts_of(['a'])); list(rows_of([{'a': 1}])); print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"pandas", "pyarrow", "datasets", "numpy", "torch"} & {*done.stdout.split()}
