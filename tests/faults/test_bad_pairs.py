"""Parallel files that are bad: each is refused by its line, with what to do; what is good is kept.

Every case is read twice: by one who refuses, and by one who writes down what is bad and reads on.
"""

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.data.read.test_texts import LINES, parquet
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.parallel import read_pairs
from unmask.data.read.lines import ErrorPolicy
from unmask.system.errors import DataError

DE, EN = b"ein Hund\neine Katze\n", b"a dog\na cat\n"
DOG, CAT = ("ein Hund", "a dog"), ("eine Katze", "a cat")
WHAT_TO_DO = (
    "Check|Choose|Convert|Concat|Download|Fill|Fix|Look|Omit|[Nn]ame|Rename|Is this|; need "
)


@dataclass(frozen=True)
class Case:
    """Bad files: where the fault is, the message about it, which pairs can still be used.

    The fault is in the file called `bad...`. `used` is None if no pair can be used: then the
    files are always refused.
    """

    files: dict[str, bytes | None]  # None: a folder
    place: str
    says: str
    used: list[tuple[str, str]] | None = None
    columns: Columns = Columns()


def source(raw: bytes, place: str, says: str, used=None, **more) -> Case:
    """A bad source beside a good target."""
    return Case({"bad.de": raw, "a.en": EN}, place, says, used, **more)


def target(raw: bytes, place: str, says: str, used=None, **more) -> Case:
    return Case({"a.de": DE, "bad.en": raw}, place, says, used, **more)


def tsv(rows: str, place: str, says: str, used=None, **more) -> Case:
    return Case({"bad.tsv": rows.encode()}, place, says, used, **more)


def jsonl(middle: str, says: str, **more) -> Case:
    """An object that is bad between two that are good."""
    first, last = (json.dumps({"source": de, "target": en}) for de, en in (DOG, CAT))
    raw = f"{first}\n{middle}\n{last}\n".encode()
    return Case({"bad.jsonl": raw}, ":2", says, [DOG, CAT], **more)


def nested(middle: object, says: str) -> Case:
    first, last = (json.dumps({"translation": {"de": de, "en": en}}) for de, en in (DOG, CAT))
    raw = f"{first}\n{json.dumps({'translation': middle})}\n{last}\n".encode()
    return Case({"bad.jsonl": raw}, ":2", says, [DOG, CAT], columns=Columns("de", "en"))


def none(files: dict[str, bytes | None], says: str, columns: Columns = Columns()) -> Case:
    """Files of which nothing can be used, for a reason that is in no line."""
    return Case(files, "", says, columns=columns)


CASES = {
    # Two files.
    "a source too many": source(
        DE + b"x\n", ":3", r"no matching line: .*bad\.de has 3 lines, .*a\.en has 2; need eq"
    ),
    "a target too many": target(EN + b"x\n", ":3", r"a\.de has 2 lines, .*bad\.en has 3;"),
    "a blank line too many": target(EN + b"\n", ":3", r"a\.de has 2 lines, .*bad\.en has 3;"),
    "nothing on one side": Case(
        {"a.de": b"", "bad.en": EN}, ":1", r"a\.de has 0 lines, .*bad\.en has 2;"
    ),
    "an old Mac's lines": Case(
        {"bad.de": DE, "a.en": EN.replace(b"\n", b"\r")}, ":2",
        r"bad\.de has 2 lines, .*a\.en has 1; need equally many",
    ),
    "an empty source": source(
        b"\neine Katze\n", ":1", "source is empty; need a sentence on both sides. Fill", [CAT]
    ),
    "an empty target": target(b"a dog\n\n", ":2", "the target is empty; need a sent", [DOG]),
    "a target of spaces": target(b"a dog\n \t\n", ":2", "the target is empty", [DOG]),
    "a target of spaces no keyboard has": target(
        "\u3000\u00a0\na cat\n".encode(), ":1", "the target is empty", [CAT]
    ),
    "invalid UTF-8": source(b"ein\xff\neine Katze\n", ":1", r"byte 3 .*UTF-8 \(0xff\)", [CAT]),
    "invalid UTF-8 on the other side": target(
        b"a dog\na c\xc3", ":2", r"byte 9 of the file is not UTF-8 \(0xc3\)", [DOG]
    ),
    "Latin-1": source("ein Hund\nein Käfer\n".encode("latin-1"), ":2", "iconv -f LATIN1", [DOG]),
    "UTF-16": source(
        "ein Hund".encode("utf-16") + b"\neine Katze\n", ":1", "iconv -f UTF-16", [CAT]
    ),
    "not packed at all": Case(
        {"bad.de.gz": DE, "a.en": EN}, ":1", "[Nn]ot a gzipped file.*Download it again", []
    ),
    "cut off": Case(
        {"bad.de.gz": gzip.compress(b"ein Hund\n" * 2 + LINES)[:20], "a.en": EN}, ":1",
        "truncated or damaged. Download it again", [],
    ),
    # Tables.
    "too few columns": tsv(
        "de\ten\nein Hund\ta dog\nx\n", ":3", "2 columns and this row 1; need equal", [DOG]
    ),
    "a tab in a sentence": tsv(
        "de\ten\na\tb\tc\nein Hund\ta dog\n", ":2", "2 columns and this row 3; need equal", [DOG]
    ),
    "an empty cell": tsv("de\ten\nein Hund\t\n", ":2", "the target is empty; need a sentence", []),
    "an empty first cell": tsv("de\ten\n \tx\n", ":2", "the source is empty; need a sentence", []),
    "not UTF-8 in a table": Case(
        {"bad.tsv": b"de\ten\nein\xff\tx\nein Hund\ta dog\n"}, ":2", "not UTF-8", [DOG]
    ),
    "a quote never closed": Case(
        {"bad.csv": b'de,en\nein Hund,a dog\n"x,y\n'}, ":3", "mark is unmatched", [DOG]
    ),
    "a column twice": tsv("de\tde\na\tb\n", ":1", "'de' occurs twice. Rename"),
    "one column": tsv("source\na\n", "", "which of the columns source are .*; need one of"),
    "three columns of any names": tsv(
        "de\ten\tfr\na\tb\tc\n", "", "which of the columns de, en, fr .*with --text and --second"
    ),
    "a column misspelled": tsv(
        "source\ttarget\na\tb\n", "", "'sorce'; did you mean 'source'.* Choose one with --text",
        columns=Columns("sorce"),
    ),
    "a column that is not there": tsv(
        "de\ten\na\tb\n", "", r"unknown column '3'.* columns are de, en\. Choose one with --second",
        columns=Columns("de", "3"),
    ),
    "one column for both": tsv("de\ten\na\tb\n", "", "need one of", columns=Columns("de", "de")),
    "an empty table": tsv("", "", "file is empty; need a header and a row"),
    "no object": none({"bad.jsonl": b"\n"}, "contains no rows; need at least one"),
    "no row": none({"bad.parquet": parquet(de=[], en=[])}, "contains no rows; need at least one"),
    "no parquet": none({"bad.parquet": b"plain text\n"}, "not a readable parquet file"),
    "numbers in parquet": Case(
        {"bad.parquet": parquet(de=["a"], en=[7])}, ": row 1", "'en' is 7; need text", []
    ),
    # Objects.
    "bad JSON": jsonl("{oops", "not valid JSON"),
    "no object but a list": jsonl('["a", "b"]', "a list"),
    "a key twice": jsonl('{"source": "a", "source": "b", "target": "c"}', "given twice"),
    "a side that is missing": jsonl('{"source": "a"}', "unknown column 'target'.* --second"),
    "a side that is misspelled": jsonl(
        '{"source": "a", "traget": "b"}', "unknown column 'target'; did you mean 'traget'"
    ),
    "a side that is a number": jsonl('{"source": "a", "target": 7}', "'target' is 7; need a str"),
    "a side that is null": jsonl('{"source": null, "target": "b"}', "'source' is None; need a"),
    "a side that is empty": jsonl('{"source": "", "target": "b"}', "the source is empty; need a"),
    "half a character": jsonl(r'{"source": "a", "target": "\ud800"}', "half a surrogate pair"),
    "nested too deep": jsonl('{"source": ' + "[" * 100_000, "nested too deep"),
    "a translation that is a text": nested("a", "translation is 'a'; need an object with 'de'"),
    "a translation without a language": nested({"de": "a"}, "'a'}; need an object with 'en'"),
    "a translation of a number": nested({"de": "a", "en": 7}, "'en' is 7; need a string"),
    "a language that is not there": Case(
        {"bad.jsonl": b'{"translation": {"de": "a", "en": "b"}}\n'}, "",
        r"unknown column 'fr'.* The columns are de, en\. Choose one with --second",
        columns=Columns("de", "fr"),
    ),
    # What was given.
    "a file alone": none({"bad.de": DE}, "one file of plain text; need two files .* or one table"),
    "a table and a file": none(
        {"a.de": DE, "bad.tsv": b"a\tb\n"}, "a table and another file; need .*Give the table alone"
    ),
    "a folder": none({"bad": None, "a.en": EN}, "is a folder; need a file"),
    "columns of plain text": none(
        {"bad.de": DE, "a.en": EN}, "no columns, so there is no 'de'. Omit --text",
        Columns("de"),
    ),
    "a label": none(
        {"bad.tsv": b"de\ten\na\tb\n"}, "no label column, so there is no 'x'. Omit --label",
        Columns(label="x"),
    ),
}  # fmt: skip


class Collector(ErrorPolicy):
    """Writes down what is bad, and reads on."""

    def __init__(self):
        self.faults, self.blanks = [], 0

    def bad(self, error, raw):
        self.faults.append(str(error))

    def blank(self):
        self.blanks += 1


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """The files of a case, the one that is bad, and the case itself."""
    found = CASES[request.param]
    for name, raw in found.files.items():
        if raw is None:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_bytes(raw)
    paths = [tmp_path / name for name in found.files]
    return paths, next(path for path in paths if path.name.startswith("bad")), found


def check(message: str, path: Path, place: str, says: str) -> None:
    """It begins with the place, gives the reason, and says what to do in one short line."""
    assert re.match(f"{re.escape(str(path))}{place}: ", message), message
    assert re.search(says, message), message
    assert re.search(WHAT_TO_DO, message), message
    assert "\n" not in message
    assert len(message) < 300 + 3 * len(str(path))


def test_there_are_enough_of_them():
    assert len(CASES) >= 50


def test_bad_files_are_refused_where_they_are_bad(case):
    paths, bad, found = case
    with pytest.raises(DataError) as error:
        list(read_pairs(paths, found.columns))
    check(str(error.value), bad, found.place, found.says)


def test_what_is_good_is_used_and_what_is_not_is_told(case):
    paths, bad, found = case
    watcher = Collector()
    if found.used is None:
        with pytest.raises(DataError) as error:
            list(read_pairs(paths, found.columns, watcher))
        check(str(error.value), bad, found.place, found.says)
        return
    pairs = [(pair.source, pair.target) for pair in read_pairs(paths, found.columns, watcher)]
    assert pairs == found.used
    assert len(watcher.faults) == 1
    check(watcher.faults[0], bad, found.place, found.says)
    assert watcher.blanks == 0


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ([], r"^no path: 0 files; need two files of plain text, or one table .* Concatenate the"),
        (["a.de", "a.en", "b.en"], r"^a\.de, a\.en, b\.en: 3 files; need two files of plain text"),
        (["none.de", "none.en"], r"^none\.de: no such file\. Check the path\."),
        (["-", "-"], r"^-: given for both sides; need two different files\. Give the other one\."),
        (["-"], r"^-: one file of plain text; need two files .* Give the other file too\."),
    ],
)
def test_paths_that_make_no_pair_are_refused_before_anything_is_read(paths, says):
    with pytest.raises(DataError, match=says):
        read_pairs(paths, Columns())
