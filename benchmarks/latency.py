"""Latency of one sentence: over HTTP, and by the same model in this process.

Both sides take turns, call by call. The client of the server only writes and reads a socket. There
is a rest before each call: threads of torch and ONNX Runtime spin for some milliseconds after a
call and would slow down the other side. A call after a rest takes longer than one that follows at
once (17 ms instead of 12.8 ms when measured), so both sides rest.
"""

import json
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.clients import ask, request
from benchmarks.served import must, serving, texts
from unmask.checkpoint.fetch import get
from unmask.infer.compiled.compile import compile_model
from unmask.infer.model import Model

TOKENS = 20  # length of the sentence, with [CLS] and [SEP]
REST = 0.02  # seconds before each call
FIRST, TIMES = 5, 40  # calls per round: warm-up, and counted
ALLOWED = 2.0  # milliseconds that the server may add


def latency(short: bool) -> dict[str, Any]:
    """Measure the model in fp32 and, unless `short`, compiled to int8."""
    some = texts(1000)
    model = Model.load(get("minilm"))
    text = next(own for own in some if len(model.tokenizer.ids([own])[0]) == TOKENS - 2)
    rounds = 2 if short else 10
    found = {"fp32": _beside(model, "minilm", text, rounds)}
    if not short:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "int8"
            compile_model(model, out, some[:400], int8=True)
            found["int8"] = _beside(Model.load(out), out, text, rounds)
    for kind, sides in found.items():
        more = [a - b for a, b in zip(sides["server"], sides["bare"], strict=True)]
        bare, served, added = (
            1e3 * statistics.median(own) for own in (sides["bare"], sides["server"], more)
        )
        print(
            f"one sentence, {kind}: bare {bare:.2f} ms, over the server {served:.2f} ms: "
            f"{added:+.2f} ms ({1e3 * min(more):+.2f} to {1e3 * max(more):+.2f})"
        )
        must(short or kind == "int8" or added <= ALLOWED, "the server adds too much")
    return found


def _beside(model: Model, folder: Path | str, text: str, rounds: int) -> dict[str, list[float]]:
    """Return the median of each round, for both sides."""
    found: dict[str, list[float]] = {"bare": [], "server": []}
    asked = request("/embed", {"inputs": text})
    with serving(folder) as (port, _), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        (vector,) = json.loads(ask(connection, asked))
        apart = abs(model.embed([text])[0] - vector).max()
        must(apart < 1e-5, "both must say the same")
        sides = {"bare": lambda: model.embed([text]), "server": lambda: ask(connection, asked)}
        for _ in range(rounds):
            for name, median in _round(sides).items():
                found[name].append(median)
    return found


def _round(sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median of each side in one round of alternating calls."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(FIRST + TIMES):
        for name, call in sides.items():
            time.sleep(REST)
            begun = time.perf_counter()
            call()
            if number >= FIRST:
                times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(own) for name, own in times.items()}
