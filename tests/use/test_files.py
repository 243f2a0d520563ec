"""Files of vectors: as the library computes them, whole, in steady memory."""

import json

import numpy as np
import pytest

import unmask
from tests.conftest import tiny_network
from unmask.checkpoint.folder import save_folder
from unmask.errors import DataError
from unmask.use.files import embed_file

TEXTS = ["the cat sat", "a dog", "the mat"] * 7


@pytest.fixture
def model(tmp_path, tokenizer):
    save_folder(tmp_path / "m", tiny_network(), tokenizer)
    return unmask.load(tmp_path / "m")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS))
    return str(path)


def test_an_array_holds_what_the_library_computes(model, source, tmp_path):
    done = []
    embed_file(model, source, tmp_path / "v.npy", progress=done.append, pool="cls")
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model.embed(TEXTS, pool="cls"), atol=1e-6)
    assert sum(done) == len(TEXTS)


def test_lines_hold_the_same(model, source, tmp_path):
    embed_file(model, source, tmp_path / "v.jsonl")
    found = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(found, model.embed(TEXTS), atol=1e-6)


def test_a_text_that_is_too_long_is_named_by_its_line_and_leaves_no_file(model, tmp_path):
    source = tmp_path / "texts.txt"
    source.write_text("the cat\n\n\n" + "the cat " * 100)
    with pytest.raises(DataError, match=r"texts.txt:4: 202 tokens; the model holds 32"):
        embed_file(model, str(source), tmp_path / "v.npy", truncate=False)
    assert {path.name for path in tmp_path.iterdir()} == {"m", "texts.txt"}
