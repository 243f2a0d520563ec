"""Tokenizer files: Hugging Face's layout, read without trusting it."""

import json

import pytest

from unmask.system.errors import FolderError
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.text.tokenizer_files import read_tokenizer, tokenizer_files


def write(folder, tokenizer, *, leave_out=()):
    for name, text in tokenizer_files(tokenizer, max_length=32).items():
        if name not in leave_out:
            (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("left_out", [(), ("tokenizer.json",), ("vocab.txt",)])
@pytest.mark.parametrize("casing", [Casing(), Casing(False), Casing(True, False, False)])
def test_any_of_the_files_gives_back_the_same_tokenizer(tmp_path, vocabulary, casing, left_out):
    write(tmp_path, Tokenizer(vocabulary, casing), leave_out=left_out)
    read = read_tokenizer(tmp_path)
    assert (read.vocabulary, read.casing) == (vocabulary, casing)


def test_padding_and_truncation_in_the_file_are_not_ours(tmp_path, tokenizer):
    write(tmp_path, tokenizer, leave_out=["vocab.txt"])
    path = tmp_path / "tokenizer.json"
    table = json.loads(path.read_text())
    table["padding"] = {"strategy": {"Fixed": 128}, "pad_id": 0, "pad_token": "[PAD]"}
    table["truncation"] = {"max_length": 2}
    path.write_text(json.dumps(table))
    assert len(read_tokenizer(tmp_path).encode("the cat sat")) == 5


def test_two_files_that_disagree_are_refused_with_the_first_difference(tmp_path, tokenizer):
    write(tmp_path, tokenizer)
    path = tmp_path / "vocab.txt"
    path.write_text(path.read_text().replace("cat", "cow"))
    with pytest.raises(FolderError, match="id 7 is 'cow' in vocab.txt and 'cat' in tokenizer.json"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("model", {"type": "BPE", "vocab": {}, "merges": []}, "its model is 'BPE'"),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}}, "is 'Replace'"),
        ("normalizer", None, "its normalizer is None"),
        ("pre_tokenizer", {"type": "Whitespace"}, "its pre_tokenizer is 'Whitespace'"),
        (
            "added_tokens",
            [{"id": 5, "content": "foo-bar"}],
            "added token 'foo-bar' is not one of",
        ),
        ("normalizer", {"type": "BertNormalizer", "clean_text": False}, "clean_text is False"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(tmp_path, tokenizer, part, value, message):
    write(tmp_path, tokenizer, leave_out=["vocab.txt"])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: value}))
    with pytest.raises(FolderError, match=message):
        read_tokenizer(tmp_path)


def test_a_folder_without_a_vocabulary_says_so(tmp_path):
    with pytest.raises(FolderError, match=r"neither vocab.txt nor tokenizer.json"):
        read_tokenizer(tmp_path)
    with pytest.raises(FolderError, match="no such folder"):
        read_tokenizer(tmp_path / "absent")
