"""A small model with every head that BERT was trained with."""

from pathlib import Path

import pytest

from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import save_folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, tokenizer) -> Path:
    """A random model of four layers for texts of at most 16 tokens."""
    heads = bert_heads(pooler=True, tokens=True, pair=True)
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_folder(path, tiny_network(heads, layers=4, max_length=16), tokenizer)
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Three megabytes, so that more than one process has something to count."""
    words = [f"{a}{b}{c}" for a in ("un", "re", "mis") for b in ("do", "read") for c in ("", "ing")]
    lines = [" ".join(words[i % 7 : i % 12]) + f" line {i}." for i in range(1000)]
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(lines * 100) + "\n")
    return path
