"""Start `unmask serve` in a process of its own; models and texts for the measurements."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.embed import texts_of_known_length
from benchmarks.measure import kilobytes
from tests.shapes import bert_heads
from unmask.checkpoint.fetch import get
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.infer.model import Model
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import Shape


@contextmanager
def serving(*models: Path | str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run the command on a free port while the block runs; yield the port and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "unmask", "serve", *map(str, models), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.1)
        yield port, process
    finally:
        process.terminate()
        process.wait(timeout=60)


def tiny(place: Path) -> Path:
    """Save a model so small that the time is spent in the server, not in the model."""
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=30522, width=32, layers=2, heads=2, inner_width=64)
    network = Network(Shape.of(config, bert_heads()))
    save_folder(place / "tiny", network, load_folder(get("minilm")).needed_tokenizer())
    return place / "tiny"


def texts(count: int) -> list[str]:
    """Return different texts of 5 to 200 tokens."""
    return texts_of_known_length(Model.load(get("minilm")), count)


@dataclass(frozen=True)
class Held:
    """Resources of a process: resident memory, open files and threads."""

    megabytes: float
    descriptors: int
    threads: int

    @classmethod
    def by(cls, pid: int) -> "Held":
        """Read the resources that a process uses now."""
        counts = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("fd", "task"))
        return cls(kilobytes(pid, "status", "VmRSS:") / 1024, *counts)


def must(good: bool, otherwise: str) -> None:
    """End the measurement with an error unless the condition holds."""
    if not good:
        sys.exit(f"failed: {otherwise}")
