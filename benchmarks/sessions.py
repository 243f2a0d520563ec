"""Embedding latency of a server while it generates text: what a long session costs other requests.

`unmask serve` runs MiniLM and a translator of the same size with random weights, which never ends a
translation before its limit. The p95 of 100 embedding requests is measured with and without a
generation of 200 tokens beside them, in turn. The client either sends each request as soon as the
previous one is answered, or rests before each.
"""

import json
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.clients import ask, request
from benchmarks.served import must, serving, texts
from unmask.checkpoint.fetch import get
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.infer.model import Model
from unmask.model.network import Network
from unmask.model.shape import DECODER, DecoderConfig, Shape

REQUESTS, TOKENS = 100, 200
RESTS = {"one after the other": 0.0, "with 20 ms of rest": 0.02}
ALLOWED = 1.5  # p95 with a session, relative to that without


def endless(place: Path) -> Path:
    """Save a translator of MiniLM's shape with random weights that never predicts [SEP]."""
    torch.manual_seed(0)
    folder = load_folder(get("minilm"))
    config = folder.network.config
    decoder = DecoderConfig(
        vocab_size=config.vocab_size, layers=config.layers, max_length=256, shared=True
    )
    network = Network(Shape.of(config, {DECODER: decoder}))
    tokenizer = folder.needed_tokenizer()
    with torch.no_grad():
        network.get_parameter(f"heads.{DECODER}.bias")[tokenizer.vocabulary.sep] = -1e4
    save_folder(place / "endless", network, tokenizer, target=tokenizer)
    return place / "endless"


def sessions(short: bool) -> dict[str, Any]:
    """Measure the p95 with and without a session; fail if a vector is not the offline model's."""
    some, repeats = texts(400), 1 if short else 5
    model = Model.load(get("minilm"))
    asked = [text for text in some if len(model.tokenizer.ids([text])[0]) < 40][:REQUESTS]
    truth = model.embed(asked)
    long = next(text for text in some if len(model.tokenizer.ids([text])[0]) >= TOKENS // 2 - 5)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = ["minilm", str(endless(Path(folder)))]
        with serving(*models) as (port, _):
            for _ in range(2):  # warm-up, not counted
                _timed(port, asked[:20], truth, 0.0)
            for name, rest in RESTS.items():
                alone, beside, seconds = [], [], []
                for _ in range(repeats):
                    alone.append(_timed(port, asked, truth, rest))
                    p95, lasted = _beside(port, asked, truth, rest, long)
                    beside.append(p95)
                    seconds.append(lasted)
                ratio = statistics.median(beside) / statistics.median(alone)
                found[name] = {"alone": alone, "beside": beside, "seconds": seconds}
                print(
                    f"{name}: p95 {1e3 * statistics.median(alone):.1f} ms alone, "
                    f"{1e3 * statistics.median(beside):.1f} ms beside a session of {TOKENS} tokens "
                    f"({statistics.median(seconds):.1f} s): {ratio:.2f} times"
                )
                must(short or ratio <= ALLOWED, f"more than {ALLOWED} times")
    return found


def _timed(port: int, asked: list[str], truth: np.ndarray, rest: float) -> float:
    """Return the p95 of single requests; their vectors must equal those of the offline model."""
    times = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        # Nagle's algorithm would hold back small packets and measure the network stack instead.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for text, expected in zip(asked, truth, strict=False):
            time.sleep(rest)
            begun = time.perf_counter()
            (vector,) = json.loads(ask(connection, request("/embed", {"inputs": text})))
            times.append(time.perf_counter() - begun)
            must(float(np.abs(expected - vector).max()) < 1e-5, "a vector is not the offline one")
    return sorted(times)[int(0.95 * len(times))]


def _beside(
    port: int, asked: list[str], truth: np.ndarray, rest: float, long: str
) -> tuple[float, float]:
    """Return the p95 beside a client that generates texts, and the median time of such a text."""
    stop, seconds = threading.Event(), []

    def generate() -> None:
        body = request("/translate", {"texts": [long]})
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while not stop.is_set():
                begun = time.perf_counter()
                (said,) = json.loads(ask(connection, body))
                seconds.append(time.perf_counter() - begun)
                must(len(said["text"].split()) > TOKENS // 4, "it has ended too soon")

    thread = threading.Thread(target=generate)
    thread.start()
    time.sleep(0.2)  # so that the first session is running
    try:
        p95 = _timed(port, asked, truth, rest)
    finally:
        stop.set()
        thread.join()
    return p95, statistics.median(seconds)
