"""The command as a user runs it, and a small model with every head that BERT was trained with."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import tiny_network
from unmask.checkpoint.folder import save_folder
from unmask.model.config import HeadsConfig

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def unmask() -> Run:
    """Run `unmask` with these arguments in a process of its own."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}

    def run(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "unmask", *map(str, arguments)]
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=variables,
        )

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, tokenizer) -> Path:
    """A random model of four layers for texts of at most 16 tokens."""
    heads = HeadsConfig(pooler=True, tokens=True, pair=True)
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
