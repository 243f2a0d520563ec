"""The command as a user runs it, and a small model with every head that BERT was trained with."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import tiny_network
from unmask.checkpoint.folder import save_folder
from unmask.cli import main
from unmask.model.config import HeadsConfig

Run = Callable[..., subprocess.CompletedProcess[str]]
TIMEOUT = 120


@pytest.fixture(scope="session")
def anew() -> Run:
    """Run `unmask` with these arguments in a process that begins with nothing, as a user does."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}

    def run(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "unmask", *map(str, arguments)]
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
            env=variables,
        )

    return run


@pytest.fixture(scope="session")
def unmask(tmp_path_factory) -> Run:
    """The same in a process of its own that has torch already: importing it takes most of a run."""
    served = multiprocessing.get_context("forkserver")
    served.set_forkserver_preload(["unmask.use.model", "unmask.train.finetune"])
    files = tmp_path_factory.mktemp("command")

    def run(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        (files / "stdin").write_text(stdin)
        command = ["unmask", *map(str, arguments)]
        process = served.Process(target=_command, args=(command, files, Path.cwd()))
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode is not None, f"{command}: not done after {TIMEOUT} s"
        said = [(files / name).read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(command, process.exitcode, *said)

    return run


def _command(arguments: list[str], files: Path, folder: Path) -> None:
    """Be that command: in this folder, with files where a shell has its pipes."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(files / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC * bool(number)), number)
    sys.stdin = os.fdopen(0, closefd=False)  # of a child of multiprocessing it is another
    os.chdir(folder)
    sys.argv = arguments
    main()


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
