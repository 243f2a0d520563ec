"""Vocabulary folders: learned, written whole, read with their digests checked."""

import json

import pytest

from unmask.checkpoint.vocabulary import learn_folder, load_tokenizer
from unmask.system.errors import FolderError
from unmask.text.learn import LearnSettings


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat\nthe cat ran\n" * 5)
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "the dog ran"}) + "\n")
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]
    counted, learned = [], []
    result = learn_folder(
        files,
        tmp_path / "v",
        LearnSettings(size=22, coverage=1.0),
        counting=counted.append,
        learning=lambda done, total: learned.append((done, total)),
    )
    assert sum(counted) == 5 * 22 + 11
    assert learned[-1] == (17, 17)
    assert result.words == 33
    return tmp_path / "v"


def test_what_was_learned_is_what_is_read(folder):
    tokens = load_tokenizer(folder).vocabulary.tokens
    assert len(tokens) == 22
    assert "the" in tokens
    report = json.loads((folder / "report.json").read_text())
    assert report["unknown_words"] == 0.0


def test_a_changed_byte_is_named_when_only_the_tokenizer_is_read(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": fals'))
    with pytest.raises(FolderError, match=r"tokenizer.json: was changed since it was written"):
        load_tokenizer(folder)
