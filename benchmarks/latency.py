"""One sentence over the server, and beside it the bare engine: the same model in this process.

Both in turn, call by call, by one client that does nothing but write and read a socket. Between
two calls everybody rests: helpers of torch and of ONNX Runtime wait awake for more to do, for some
milliseconds, and would be in the way of the other side. A call after a rest takes longer than one
that follows another at once (12.8 beside 17 ms, where this was found): so both sides have theirs.
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

TOKENS = 20  # of the sentence, with [CLS] and [SEP]
REST = 0.02  # seconds before each call
FIRST, TIMES = 5, 40  # calls of a round that are not counted, and that are
ALLOWED = 2.0  # milliseconds that the server may add


def latency(short: bool) -> dict[str, Any]:
    """As it is and, unless it has to be short, compiled in int8."""
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
    """The median of each turn of both sides."""
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
    """The median of each, asked in turn, call by call."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(FIRST + TIMES):
        for name, call in sides.items():
            time.sleep(REST)
            begun = time.perf_counter()
            call()
            if number >= FIRST:
                times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(own) for name, own in times.items()}
