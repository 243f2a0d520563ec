"""Parallel text: line i goes with line i, a row is a pair, and nothing gets out of step."""

import gzip
import io
import json
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.read.test_texts import parquet, written, zstd
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.parallel import (
    Pair,
    describe_columns,
    files_of_languages,
    read_pairs,
    read_sources,
)
from unmask.data.read.lines import ErrorPolicy
from unmask.system.errors import DataError

DE, EN = b"ein Hund\neine Katze\n", b"a dog\na cat\n"
BOTH = [("ein Hund", "a dog"), ("eine Katze", "a cat")]
NESTED = [{"id": "x", "translation": {"de": de, "en": en}} for de, en in BOTH]
PACKINGS = {"": bytes, ".gz": gzip.compress, ".zst": zstd}


class Counter(ErrorPolicy):
    """Writes everything down."""

    def __init__(self):
        self.faults, self.blanks, self.files = [], 0, []

    def bad(self, error, raw):
        self.faults.append(str(error))

    def blank(self):
        self.blanks += 1

    def opened(self, path, file):
        self.files.append(path)


def two(folder: Path, source: bytes, target: bytes, ending: str = "") -> list[Path]:
    pack = PACKINGS[ending]
    return [
        written(folder, f"a.de{ending}", pack(source)),
        written(folder, f"a.en{ending}", pack(target)),
    ]


def pairs(*paths, columns=Columns(), watcher=None):
    found = read_pairs(paths, columns, watcher) if watcher else read_pairs(paths, columns)
    return [(pair.source, pair.target) for pair in found]


def sources(path, watcher=None):
    found = read_sources(path, watcher) if watcher else read_sources(path)
    return [pair.source for pair in found]


def lines(*values) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


# Two files.


@pytest.mark.parametrize("ending", PACKINGS)
def test_line_i_of_one_file_goes_with_line_i_of_the_other_however_they_are_packed(tmp_path, ending):
    assert pairs(*two(tmp_path, DE, EN, ending)) == BOTH


def test_a_pair_has_the_place_of_its_source_and_is_known_by_both_sides(tmp_path):
    source, target = two(tmp_path, b"\n" + DE, b"\n" + EN)
    first, _ = read_pairs([source, target], Columns())
    assert first == Pair("ein Hund", "a dog", f"{source}:2")
    assert first.key == ("ein Hund", "a dog")


@pytest.mark.parametrize("name", ["a.txt", "a", "news.2024.fr", "a.zh-Hans"])
def test_two_files_are_plain_text_whatever_their_names_end_in(tmp_path, name):
    paths = written(tmp_path, name, DE), written(tmp_path, "b.en", EN)
    assert pairs(*paths) == BOTH


def test_one_of_two_files_may_be_standard_input(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DE)))
    assert pairs("-", written(tmp_path, "a.en", EN)) == BOTH


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_a_newline_ends_a_line(tmp_path, separator):
    text = f"ein{separator}Hund"
    assert pairs(*two(tmp_path, f"{text}\nx\n".encode(), b"a dog\nx\n"))[0] == (text, "a dog")


def test_windows_lines_byte_order_marks_and_a_missing_last_newline_do_not_show(tmp_path):
    source = b"\xef\xbb\xbf" + DE.replace(b"\n", b"\r\n")
    assert pairs(*two(tmp_path, source, EN.removesuffix(b"\n"))) == BOTH


def test_lines_that_are_empty_on_both_sides_are_left_out_and_counted(tmp_path):
    watcher = Counter()
    found = pairs(*two(tmp_path, b"\n" + DE + b" \n", b"\n" + EN + b"\t\n"), watcher=watcher)
    assert found == BOTH
    assert (watcher.blanks, watcher.faults) == (2, [])


def test_a_line_that_cannot_be_read_takes_its_partner_with_it_and_no_other(tmp_path):
    source, target = b"1\n\xff\n3\n4\n\xff\n6\n", b"1\n2\n3\n\xff\n\xff\n6\n"
    watcher = Counter()
    paths = two(tmp_path, source, target)
    assert pairs(*paths, watcher=watcher) == [("1", "1"), ("3", "3"), ("6", "6")]
    places = [fault.split(": ")[0] for fault in watcher.faults]
    assert places == [f"{paths[0]}:2", f"{paths[1]}:4", f"{paths[0]}:5"]  # the fifth once


def test_lines_may_be_bad_at_the_end_too(tmp_path):
    watcher = Counter()
    assert pairs(*two(tmp_path, b"1\n2\n3\n", b"1\n\xff\n\xff\n"), watcher=watcher) == [("1", "1")]
    assert len(watcher.faults) == 2


def test_the_watcher_is_told_of_both_files_and_says_how_long_a_line_may_be(tmp_path):
    watcher = Counter()
    watcher.longest = 12
    paths = two(tmp_path, b"ein Hund\neine kleine Katze\n", EN)
    assert pairs(*paths, watcher=watcher) == BOTH[:1]
    assert watcher.files == paths
    assert "the line has 18 bytes; need at most 12" in watcher.faults[0]


good = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff"), min_size=1
)
line = st.one_of(good.map(str.encode), st.sampled_from([b"", b" ", b"\xff", b"caf\xc3"]))


@settings(deadline=None)
@given(st.lists(st.tuples(line, line)))
def test_every_line_is_used_or_blank_or_bad(written_lines):
    """As many as there are, and those that are used are those that are good on both sides."""
    expected = []
    for sides in written_lines:
        try:
            texts = tuple(side.decode() for side in sides)
        except UnicodeDecodeError:
            continue
        if all(text.strip() for text in texts):
            expected.append(texts)
    watcher = Counter()
    with tempfile.TemporaryDirectory() as folder:
        raw = (b"".join(pair[side] + b"\n" for pair in written_lines) for side in (0, 1))
        found = pairs(*two(Path(folder), *raw), watcher=watcher)
    assert found == expected
    assert len(written_lines) == len(found) + watcher.blanks + len(watcher.faults)


def test_a_longer_file_is_counted_to_its_end(tmp_path):
    source, target = two(tmp_path, DE, EN + b"x\n" * 4998)
    found = read_pairs([source, target], Columns())
    assert [next(found).source, next(found).source] == ["ein Hund", "eine Katze"]
    with pytest.raises(DataError) as error:
        next(found)
    assert str(error.value) == (
        f"{target}:3: no matching line: {source} has 2 lines, {target} has 5,000; need "
        "equally many lines. Look for a missing line or one that is split in two."
    )


@pytest.mark.parametrize("tail", [b"x\n", b"\xff\n", b"x\n\xff\n", b"\xff\nx\n", b"\n"])
@pytest.mark.parametrize("longer", [0, 1])
def test_files_of_different_length_are_refused_even_if_bad_lines_are_left_out(
    tmp_path, tail, longer
):
    raw = [DE, EN]
    raw[longer] += tail
    paths = two(tmp_path, *raw)
    with pytest.raises(DataError, match="no matching line") as error:
        pairs(*paths, watcher=Counter())
    assert str(error.value).startswith(f"{paths[longer]}:3: ")
    assert f"{paths[longer]} has {2 + tail.count(10)}" in str(error.value)


def test_the_rest_of_a_file_that_is_cut_off_is_one_fault(tmp_path):
    rows = b"".join(b"line %d, %d\n" % (i, i * i * 7919) for i in range(2000))
    source = written(tmp_path, "a.de.gz", gzip.compress(rows)[:9000])
    target, watcher = written(tmp_path, "a.en", rows), Counter()
    found = pairs(source, target, watcher=watcher)
    assert 500 < len(found) < 2000
    assert all(one == other for one, other in found)
    (fault,) = watcher.faults
    assert fault.startswith(f"{source}:{len(found) + 1}: the file cannot be read beyond")


def test_a_file_that_is_shorter_than_what_is_left_of_one_cut_off_is_refused(tmp_path):
    rows = b"".join(b"line %d, %d\n" % (i, i * i * 7919) for i in range(2000))
    source = written(tmp_path, "a.de.gz", gzip.compress(rows)[:9000])
    with pytest.raises(DataError, match=r"a\.de\.gz has [\d,]+ or more lines, .*a\.en has 2;"):
        pairs(source, written(tmp_path, "a.en", EN), watcher=Counter())


# One table.

TABLES = {
    "a.tsv": b"source\ttarget\nein Hund\ta dog\neine Katze\ta cat\n",
    "a.csv": b"source,target\nein Hund,a dog\neine Katze,a cat\n",
    "a.jsonl": lines(*({"source": de, "target": en} for de, en in BOTH)),
    "a.parquet": parquet(source=[de for de, _ in BOTH], target=[en for _, en in BOTH]),
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_both_sides_in_its_rows(tmp_path, name, packing):
    path = written(tmp_path, name + packing, PACKINGS[packing](TABLES[name]))
    assert pairs(path) == BOTH
    assert (
        describe_columns([path], Columns())
        == "source is column 'source', target is column 'target'"
    )


HEADERS = {  # the first row, what was asked, source, target
    "short names": ("tgt,id,src", Columns(), "src", "tgt"),
    "names in capitals": ("id,Target,Source", Columns(), "Source", "Target"),
    "the only two, languages": ("de,en", Columns(), "de", "en"),
    "the only two, with countries": ("pt_BR,zh-Hans", Columns(), "pt_BR", "zh-Hans"),
    "the only two, if a header is declared": ("Deutsch,x", Columns(header=True), "Deutsch", "x"),
    "one that is known, and the only other": ("english,source", Columns(), "source", "english"),
    "one that was asked for, and the only other": ("de,en", Columns(text="en"), "en", "de"),
    "one that was asked for, and its usual partner": ("a,b,src", Columns(second="a"), "src", "a"),
    "both asked for": ("id,de,en", Columns("en", "de"), "en", "de"),
    "both asked for, by number": ("id,de,en", Columns("3", "2"), "en", "de"),
    "what is usual, the other way round": ("source,target", Columns("target"), "target", "source"),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_columns_are_known_by_what_was_asked_or_by_name_or_because_there_is_no_other(
    tmp_path, case
):
    header, asked, source, target = HEADERS[case]
    row = ",".join(f"{name} 1" for name in header.split(","))
    path = written(tmp_path, "a.csv", f"{header}\n{row}\n".encode())
    assert pairs(path, columns=asked) == [(f"{source} 1", f"{target} 1")]
    expected = f"source is column '{source}', target is column '{target}'"
    assert describe_columns([path], asked) == expected


@pytest.mark.parametrize(
    ("rows", "asked"),
    [
        ("Go.\tGeh.\tby A\nRun!\tLauf!\tby B\n", Columns()),
        ("A dog runs\tEin Hund\nRun!\tLauf!\n", Columns()),
        ("source\ttarget\nRun!\tLauf!\n", Columns(header=False)),
    ],
)
def test_without_a_header_the_first_two_columns_are_meant(tmp_path, rows, asked):
    path = written(tmp_path, "a.tsv", rows.encode())
    assert pairs(path, columns=asked) == [tuple(r.split("\t")[:2]) for r in rows.splitlines()]
    assert (
        describe_columns([path], asked) == "no header, source is column '1', target is column '2'"
    )


def test_columns_without_a_header_may_be_given_by_number(tmp_path):
    path = written(tmp_path, "a.tsv", b"7\tA dog.\tEin Hund.\n")
    assert pairs(path, columns=Columns("3", "2")) == [("Ein Hund.", "A dog.")]


def test_quotes_are_part_of_the_text_in_tsv_and_not_in_csv(tmp_path):
    tsv = written(tmp_path, "a.tsv", b'de\ten\n"Hund\t"dog"\n')
    assert pairs(tsv) == [('"Hund', '"dog"')]
    csv = written(tmp_path, "a.csv", b'de,en\n"Hund, ""x""","dog"\n')
    assert pairs(csv) == [('Hund, "x"', "dog")]


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_a_translation_may_be_nested_by_language(tmp_path, kind):
    path = written(tmp_path, f"a{kind}", lines(*NESTED))
    if kind == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(NESTED), path)
    assert pairs(path, columns=Columns("en", "de")) == [(en, de) for de, en in BOTH]
    assert pairs(path) == BOTH
    assert describe_columns([path], Columns("en")) == "source is column 'en', target is column 'de'"


def test_rows_that_are_empty_on_both_sides_are_left_out_and_counted(tmp_path):
    for name, raw in {
        "a.tsv": b"de\ten\n \t\na\tb\n",
        "a.jsonl": b'{"de": "", "en": " "}\n\n{"de": "a", "en": "b"}\n',
        "a.parquet": parquet(de=[None, "a"], en=[None, "b"]),
    }.items():
        watcher = Counter()
        assert pairs(written(tmp_path, name, raw), watcher=watcher) == [("a", "b")]
        assert (watcher.blanks, watcher.faults) == (1, [])


def test_a_cell_of_parquet_that_is_missing_is_an_empty_one(tmp_path):
    path = written(tmp_path, "a.parquet", parquet(de=["a"], en=pa.array([None], pa.string())))
    with pytest.raises(DataError, match=r"a\.parquet: row 1: the target is empty; need a sent"):
        pairs(path)


# Sources alone.


def test_every_line_of_the_sources_is_kept_in_its_place(tmp_path):
    path = written(tmp_path, "a.de", b"\nein Hund\n \n\xff\neine Katze\n\xff\n")
    watcher = Counter()
    assert sources(path, watcher) == ["", "ein Hund", "", "", "eine Katze", ""]
    assert [fault.split(": ")[0] for fault in watcher.faults] == [f"{path}:4", f"{path}:6"]
    found = list(read_sources(path, Counter()))
    assert [pair.where for pair in found] == [f"{path}:{i}" for i in range(1, 7)]
    assert found[1].target is None
    assert found[1].key == ("ein Hund",)


def test_sources_that_cannot_be_read_are_refused_if_nobody_says_otherwise(tmp_path):
    with pytest.raises(DataError, match=r"a\.de:2: byte 2 of the file is not UTF-8"):
        sources(written(tmp_path, "a.de", b"a\n\xff\n"))


def test_sources_may_come_from_standard_input_or_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo")))
    assert sources("-") == ["one", "", "two"]
    assert sources(written(tmp_path, "a.de.gz", gzip.compress(DE))) == ["ein Hund", "eine Katze"]
    assert sources(written(tmp_path, "empty.de", b"")) == []


def test_sources_that_are_cut_off_end_there(tmp_path):
    path, watcher = written(tmp_path, "a.de.gz", gzip.compress(DE)[:-8]), Counter()
    assert sources(path, watcher) == ["ein Hund", "eine Katze"]
    assert len(watcher.faults) == 1


def test_sources_in_a_table_are_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"a\.tsv: is a table; need plain text\. Write its text column"
    ):
        read_sources(written(tmp_path, "a.tsv", b"x\n"))


# A folder.


def folder_of(tmp_path, *names):
    for name in names:
        written(tmp_path, name, b"x\n")
    return tmp_path


@pytest.mark.parametrize("dev", ["dev", "val", "valid", "validation"])
def test_a_folder_has_train_and_dev_and_the_first_test(tmp_path, dev):
    names = ("train", dev, "test_2017", "test_2016")
    folder = folder_of(tmp_path, *(f"{n}.{lang}" for n in names for lang in ("de", "en", "fr")))
    expected = {"train": "train", "dev": dev, "test": "test_2016"}
    assert files_of_languages(folder, "en", "de") == {
        split: (folder / f"{name}.en", folder / f"{name}.de") for split, name in expected.items()
    }


def test_files_of_a_folder_may_be_packed_and_there_need_be_no_test(tmp_path):
    names = ("train.de", "train.de.gz", "train.en.zst", "val.de.gz", "val.en", "test.de")
    assert files_of_languages(folder_of(tmp_path, *names), "de", "en") == {
        "train": (tmp_path / "train.de", tmp_path / "train.en.zst"),
        "dev": (tmp_path / "val.de.gz", tmp_path / "val.en"),
    }


def test_other_files_in_a_folder_are_no_languages(tmp_path):
    folder = folder_of(tmp_path, "train.de", "train.en", "train.tsv", "README.md", "val.de")
    (folder / "train.fr").mkdir()
    with pytest.raises(DataError) as error:
        files_of_languages(folder, "de", "fr")
    assert str(error.value) == (
        f"{folder}: unknown language 'fr'; there is none of that name. The languages are de, en. "
        "Choose one of them."
    )


def test_a_language_that_is_nearly_right_is_corrected(tmp_path):
    folder = folder_of(tmp_path, "train.deu", "train.eng")
    with pytest.raises(DataError, match="unknown language 'en'; did you mean 'eng'"):
        files_of_languages(folder, "deu", "en")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["train.de", "dev.de", "dev.en"], "train.en missing; need both languages of train. Add"),
        (["train.de", "train.en"], "dev.de and dev.en missing; need both languages of dev."),
        (["train.de", "train.en", "val.en"], "val.de missing; need both languages of dev."),
    ],
)
def test_the_file_that_is_missing_in_a_folder_is_named(tmp_path, names, says):
    with pytest.raises(DataError, match=says) as error:
        files_of_languages(folder_of(tmp_path, *names), "de", "en")
    assert str(error.value).startswith(f"{tmp_path}: ")


def test_a_folder_that_is_none_or_holds_nothing_is_refused(tmp_path):
    for path, says in {
        tmp_path / "none": "No such file or directory; need train.de",
        written(tmp_path, "a.de", b""): "Not a directory; need train.de",
        tmp_path: "contains no file such as train.de; need train.de, train.en and so on. Check the",
    }.items():
        with pytest.raises(DataError, match=says) as error:
            files_of_languages(path, "de", "en")
        assert str(error.value).startswith(f"{path}: ")


def test_a_language_is_not_translated_to_itself(tmp_path):
    with pytest.raises(DataError, match="from 'de' to 'de'; need two different languages."):
        files_of_languages(tmp_path, "de", "de")


def test_multi30k_is_read_whole(shared_data):
    folder = shared_data / "multi30k"
    if not folder.is_dir():
        pytest.skip("Multi30k is not among the development data (../shared/data/multi30k)")
    found = files_of_languages(folder, "de", "en")
    counts = {split: len(pairs(*paths)) for split, paths in found.items()}
    assert counts == {"train": 29_000, "dev": 1_014, "test": 1_000}
    first = next(read_pairs(found["train"], Columns()))
    assert first.source.startswith("Zwei junge weiße Männer")
    assert first.target.startswith("Two young, White males")
