"""Readers: every format gives its texts in order with their places, and bad files are refused."""

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.read.texts import read_texts, refuse_empty
from unmask.system.errors import DataError
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary


def parquet(**columns: list) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def zstd(raw: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(raw)
    return sink.getvalue().to_pybytes()


TWO_TEXTS = {
    ".txt": b"one\ntwo\n",
    ".jsonl": b'{"text": "one"}\n{"text": "two"}\n',
    ".csv": b"id,text\n1,one\n2,two\n",
    ".tsv": b"id\ttext\n1\tone\n2\ttwo\n",
    ".parquet": parquet(id=[1, 2], text=["one", "two"]),
}
PACKINGS = {"": bytes, ".gz": gzip.compress, ".zst": zstd}
LINES = b"".join(
    b"line %d of a text that packs badly %d\n" % (i, i * i * 7919) for i in range(2000)
)
IN_THE_MIDDLE = r"(:\d+|: row \d+)?"  # of what is packed: the last place that could be read

# The name of a file, what is in it (or what makes it), where its fault is, the message about it.
BAD: dict[str, tuple[str, bytes | Callable[[Path], object], str, str]] = {
    "missing": ("a.txt", lambda path: None, "", "no such file"),
    "a link to itself": ("a.txt", lambda path: path.symlink_to(path), "", "no such file"),
    "a folder": ("a.txt", Path.mkdir, "", "a folder"),
    "unknown ending": ("a.jsnl", b"{}", "", r"'\.jsnl'; did you mean '\.jsonl'"),
    "empty": ("a.txt", b"", "", "contains no text"),
    "only blank lines": ("a.txt", b"\n \n\t\r\n", "", "contains no text"),
    "invalid UTF-8": ("a.txt", b"1st\n2nd\nab\xffc\n", ":3", r"byte 10 .*UTF-8 \(0xff\)"),
    "invalid UTF-8 after a BOM": ("a.txt", b"\xef\xbb\xbfab\xff\n", ":1", r"byte 5 .*\(0xff\)"),
    "UTF-8 cut off at the end": ("a.txt", b"1st\ncaf\xc3", ":2", r"byte 7 .*\(0xc3\)"),
    "half a surrogate pair": ("a.txt", b"1st\n\xed\xa0\x80\n", ":2", r"byte 4 .*\(0xed\)"),
    "UTF-16": ("a.txt", "1st\n2nd\n".encode("utf-16"), ":1", "byte 0 .*iconv -f UTF-16"),
    "cut off .gz": ("a.txt.gz", gzip.compress(LINES)[:9000], r":\d+", "truncated or damaged"),
    "damaged .gz": ("a.txt.gz", gzip.compress(LINES[:99]) + b"rest", r":\d+", "damaged"),
    "damaged stream in .gz": (
        "a.txt.gz",
        gzip.compress(LINES)[:10] + b"\xff" * 99,
        ":1",
        "damaged",
    ),
    "not .gz at all": ("a.txt.gz", b"plain text\n", ":1", "[Nn]ot a gzipped file"),
    "cut off .zst": ("a.txt.zst", zstd(LINES)[:9000], r":\d+", "truncated or damaged"),
    "not .zst at all": ("a.txt.zst", b"plain text, and enough of it\n", ":1", "damaged"),
    "bad JSON": ("a.jsonl", b'{"text": "a"}\n{"text": }\n', ":2", "not valid JSON.*column 10"),
    "a JSON list": ("a.jsonl", b'{"text": "a"}\n["a"]\n', ":2", "a list"),
    "a JSON text": ("a.jsonl", b'"a"\n', ":1", "a str"),
    "missing key": ("a.jsonl", b'{"txet": "a", "id": 1}\n', ":1", "'text'; did you mean 'txet'"),
    "wrong type": ("a.jsonl", b'{"text": "a"}\n\n{"text": 7}\n', ":3", "'text' is 7"),
    "null": ("a.jsonl", b'{"text": null}\n', ":1", "'text' is (None|null)"),
    "deep JSON": ("a.jsonl", b'{"text": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", ":1", "too deep"),
    "deep JSON as text": ("a.jsonl", b'{"text": ' + b"[" * 500 + b"]" * 500 + b"}", ":1", "is \\["),
    "a giant number": ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}", ":1", "5000 digits"),
    "no such column": ("a.csv", b"id,body\n1,one\n", "", "'text'.* columns are body, id"),
    "no such column in .tsv": ("a.tsv", b"id\tbody\n1\tone\n", "", "columns are body, id"),
    "no such column in .parquet": ("a.parquet", parquet(a=["x"], b=["y"]), "", "columns are a, b"),
    "column given twice": ("a.csv", b"text,text\none,two\n", "(:1)?", "'?text'?.* (twice|2 times)"),
    "too many columns": ("a.csv", b"id,text\n1,one\n2,a,b\n", "(:3|: row 2)", "2 columns.* 3"),
    "too few columns": ("a.csv", b"id,text\n1,one\n2\n", "(:3|: row 2)", "2 columns.* 1"),
    "too many columns in .tsv": ("a.tsv", b"id\ttext\n1\ta\tb\n", "(:2|: row 1)", "2 columns.* 3"),
    "quote never closed": (
        "a.csv",
        b'text\none\n"two\nthree\n',
        "(:[34]|: row 2)",
        "quote|end of data",
    ),
    "invalid UTF-8 in .csv": ("a.csv", b"text\none\nab\xffc\n", "(:3|: row 2)", "UTF-?8"),
    "UTF-16 .csv": ("a.csv", "text\none\n".encode("utf-16"), "(:1)?", "UTF-?8"),
    "empty .csv": ("a.csv", b"", "", "[Ee]mpty|contains no text"),
    "only a header": ("a.csv", b"id,text\n", "", "contains no text"),
    "cut off .csv.gz": (
        "a.csv.gz",
        gzip.compress(b"text\n" + LINES)[:9000],
        IN_THE_MIDDLE,
        "ended",
    ),
    "damaged stream in .csv.gz": (
        "a.csv.gz",
        gzip.compress(b"text\n" + LINES)[:10] + b"\xff" * 99,
        IN_THE_MIDDLE,
        "decompress",
    ),
    "cut off .csv.zst": (
        "a.csv.zst",
        zstd(b"text\n" + LINES)[:9000],
        IN_THE_MIDDLE,
        "[Tt]runcated",
    ),
    "not .parquet at all": ("a.parquet", b"plain text\n", "", "not a readable parquet file"),
    "empty .parquet": ("a.parquet", b"", "", "not a readable parquet file"),
    "cut off .parquet": ("a.parquet", TWO_TEXTS[".parquet"][:-20], "", "not a readable parquet"),
    "numbers in .parquet": ("a.parquet", parquet(text=[7, 8]), ": row 1", "'text' is 7"),
}
WHAT_TO_DO = (
    "; need |did you mean|Check|Choose|Convert|Download|Fix|Give|List|Omit|[Nn]ame|Remove|One"
)


def texts(path: Path | str, **options: str) -> list[str]:
    return [record.text for record in read_texts(path, **options)]


def written(folder: Path, name: str, contents: bytes) -> Path:
    path = folder / name
    path.write_bytes(contents)
    return path


def refusal(folder: Path, case: str) -> tuple[Path, str]:
    """Make a bad file, read it, and return the error message."""
    name, contents, _, _ = BAD[case]
    path = folder / name
    if isinstance(contents, bytes):
        path.write_bytes(contents)
    else:
        contents(path)
    with pytest.raises(DataError) as error:
        list(refuse_empty(path, read_texts(path)))
    return path, str(error.value)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("ending", TWO_TEXTS)
def test_every_format_gives_its_texts_in_order_however_it_is_packed(tmp_path, ending, packing):
    packed = PACKINGS[packing](TWO_TEXTS[ending])
    assert texts(written(tmp_path, f"a{ending}{packing}", packed)) == ["one", "two"]


@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
def test_a_line_is_named_by_its_number_in_the_file_blank_ones_counted(tmp_path, ending):
    path = written(tmp_path, f"a{ending}", b"\n" + TWO_TEXTS[ending].replace(b"\n", b"\n\n"))
    assert [record.where for record in read_texts(path)] == [f"{path}:2", f"{path}:4"]


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_row_of_a_table_of_text_is_named_by_its_line(tmp_path, ending):
    path = written(tmp_path, f"a{ending}", TWO_TEXTS[ending])
    assert [record.where for record in read_texts(path)] == [f"{path}:2", f"{path}:3"]


def test_a_row_that_is_left_out_is_still_counted(tmp_path):
    path = written(tmp_path, "a.parquet", parquet(text=["one", " ", None, "two"]))
    assert [record.where for record in read_texts(path)] == [f"{path}: row 1", f"{path}: row 4"]


def test_a_name_without_ending_is_plain_text(tmp_path):
    assert texts(written(tmp_path, "corpus", b"one\n")) == ["one"]


def test_a_name_in_capitals_is_no_other_format(tmp_path):
    assert texts(written(tmp_path, "A.JSONL", TWO_TEXTS[".jsonl"])) == ["one", "two"]
    assert texts(written(tmp_path, "A.TXT.GZ", gzip.compress(b"one\n"))) == ["one"]


def test_dots_in_a_name_are_no_endings(tmp_path):
    assert texts(written(tmp_path, "news.2024.csv.v1.txt", b"one\n")) == ["one"]


def test_standard_input_is_plain_text(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\n")))
    assert [(r.text, r.where) for r in read_texts("-")] == [("one", "-:1"), ("two", "-:3")]


def test_several_packed_streams_in_one_file_are_all_read(tmp_path):
    path = written(tmp_path, "a.txt.gz", gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert texts(path) == ["one", "two"]


def test_blank_lines_are_left_out(tmp_path):
    assert texts(written(tmp_path, "a.txt", b"\none\n\n \t\ntwo\n\n")) == ["one", "two"]


def test_blank_texts_of_objects_and_rows_are_left_out(tmp_path):
    assert texts(written(tmp_path, "a.jsonl", b'{"text": " "}\n{"text": "one"}\n')) == ["one"]
    assert texts(written(tmp_path, "a.csv", b'id,text\n1,\n2," "\n3,one\n')) == ["one"]


def test_the_last_line_needs_no_newline(tmp_path):
    assert texts(written(tmp_path, "a.txt", b"one\ntwo")) == ["one", "two"]


def test_lines_may_end_as_on_windows(tmp_path):
    assert texts(written(tmp_path, "a.txt", b"one\r\ntwo\r\n")) == ["one", "two"]
    assert texts(written(tmp_path, "a.tsv", b"id\ttext\r\n1\tone\r\n")) == ["one"]


def test_spaces_around_a_text_are_part_of_it(tmp_path):
    assert texts(written(tmp_path, "a.txt", b"  one \n")) == ["  one "]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_a_newline_ends_a_line(tmp_path, separator):
    text = f"one{separator}two"
    assert texts(written(tmp_path, "a.txt", f"{text}\nthree\n".encode())) == [text, "three"]


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".tsv"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, ending):
    path = written(tmp_path, f"a{ending}", b"\xef\xbb\xbf" + TWO_TEXTS[ending])
    assert texts(path) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("a.jsonl", b'{"text": "x", "body": "one"}\n'),
        ("a.csv", b"text,body\nx,one\n"),
        ("a.tsv", b"text\tbody\nx\tone\n"),
        ("a.parquet", parquet(text=["x"], body=["one"])),
    ],
)
def test_another_column_can_be_chosen(tmp_path, name, contents):
    assert texts(written(tmp_path, name, contents), column="body") == ["one"]


@pytest.mark.parametrize(
    ("name", "contents"), [("a.csv", b"body\none\n"), ("a.parquet", parquet(body=["one"]))]
)
def test_the_only_column_needs_no_choice(tmp_path, name, contents):
    assert texts(written(tmp_path, name, contents)) == ["one"]


def test_plain_text_has_no_column_to_choose(tmp_path):
    path = written(tmp_path, "a.txt", b"one\n")
    with pytest.raises(DataError, match=r"a\.txt: plain text has no column 'body'\. Omit"):
        read_texts(path, column="body")


def test_a_misspelled_column_is_corrected(tmp_path):
    path = written(tmp_path, "a.csv", b"id,body\n1,one\n")
    with pytest.raises(DataError, match=r"unknown column 'bdy'; did you mean 'body'\?"):
        texts(path, column="bdy")


def test_quotes_are_part_of_the_text_in_tsv(tmp_path):
    path = written(tmp_path, "a.tsv", b'id\ttext\n1\t"one\n2\tsay "hi"\n3\t""\n')
    assert texts(path) == ['"one', 'say "hi"', '""']


def test_quotes_hold_commas_quotes_and_newlines_in_csv(tmp_path):
    path = written(tmp_path, "a.csv", b'id,text\n1,"a, b"\n2,"say ""hi"""\n3,"one\ntwo"\n')
    assert texts(path) == ["a, b", 'say "hi"', "one\ntwo"]


@pytest.mark.parametrize("cell", ["17", "1.50", "2024-01-31", "true", "NA", "null", "00:07"])
def test_a_cell_is_the_text_that_is_written_there_whatever_it_looks_like(tmp_path, cell):
    assert texts(written(tmp_path, "a.csv", f"id,text\n1,{cell}\n".encode())) == [cell]


def test_columns_that_are_not_asked_for_may_hold_anything(tmp_path):
    rows = [f"{i},text number {i}" for i in range(100_000)]  # more than pyarrow guesses types from
    path = written(tmp_path, "a.csv", "\n".join(["id,text", *rows, "A7,last"]).encode())
    assert texts(path)[-1] == "last"


def test_what_is_wrong_with_a_path_is_said_before_the_first_text_is_asked_for(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_texts(tmp_path / "a.csv")


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_its_place_and_the_reason(tmp_path, case):
    path, message = refusal(tmp_path, case)
    _, _, place, says = BAD[case]
    assert re.match(re.escape(str(path)) + place + ": ", message), message
    assert re.search(says, message), message


@pytest.mark.parametrize("case", BAD)
def test_a_refusal_says_in_one_short_line_what_to_do(tmp_path, case):
    path, message = refusal(tmp_path, case)
    said = message.removeprefix(str(path))
    assert re.search(WHAT_TO_DO, said), message
    assert "\n" not in message
    assert len(said) < 300


def test_an_unreadable_file_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = written(Path(folder), "a.txt", b"one\n")
        path.chmod(0)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)  # root reads everything; nobody does not
        try:
            with pytest.raises(DataError, match=r"a\.txt: cannot be read \(Permission denied\)"):
                texts(path)
        finally:
            os.seteuid(before)


def test_half_a_surrogate_pair_in_json_is_read_and_means_nothing_to_a_tokenizer(tmp_path):
    (text,) = texts(written(tmp_path, "a.jsonl", b'{"text": "a\\ud800b"}\n'))
    tokenizer = Tokenizer(Vocabulary([*SPECIALS, "a", "##b"]))
    assert tokenizer.encode(text).ids == tokenizer.encode("ab").ids


one_line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff\0"))
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
# (made outside tmp_path, which hypothesis would share between its examples)


def read_back(ending: str, contents: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        return texts(written(Path(folder), f"a{ending}", contents.encode()))


@settings(deadline=None)
@given(st.lists(one_line))
def test_every_line_that_is_not_blank_is_read_as_it_was_written(lines):
    expected = [line for line in lines if line.strip()]
    assert read_back(".txt", "".join(f"{line}\n" for line in lines)) == expected


@settings(deadline=None)
@given(st.lists(st.text(st.characters())))
def test_every_text_in_json_is_read_as_it_was_written(values):
    expected = [value for value in values if value.strip()]
    assert read_back(".jsonl", "".join(json.dumps({"text": v}) + "\n" for v in values)) == expected


@settings(deadline=None)
@given(st.lists(any_text))
def test_every_text_in_csv_is_read_as_it_was_written(values):
    table = io.StringIO()
    csv.writer(table).writerows([["id", "text"], *enumerate(values)])
    assert read_back(".csv", table.getvalue()) == [value for value in values if value.strip()]


@pytest.mark.parametrize(
    ("ending", "before", "after"),
    [(".txt", b"", b"\n"), (".jsonl", b'{"text": "', b'"}\n'), (".csv", b"text\n", b"\n")],
)
def test_a_line_of_fifty_megabytes_is_read_in_less_than_one_gigabyte(
    tmp_path, ending, before, after
):
    path = written(tmp_path, f"a{ending}", before + b"word " * 10_000_000 + after)
    program = (
        "import sys; from unmask.data.read.texts import read_texts\n"
        "print(*[len(record.text) for record in read_texts(sys.argv[1])])\n"
        # Not ru_maxrss, which a process inherits from the one that started it.
        "status = open('/proc/self/status').read()\n"
        "print(status.partition('VmHWM:')[2].split()[0])"
    )
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    characters, kilobytes = done.stdout.splitlines()
    assert characters == "50000000"
    assert int(kilobytes) < 2**20


def test_a_line_break_inside_quotes_stays_as_it_is(tmp_path):
    path = written(tmp_path, "a.csv", b'text\r\n"one\r\ntwo\nthree"\r\nfour\r\n')
    assert [record.text for record in read_texts(path)] == ["one\r\ntwo\nthree", "four"]
