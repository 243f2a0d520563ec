"""A server to measure, `unmask serve` in a process of its own, and what to ask it."""

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
    """The command itself, on a port that is free."""
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
    """A model so small that the server itself is what is measured."""
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=30522, width=32, layers=2, heads=2, inner_width=64)
    network = Network(Shape.of(config, bert_heads()))
    save_folder(place / "tiny", network, load_folder(get("minilm")).needed_tokenizer())
    return place / "tiny"


def texts(count: int) -> list[str]:
    """Different ones, of 5 to 200 tokens."""
    return texts_of_known_length(Model.load(get("minilm")), count)


@dataclass(frozen=True)
class Held:
    """What a process has of the machine."""

    megabytes: float
    descriptors: int
    threads: int

    @classmethod
    def by(cls, pid: int) -> "Held":
        """At this moment."""
        counts = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("fd", "task"))
        return cls(kilobytes(pid, "status", "VmRSS:") / 1024, *counts)


def must(good: bool, otherwise: str) -> None:
    """End the measurement if this is not so."""
    if not good:
        sys.exit(f"failed: {otherwise}")
