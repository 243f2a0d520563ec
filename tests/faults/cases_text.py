"""Text files that are bad, or only look so, and paths that lead nowhere."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.data.read.test_texts import parquet, zstd

LONG_LINES = [f"the cat {i} sat {i * i * 7919} on {i * i * i} mat" for i in range(20_000)]
PLAIN = "".join(line + "\n" for line in LONG_LINES).encode()
RECORDS = "".join(json.dumps({"text": line}) + "\n" for line in LONG_LINES).encode()


@dataclass(frozen=True)
class Case:
    """A bad file: its name and bytes, the place and reason of the error, what can be used of it.

    `bad` counts the records that cannot; None says that nobody can know.
    """

    name: str
    raw: bytes
    place: str
    says: str
    used: list[str] | None = None  # None: a beginning of LONG_LINES
    bad: int | None = 1
    blank: int = 0


def jsonl(middle: str, says: str, **more) -> Case:
    """An object that is bad between two that are good."""
    raw = f'{{"text": "the cat"}}\n{middle}\n{{"text": "a dog"}}\n'.encode("utf-8", "surrogatepass")
    return Case("bad.jsonl", raw, ":2", says, ["the cat", "a dog"], **more)


def text(middle: bytes, says: str) -> Case:
    """A line that is bad between two that are good."""
    return Case("bad.txt", b"the cat\n" + middle + b"\na dog\n", ":2", says, ["the cat", "a dog"])


BAD = {
    # Bytes that are no UTF-8.
    "lone continuation byte": text(b"the \x80 cat", r"byte 12 of the file is not UTF-8 \(0x80\)"),
    "lone start byte": text(b"the \xc3 cat", r"byte 12 .* \(0xc3\)"),
    "overlong slash": text(b"\xc0\xaf", r"byte 8 .* \(0xc0\)"),
    "overlong NUL": text(b"ab\xe0\x80\x80", r"byte 10 .* \(0xe0\)"),
    "half a surrogate pair in bytes": text(b"\xed\xa0\x80", r"byte 8 .* \(0xed\)"),
    "a surrogate pair in bytes": text(b"\xed\xa0\xbd\xed\xb8\x80", r"byte 8 .* \(0xed\)"),
    "above U+10FFFF": text(b"\xf4\x90\x80\x80", r"byte 8 .* \(0xf4\)"),
    "five bytes for a character": text(b"\xf8\x88\x80\x80\x80", r"byte 8 .* \(0xf8\)"),
    "0xfe and 0xff": text(b"\xfe\xff", r"byte 8 .* \(0xfe\).* UTF-16"),
    "Latin-1": text("le café".encode("latin-1"), r"byte 14 .* iconv -f LATIN1 -t UTF-8"),
    "GB18030": text("我爱你，天下大势".encode("gb18030"), "iconv -f GB18030 -t UTF-8"),
    "cut off in a character at the end": Case(
        "bad.txt", b"the cat\na dog\ncaf\xc3", ":3", r"byte 17 .*\(0xc3\)", ["the cat", "a dog"]
    ),
    "UTF-16, little end first": Case(
        "bad.txt", "\ufeffthe cat".encode("utf-16-le"), ":1", "byte 0 .* UTF-16", [], bad=None
    ),
    "UTF-16, big end first": Case(
        "bad.txt", "\ufeffthe cat".encode("utf-16-be"), ":1", "byte 0 .* UTF-16", [], bad=None
    ),
    "invalid UTF-8 after a byte-order mark": Case(
        "bad.txt", b"\xef\xbb\xbfab\xff\na dog\n", ":1", r"byte 5 .*\(0xff\)", ["a dog"]
    ),
    "invalid UTF-8 in JSON": Case(
        "bad.jsonl", b'{"text": "a dog"}\n{"text": "\xff"}\n', ":2", "not UTF-8", ["a dog"]
    ),
    "invalid UTF-8 in a table": Case(
        "bad.csv", b"text\nthe cat\nab\xffc\na dog\n", ":3", "UTF-8", ["the cat", "a dog"]
    ),
    "invalid UTF-8 in a packed file": Case(
        "bad.txt.gz", gzip.compress(b"a dog\n\xff\n"), ":2", r"byte 6 .*\(0xff\)", ["a dog"]
    ),
    # Files with nothing in them.
    "empty": Case("bad.txt", b"", "", "contains no text; need at least one document", []),
    "only blank lines": Case("bad.txt", b"\n \n\t\r\n", "", "contains no text", []),
    "a million empty lines": Case("bad.txt", b"\n" * 10**6, "", "contains no text", []),
    "only a byte-order mark": Case("bad.txt", b"\xef\xbb\xbf", "", "contains no text", []),
    "only blank records": Case(
        "bad.jsonl", b'{"text": ""}\n{"text": " "}\n', "", "contains no text", [], blank=2
    ),
    "empty .gz": Case("bad.txt.gz", gzip.compress(b""), "", "contains no text", []),
    "only a header": Case("bad.csv", b"id,text\n", "", "contains no text", []),
    # Packed files that are damaged.
    "cut off .gz": Case(
        "bad.txt.gz", gzip.compress(PLAIN)[:90_000], r":\d+", "truncated or damaged", bad=1
    ),
    "cut off .jsonl.gz": Case(
        "bad.jsonl.gz", gzip.compress(RECORDS)[:90_000], r":\d+", "truncated or damaged", bad=1
    ),
    "damaged .gz": Case(
        "bad.txt.gz", gzip.compress(PLAIN)[:10] + b"\xff" * 99, ":1", "damaged", [], bad=None
    ),
    "bytes after the end of .gz": Case(
        "bad.txt.gz", gzip.compress(b"a dog\n") + b"rest", r":\d+", "damaged", ["a dog"]
    ),
    "cut off .zst": Case("bad.txt.zst", zstd(PLAIN)[:150_000], r":\d+", "truncated or damaged"),
    "cut off .jsonl.zst": Case(
        "bad.jsonl.zst", zstd(RECORDS)[:150_000], r":\d+", "truncated or damaged"
    ),
    "not .gz at all": Case("bad.txt.gz", b"the cat\n", ":1", "gzipped file", [], bad=None),
    "not .zst at all": Case("bad.txt.zst", b"the cat, the dog\n", ":1", "damaged", [], bad=None),
    # JSON.
    "JSON without a value": jsonl('{"text": }', r"not valid JSON: .* \(column 10\)"),
    "JSON that is cut off": jsonl('{"text": "the c', "not valid JSON: Unterminated string"),
    "JSON in single quotes": jsonl("{'text': 'the cat'}", "not valid JSON: .*double quotes"),
    "two objects in a line": jsonl('{"text": "a"} {"text": "b"}', "not valid JSON: Extra data"),
    "plain text": jsonl("the cat sat on the mat", r"not valid JSON: .* \(column 1\)"),
    "a line break in JSON": jsonl('{"text": "the\ncat"}', "not valid JSON", bad=2),
    "a control character in JSON": jsonl('{"text": "the\x01cat"}', "not valid JSON: .*control"),
    "a list": jsonl('["the cat"]', "a list; need a JSON object"),
    "a text alone": jsonl('"the cat"', "a str; need a JSON object"),
    "null alone": jsonl("null", "a NoneType; need a JSON object"),
    "no such key": jsonl('{"txet": "a"}', "unknown column 'text'; did you mean 'txet'"),
    "no key at all": jsonl("{}", "unknown column 'text'"),
    "a number": jsonl('{"text": 7}', "'text' is 7; need a string in quotes"),
    "null": jsonl('{"text": null}', "'text' is None; need a string in quotes"),
    "a list of texts": jsonl('{"text": ["the", "cat"]}', r"'text' is \['the', 'cat'\]; need a"),
    "a key given twice": jsonl('{"text": "a", "text": "b"}', "the key 'text' is given twice"),
    "NaN": jsonl('{"text": "a", "score": NaN}', "NaN is not a JSON number"),
    "a number of 5,000 digits": jsonl(f'{{"text": {"9" * 5000}}}', "5000 digits"),
    "nested too deep": jsonl('{"text": ' + "[" * 99_999 + "]" * 99_999 + "}", "nested too deep"),
    # Tables.
    "too many columns": Case(
        "bad.csv",
        b"id,text\n1,the cat\n2,a,b\n3,a dog\n",
        ":3",
        "the header has 2 columns and this row 3; need equally many",
        ["the cat", "a dog"],
    ),
    "too few columns": Case(
        "bad.csv", b"id,text\n1,the cat\n2\n3,a dog\n", ":3", "row 1", ["the cat", "a dog"]
    ),
    "too many columns in .tsv": Case(
        "bad.tsv", b"id\ttext\n1\ta\tb\n2\ta dog\n", ":2", "2 columns .* 3", ["a dog"]
    ),
    "a quote that is never closed": Case(
        "bad.csv", b'text\nthe cat\n"a\ndog\n', ":4", "a quotation mark is unmatched", ["the cat"]
    ),
    "a letter after a quote": Case(
        "bad.csv", b'text\nthe cat\n"a" dog\n', ":3", "or misplaced", ["the cat"]
    ),
    "cut off .csv.gz": Case(
        "bad.csv.gz",
        gzip.compress(b"text\n" + PLAIN)[:90_000],
        r":\d+",
        "truncated or damaged",
        bad=None,
    ),
    "not .parquet at all": Case(
        "bad.parquet", b"the cat\n", "", "not a readable parquet file", [], bad=None
    ),
    "cut off .parquet": Case(
        "bad.parquet", parquet(text=["the cat"])[:-20], "", "parquet file", [], bad=None
    ),
    "numbers in .parquet": Case(
        "bad.parquet", parquet(text=[7, None, 8]), ": row 1", "'text' is 7", [], bad=None, blank=1
    ),
}

# Texts that look odd and are good: the name, the bytes, and the sentences as they are understood.
ODD = {
    "a byte-order mark": ("a.txt", b"\xef\xbb\xbfthe cat\n", ["the cat"]),
    "a byte-order mark before JSON": ("a.jsonl", b'\xef\xbb\xbf{"text": "a dog"}\n', ["a dog"]),
    "a byte-order mark before a header": ("a.csv", b"\xef\xbb\xbftext\na dog\n", ["a dog"]),
    "lines of Windows": ("a.txt", b"the cat\r\na dog\r\n", ["the cat", "a dog"]),
    "lines of Windows in a table": ("a.csv", b"id,text\r\n1,a dog\r\n", ["a dog"]),
    "a table in quotes": ("a.csv", b'"id","text"\n1,"the ""cat"""\n', ['the "cat"']),
    "CR alone, which is a space": ("a.txt", b"the cat\ra dog\n", ["the cat a dog"]),
    "U+2028, which ends no line": ("a.txt", "the cat\u2028a dog\n".encode(), ["the cat a dog"]),
    "U+0085, which ends no line": ("a.txt", "the cat\x85a dog\n".encode(), ["the cata dog"]),
    "NUL, which BERT drops": ("a.txt", b"the c\0at\n", ["the cat"]),
    "control characters, which BERT drops": ("a.txt", b"the \x1b[1mc\x07at", ["the [1mcat"]),
    "no newline at the end": ("a.txt", b"the cat\na dog", ["the cat", "a dog"]),
    "a million empty lines between": (
        "a.txt",
        b"the cat\n" + b"\n" * 10**6 + b"a dog\n",
        ["the cat", "a dog"],
    ),
    "half a surrogate pair in JSON": ("a.jsonl", b'{"text": "a \\ud800dog"}\n', ["a dog"]),
    "a whole surrogate pair in JSON": ("a.jsonl", b'{"text": "\\ud83d\\ude00"}\n', ["\U0001f600"]),
    "two .gz in one": ("a.txt.gz", gzip.compress(b"a dog\n") * 2, ["a dog", "a dog"]),
    "quotes in .tsv, which are text": ("a.tsv", b'id\ttext\n1\t"a dog\n', ['"a dog']),
}

# What is wrong with the path, or with how the file is asked for: refused, skip or not.
PATHS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": ("a.txt", lambda path: None, "no such file. Check the path"),
    "a folder": ("a.txt", Path.mkdir, "is a folder; need a file. List its files"),
    "a link to itself": ("a.txt", lambda path: path.symlink_to(path), "no such file"),
    "a link to nothing": ("a.txt", lambda path: path.symlink_to("b.txt"), "no such file"),
    "an unknown ending": ("a.jsnl", Path.touch, "unknown format '.jsnl'; did you mean '.jsonl'?"),
    "an unknown ending, packed": ("a.pdf.gz", Path.touch, "unknown format '.pdf'"),
    "no such column": (
        "a.csv",
        lambda path: path.write_text("id,body\n1,one\n"),
        "unknown column 'text'; there is none of that name. The columns are body, id. Choose",
    ),
    "no such column in .tsv": (
        "a.tsv",
        lambda path: path.write_text("id\tbody\n1\tone\n"),
        "unknown column 'text'",
    ),
    "no such column in .parquet": (
        "a.parquet",
        lambda path: path.write_bytes(parquet(a=["x"], b=["y"])),
        "unknown column 'text'; there is none of that name. The columns are a, b.",
    ),
    "a column given twice": (
        "a.csv",
        lambda path: path.write_text("text,text\none,two\n"),
        "the column 'text' occurs twice. Rename one of them",
    ),
}
