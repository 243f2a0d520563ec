"""vocab.txt: one token per line, nothing guessed, nothing dropped."""

import pytest

from unmask.system.errors import DataError
from unmask.text.vocabulary import SPECIALS, Vocabulary


def write(path, text: str | bytes):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_line_number_is_the_id(tmp_path):
    vocabulary = Vocabulary.read(
        write(tmp_path / "vocab.txt", "\n".join([*SPECIALS, "cat"]) + "\n")
    )
    assert vocabulary.ids["cat"] == 5
    assert (vocabulary.pad, vocabulary.unknown, vocabulary.cls) == (0, 1, 2)


def test_reading_what_was_written_gives_the_same_tokens(tmp_path):
    one = Vocabulary([*SPECIALS, "\u2028", "\x85", "é", "##s"])
    path = write(tmp_path / "vocab.txt", one.text())
    assert Vocabulary.read(path) == one


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_a_token(tmp_path):
    text = b"\xef\xbb\xbf" + "\r\n".join([*SPECIALS, "cat"]).encode() + b"\r\n"
    assert Vocabulary.read(write(tmp_path / "vocab.txt", text)).tokens == (*SPECIALS, "cat")


def test_one_blank_line_inside_keeps_the_ids_below_it(tmp_path):
    path = write(tmp_path / "vocab.txt", "\n".join([*SPECIALS, "", "cat"]) + "\n")
    assert Vocabulary.read(path).ids["cat"] == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[PAD]\n[CLS]\n[SEP]\n[MASK]\ncat\n", r"no \[UNK\] among 5 tokens"),
        ("\n".join([*SPECIALS, "cat", "dog", "cat"]), r":8: the token 'cat' is already on line 6"),
        ("\n".join([*SPECIALS, "", "cat", "", "x"]), r":8: a blank line is already on line 6"),
        ("\n".join(SPECIALS) + "\n\n", r":6: a blank line at the end"),
        ("", r":1: a blank line at the end"),
        (b"[PAD]\n[UNK]\n\xff\xfe\n", r":3: byte 12 is not UTF-8 \(0xff\)"),
    ],
)
def test_a_faulty_vocabulary_is_refused_with_its_line(tmp_path, text, message):
    path = write(tmp_path / "vocab.txt", text)
    with pytest.raises(DataError, match=message) as caught:
        Vocabulary.read(path)
    assert str(path) in str(caught.value)
