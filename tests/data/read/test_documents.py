"""Documents: what belongs together in each form of file, cut where it is too long, nothing lost."""

import gzip
import json
from pathlib import Path

import pytest

from tests.data.read.test_texts import parquet, written
from unmask.data.read import documents
from unmask.data.read.documents import Document, SkipPolicy, read_documents
from unmask.system.errors import DataError

BLOCKS = "blank lines separate documents; each line is a sentence"
PARAGRAPHS = "blank lines separate documents; each line is split into sentences"
LINES = "each line is a document, split into sentences"
RECORDS = "each record is a document, split into sentences"

# What is in a .txt, the sentences of its documents, and what is reported about the file.
LAYOUTS = {
    "a sentence a line, a blank line between documents": (
        "The cat.\nA dog.\n\nThe mat.\n",
        [["The cat.", "A dog."], ["The mat."]],
        BLOCKS,
    ),
    "a paragraph a line, a blank line between documents": (
        "The cat sat. A dog ran.\nIt sat.\n\nA mat. A hat.\n",
        [["The cat sat.", "A dog ran.", "It sat."], ["A mat.", "A hat."]],
        PARAGRAPHS,
    ),
    "a paragraph a line, a blank line between paragraphs": (
        "The cat sat. A dog ran.\n\nA mat. A hat.\n",
        [["The cat sat.", "A dog ran."], ["A mat.", "A hat."]],
        PARAGRAPHS,
    ),
    "a document a line": (
        "The cat sat. A dog ran.\nA mat. A hat.\n",
        [["The cat sat.", "A dog ran."], ["A mat.", "A hat."]],
        LINES,
    ),
    "a sentence a line and no blank line": (
        "The cat sat.\nA dog ran.\n",
        [["The cat sat."], ["A dog ran."]],
        LINES,
    ),
    "a line": ("The cat sat.", [["The cat sat."]], LINES),
    "blank lines at both ends, which part nothing": (
        "\n\nThe cat.\nA dog.\n\n",
        [["The cat."], ["A dog."]],
        LINES,
    ),
    "lines of spaces and of Windows, which are blank": (
        "The cat.\r\n \t\r\n\r\nA dog.\r\n",
        [["The cat."], ["A dog."]],
        BLOCKS,
    ),
    "several blank lines, which part as one does": (
        "The cat.\n\n\n\nA dog.\nThe mat.\n",
        [["The cat."], ["A dog.", "The mat."]],
        BLOCKS,
    ),
    "Chinese, a paragraph a line": (
        "猫坐着。狗跑了。\n\n天下大势。\n",
        [["猫坐着。", "狗跑了。"], ["天下大势。"]],
        PARAGRAPHS,
    ),
}


@pytest.fixture
def read(tmp_path):
    """The documents of a file of these contents, and who watched over its reading."""

    def run(contents: str | bytes, name: str = "a.txt", *, skip: bool = False, **options):
        raw = contents.encode() if isinstance(contents, str) else contents
        path = written(tmp_path, name, raw)
        watcher = SkipPolicy(skip=skip)
        return list(read_documents([str(path)], watcher, **options)), watcher

    return run


def sentences(found: list[Document]) -> list[list[str]]:
    return [list(document.sentences()) for document in found]


def layout(watcher: SkipPolicy) -> str:
    (told,) = watcher.files.values()
    return told


@pytest.mark.parametrize("form", LAYOUTS)
def test_the_layout_of_plain_text_is_inferred_and_told(read, form):
    contents, expected, told = LAYOUTS[form]
    found, watcher = read(contents)
    assert sentences(found) == expected
    assert layout(watcher) == told


@pytest.mark.parametrize("form", LAYOUTS)
def test_every_line_that_is_not_blank_belongs_to_one_document(read, form):
    contents, _, _ = LAYOUTS[form]
    found, _ = read(contents)
    lines = [line for line in contents.split("\n") if line.strip()]
    assert sum(document.records for document in found) == len(lines)


@pytest.mark.parametrize(("several", "split"), [(1, False), (2, True), (3, True)])
def test_lines_hold_several_sentences_if_there_are_three_for_two_lines(read, several, split):
    lines = ["It sat. It ran."] * several + ["It sat."] * (4 - several)  # 5, 6 or 7 in 4 lines
    found, _ = read("\n\n".join(lines))
    assert {document.split for document in found} == {split}


def test_a_blank_line_below_the_sample_ends_documents_too(read, monkeypatch):
    contents = "The cat sat. It ran.\nA dog sat. It ran.\n\nA mat.\n"
    assert layout(read(contents)[1]) == PARAGRAPHS
    monkeypatch.setattr(documents, "SAMPLE", 2)
    assert layout(read(contents)[1]) == PARAGRAPHS
    assert layout(read(contents.replace("\n\n", "\n"))[1]) == LINES


def test_lines_may_be_declared_sentences_whatever_is_in_them(read):
    found, watcher = read("The cat sat. A dog ran.\nA mat. A hat.\n", lines="sentences")
    assert sentences(found) == [["The cat sat. A dog ran.", "A mat. A hat."]]
    assert layout(watcher) == BLOCKS


def test_lines_may_be_declared_documents_whatever_is_between_them(read):
    found, watcher = read("The cat.\nA dog.\n\nThe mat.\n", lines="documents")
    assert sentences(found) == [["The cat."], ["A dog."], ["The mat."]]
    assert layout(watcher) == LINES


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("a.jsonl", b'{"text": "The cat sat. It ran."}\n{"text": "A\\ndog"}\n'),
        ("a.csv", b'id,text\n1,The cat sat. It ran.\n2,"A\ndog"\n'),
        ("a.parquet", parquet(text=["The cat sat. It ran.", "A\ndog"])),
    ],
)
@pytest.mark.parametrize("lines", ["auto", "sentences", "documents"])
def test_a_record_is_a_document_whose_line_breaks_end_sentences(read, name, contents, lines):
    found, watcher = read(contents, name, lines=lines)
    assert sentences(found) == [["The cat sat.", "It ran."], ["A", "dog"]]
    assert [document.records for document in found] == [1, 1]
    assert layout(watcher) == RECORDS


def test_a_table_has_its_text_in_the_column_that_is_named(read):
    found, _ = read("text\tbody\nno\tyes\n", "a.tsv", column="body")
    assert sentences(found) == [["yes"]]


def test_plain_text_has_no_column(read):
    with pytest.raises(DataError, match=r"a\.txt: plain text has no column 'body'"):
        read("one\n", column="body")


def test_records_without_text_are_counted_as_blank(read):
    found, watcher = read('{"text": " "}\n{"text": "one"}\n{"text": ""}\n\n', "a.jsonl")
    assert (len(found), watcher.blanks) == (1, 2)


def test_files_are_read_one_after_the_other_and_no_document_spans_two(tmp_path):
    one = written(tmp_path, "one.txt", b"The cat.\n\nA dog.\n")
    two = written(tmp_path, "two.jsonl", b'{"text": "A mat."}\n')
    watcher = SkipPolicy()
    found = list(read_documents([str(one), str(two), str(one)], watcher))
    assert sentences(found) == [["The cat."], ["A dog."], ["A mat."], ["The cat."], ["A dog."]]
    assert watcher.files == {str(one): BLOCKS, str(two): RECORDS}


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("one two three", ["one two", " three"]),
        ("one\ntwo three", ["one", "\ntwo three"]),  # a line break rather than a space
        ("onetwothreefour", ["onetwothre", "efour"]),
        ("one two three four five", ["one two", " three", " four five"]),
        ("exactly 10", ["exactly 10"]),
    ],
)
def test_a_document_that_is_too_long_is_cut_between_words_and_nothing_is_lost(
    read, monkeypatch, text, pieces
):
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 10)
    found, _ = read(json.dumps({"text": text}) + "\n", "a.jsonl")
    assert [document.text for document in found] == pieces
    assert "".join(document.text for document in found) == text
    assert sum(document.records for document in found) == 1


def test_a_block_of_lines_that_is_too_long_is_cut_between_lines(read, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 10)
    found, _ = read("1234567.\n1234567.\n1234567.\n\nlast.\n", lines="sentences")
    assert sum(map(len, sentences(found))) == 4
    assert [line for lines in sentences(found) for line in lines] == [*["1234567."] * 3, "last."]
    assert max(len(document.text) for document in found) <= 10
    assert sum(document.records for document in found) == 4


def test_a_book_in_one_line_comes_in_documents_of_bounded_length(read, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 1000)
    book = "The cat sat on the mat. " * 500
    found, _ = read(book)
    assert max(len(document.text) for document in found) <= 1000
    assert "".join(document.text for document in found) == book


def test_what_is_bad_stops_reading_and_says_how_to_go_on(read):
    with pytest.raises(DataError, match=r"a\.txt:2: .* not UTF-8.*\. Or skip such records "):
        read(b"one\nt\xffo\nthree\n")


def test_what_is_bad_may_be_left_out_and_is_written_down(read):
    found, watcher = read(b"one\nt\xffo\nthree\n", skip=True)
    assert sentences(found) == [["one"], ["three"]]
    (entry,) = map(json.loads, watcher.lines())
    assert entry["why"].partition(": ")[0].endswith("a.txt:2")
    assert entry["text"] == "t\\xffo\n"


def test_what_is_written_down_of_a_bad_record_is_bounded(read):
    _, watcher = read("one\n" + '{"text": 7} ' * 9999, "a.jsonl", skip=True)
    lengths = [len(json.loads(line)["text"]) for line in watcher.lines()]
    assert lengths[:2] == [3, 10_000]


def test_a_line_that_is_too_long_is_left_out_and_the_next_is_read(tmp_path):
    path = written(tmp_path, "a.txt", b"one\n" + b"x" * 100 + b"\ntwo\n")
    watcher = SkipPolicy(skip=True, longest=10)
    assert sentences(list(read_documents([str(path)], watcher))) == [["one"], ["two"]]
    (entry,) = map(json.loads, watcher.lines())
    assert ":2: the line has 101 bytes; need at most 10" in entry["why"]


@pytest.mark.parametrize("contents", ["", "\n \n\t\n"])
def test_a_file_without_text_is_bad(read, contents):
    with pytest.raises(
        DataError, match=r"a\.txt: contains no text; need at least one document\. Or"
    ):
        read(contents)
    found, watcher = read(contents, skip=True)
    assert (found, watcher.skipped) == ([], 1)


def test_the_position_rises_to_the_size_of_the_files_as_they_lie_on_disk(tmp_path):
    lines = [f"line {i} of a text that packs badly {i * i * 7919}." for i in range(20_000)]
    raw = "\n".join(lines).encode()
    paths = [
        written(tmp_path, "a.txt", raw),
        written(tmp_path, "b.txt.gz", gzip.compress(raw)),
    ]
    watcher, seen = SkipPolicy(), [0]
    for _ in read_documents(map(str, paths), watcher):
        seen.append(watcher.position)
    total = sum(Path(path).stat().st_size for path in paths)
    assert seen == sorted(seen)
    assert 0 < seen[len(seen) // 4] < total / 2 < seen[-2] <= total
    assert watcher.position == total
