"""A folder with files and a small model called minilm, in which the examples of the API work."""

import pytest

from tests.jobs.small import small_model

ROWS = [("it is six", "six"), ("it was seven", "seven")] * 8


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """The folder of a small encoder with all heads of pre-training."""
    path = tmp_path_factory.mktemp("small") / "minilm"
    small_model(path)
    return path


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_model(tmp_path / "minilm")
    text = "it is red\nthe green was six\n\njohn lives in paris .\n" * 40
    (tmp_path / "texts.txt").write_text(text)
    table = "".join(f"{text}\t{label}\n" for text, label in ROWS)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\n{table}")
    return tmp_path
