"""Tables that are written: read back by Python's csv, by pandas and by this package's reader."""

import csv
import json
import sys
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.labelled.table_files import WRITTEN, check_table_file, write_table
from unmask.data.labelled.tables import read_rows
from unmask.system.errors import SettingsError

HARD = [
    "plain",
    "a, comma",
    'a "quote"',
    '"quoted"',
    '"',
    "two\nlines",
    "two\r\nlines",
    "only a return\r",
    "a\ttab",
    "é 我爱你 🙂",
    " spaces ",
    "",
    "a,\"b\"\n\t'c'",
    "[1, 2]",
    "NA",
    "=1+1",
]
PANDAS = {"keep_default_na": False, "dtype": str}


def written(path, rows, names=None, source="-"):
    names = names or list(dict.fromkeys(name for row in rows for name in row))
    write_table(path, path.suffix, names, lambda: iter(rows), source)
    return path


def by_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.reader(file, delimiter={".csv": ",", ".tsv": "\t"}[path.suffix])]


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_hard_cells_come_back_from_the_csv_module_and_from_pandas(tmp_path, ending):
    rows = [{"first": cell, "second": f"{i}"} for i, cell in enumerate(HARD)]
    path = written(tmp_path / f"x{ending}", rows)
    assert by_csv(path) == [["first", "second"], *([r["first"], r["second"]] for r in rows)]
    found = pd.read_csv(path, sep={".csv": ",", ".tsv": "\t"}[ending], **PANDAS)
    # Pandas ends lines at a lone return and at \r\n alike, but keeps both inside of quotes.
    assert found["first"].tolist() == HARD
    assert found["second"].tolist() == [str(i) for i in range(len(HARD))]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2))
def test_any_text_comes_back_from_the_csv_module(tmp_path_factory, cells):
    cells = [cell.replace("\0", "") for cell in cells]
    for ending in (".csv", ".tsv"):
        path = tmp_path_factory.mktemp("any") / f"x{ending}"
        assert by_csv(written(path, [dict(zip("ab", cells, strict=True))]))[1] == cells


def test_a_csv_file_comes_back_from_the_reader_of_this_package(tmp_path):
    rows = [{"first": cell, "second": "x"} for cell in HARD]
    path = written(tmp_path / "x.csv", rows)
    assert [row.cells["first"] for row in read_rows(path, list)] == HARD


def test_so_does_a_tsv_file_unless_a_cell_has_a_tab_a_line_break_or_a_quote_in_front(tmp_path):
    """The reader takes quotes as they are, as in GLUE, where they are not in pairs."""
    rows = [{"first": 'say "a"', "second": "it's"}, {"first": '5" disk', "second": ""}]
    path = written(tmp_path / "x.tsv", rows)
    assert [row.cells for row in read_rows(path, list)] == rows


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_what_is_not_text_is_spelled_as_in_json(tmp_path, ending):
    row = {"a": None, "b": True, "c": 0.1, "d": [{"é": 1}], "e": 7, "f": date(2024, 5, 6)}
    found = by_csv(written(tmp_path / f"x{ending}", [row]))[1]
    assert found == ["", "true", "0.1", '[{"é": 1}]', "7", "2024-05-06"]


def test_json_lines_keep_values_and_miss_what_the_row_lacks(tmp_path):
    rows = [{"a": "é\n", "b": [1, None]}, {"b": {"c": 0.5}}, {"a": float("nan")}]
    lines = written(tmp_path / "x.jsonl", rows).read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [*rows[:2], {"a": None}], "JSON has no NaN"
    assert "é" in lines[0]


def test_parquet_keeps_lists_and_objects(tmp_path):
    rows = [
        {"text": "a", "found": [], "n": 1, "none": None},
        {"text": "b\n\t,", "found": [{"start": 0, "label": "x"}], "n": 2.5, "none": None},
        {"text": None, "found": None, "n": None},
    ]
    table = pq.read_table(written(tmp_path / "x.parquet", rows))
    assert table.to_pylist() == [{**row, "none": None} for row in rows]
    assert pa.types.is_list(table.schema.field("found").type)
    assert str(table.schema.field("n").type) == "double"
    assert pd.read_parquet(tmp_path / "x.parquet")["text"].tolist()[:2] == ["a", "b\n\t,"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["a", 1], ["a", "1"]),
        ([{}, {}], ["{}", "{}"]),
        ([2**70, None], [str(2**70), None]),
        ([[1], "x"], ["[1]", "x"]),
        (["\ud800", "a"], ["\\ud800", "a"]),
    ],
)
def test_what_parquet_has_no_type_for_is_text(tmp_path, cells, expected):
    rows = [{"x": cell} for cell in cells]
    table = pq.read_table(written(tmp_path / "x.parquet", rows))
    assert table["x"].to_pylist() == expected


def test_the_type_of_a_column_is_that_of_all_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.data.labelled.table_files.BATCH", 2)
    cells = [None, None, [], [], [{"a": 1}], [{"b": "x"}]]
    table = pq.read_table(written(tmp_path / "x.parquet", [{"x": cell} for cell in cells]))
    assert table["x"].to_pylist() == [
        None, None, [], [], [{"a": 1, "b": None}], [{"a": None, "b": "x"}],
    ]  # fmt: skip
    mixed = [{"x": 1}, {"x": 2}, {"x": "three"}]
    assert pq.read_table(written(tmp_path / "y.parquet", mixed))["x"].to_pylist() == [
        "1", "2", "three",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["in.parquet", "in.parquet.gz"])
def test_columns_of_a_parquet_file_keep_their_types(tmp_path, name):
    import gzip

    frame = pd.DataFrame(
        {
            "when": pd.to_datetime(["2024-01-01", None]),
            "small": np.array([1, 2], np.int8),
            "kind": pd.Categorical(["u", "v"]),
            "raw": [b"\xff", b"a"],
        }
    )
    frame.to_parquet(tmp_path / "in.parquet")
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress((tmp_path / "in.parquet").read_bytes()))
    rows = [{**row.cells, "score": 0.5} for row in read_rows(tmp_path / name, list)]
    out = written(tmp_path / "out.parquet", rows, source=tmp_path / name)
    before, after = pq.read_table(tmp_path / "in.parquet"), pq.read_table(out)
    for column in ("when", "small", "raw"):
        assert after.schema.field(column).type == before.schema.field(column).type
    assert after.drop_columns(["score"]).to_pylist() == before.to_pylist()
    assert after["kind"].to_pylist() == ["u", "v"]


def test_every_ending_that_is_offered_is_written(tmp_path):
    for ending in WRITTEN:
        check_table_file(tmp_path / f"x{ending}", "-", overwrite=False)
        assert written(tmp_path / f"x{ending}", [{"a": "b"}]).stat().st_size
    check_table_file(tmp_path / "x.CSV", "-", overwrite=False)


@pytest.mark.parametrize("name", ["x", "x.xls", "x.csv.gz", "x.json"])
def test_another_ending_is_refused(tmp_path, name):
    with pytest.raises(SettingsError, match=r"need one of \.csv, \.tsv, \.jsonl, \.parquet"):
        check_table_file(tmp_path / name, "-", overwrite=False)


def test_parquet_without_pyarrow_is_refused_before_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SettingsError, match="needs pyarrow, which is not installed"):
        check_table_file(tmp_path / "x.parquet", "-", overwrite=False)


def test_a_file_that_is_there_is_only_replaced_on_request(tmp_path):
    out = tmp_path / "x.csv"
    out.write_text("mine")
    with pytest.raises(SettingsError, match="already exists. Replace it with --overwrite"):
        check_table_file(out, "-", overwrite=False)
    check_table_file(out, "-", overwrite=True)
    with pytest.raises(SettingsError, match="is the input"):
        check_table_file(out, str(out), overwrite=True)
    (tmp_path / "link.csv").symlink_to(out)
    with pytest.raises(SettingsError, match="is not an ordinary file"):
        check_table_file(tmp_path / "link.csv", "-", overwrite=True)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(SettingsError, match="already exists"):
        check_table_file(tmp_path / "folder.csv", "-", overwrite=True)
