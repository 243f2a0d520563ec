"""A small good folder, to be spoiled."""

import shutil

import pytest

from tests.conftest import tiny_network
from tests.faults.spoil import *
from tests.shapes import bert_heads
from unmask.checkpoint.folder import save_folder


@pytest.fixture(scope="module")
def good(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("good") / "model"
    save_folder(path, tiny_network(bert_heads(tokens=True, pair=True)), tokenizer)
    return path


@pytest.fixture
def sealed(good, tmp_path):
    """A copy of the good folder, with its manifest."""
    (tmp_path / "secret").write_text("of somebody else")
    return shutil.copytree(good, tmp_path / "model")


@pytest.fixture
def folder(sealed):
    """A copy without its manifest, whose digests would hide everything that is checked later."""
    (sealed / MANIFEST).unlink()
    return sealed
