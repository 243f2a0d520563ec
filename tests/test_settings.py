"""JSON from strangers: bounded, strict, and with the place of the fault."""

import pytest

from unmask.errors import FolderError
from unmask.settings import parse_json, read_json


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": 1, "a": 2}', "the key 'a' is given twice"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": Infinity}', "Infinity is not a JSON number"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"\xff{}", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "a list; need a JSON object"),
    ],
    ids=["twice", "nan", "infinity", "deep", "digits", "bytes", "cut", "list"],
)
def test_what_pythons_parser_lets_pass_is_refused(raw, message):
    with pytest.raises(FolderError, match=f"x.json: .*{message}"):
        parse_json(raw, where="x.json")


def test_a_file_above_the_limit_is_not_read(tmp_path):
    path = tmp_path / "c.json"
    path.write_text("{" + " " * 100 + "}")
    with pytest.raises(FolderError, match="over 50 bytes"):
        read_json(path, limit=50)
