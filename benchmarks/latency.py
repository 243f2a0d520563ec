"""One sentence over the server, and beside it the bare engine: the same model in this process.

Both in turn, round by round, by one client that does nothing but write and read a socket. Between
two turns everybody rests: helpers of torch and of ONNX Runtime wait awake for more to do, for some
milliseconds, and would be in the way of the other side.
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
from unmask.use.compile import compile_model
from unmask.use.model import Model

TOKENS = 20  # of the sentence, with [CLS] and [SEP]
REST = 0.1  # seconds
FIRST, TIMES = 10, 60  # calls of a turn that are not counted, and that are
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
    most = 0.0
    for kind, sides in found.items():
        more = [a - b for a, b in zip(sides["server"], sides["bare"], strict=True)]
        bare, served, added = (
            1e3 * statistics.median(own) for own in (sides["bare"], sides["server"], more)
        )
        print(
            f"one sentence, {kind}: bare {bare:.2f} ms, over the server {served:.2f} ms: "
            f"{added:+.2f} ms ({1e3 * min(more):+.2f} to {1e3 * max(more):+.2f})"
        )
        most = max(most, added)
    must(short or most <= ALLOWED, "the server adds too much")
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
        for _ in range(rounds):
            found["bare"].append(_turn(lambda: model.embed([text])))
            found["server"].append(_turn(lambda: ask(connection, asked)))
    return found


def _turn(call: Callable[[], object]) -> float:
    time.sleep(REST)
    times = []
    for _ in range(FIRST + TIMES):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[FIRST:])
