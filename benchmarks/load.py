"""A server under load, on loopback: overload, mixed answers, slow clients, stops, leaks, nonsense.

    python -m benchmarks load [--only latency overload answers slow stops memory nonsense] [--short]

The server is `unmask serve` in a process of its own. Clients share the machine with it, so speeds
are compared with each other, not with anybody else's.
"""

import argparse
import asyncio
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.clients import Client, Tally, crowd
from benchmarks.embed import texts_of_known_length
from benchmarks.measure import kilobytes, save
from unmask.checkpoint.fetch import get
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.model.config import HeadsConfig, ModelConfig
from unmask.model.network import Network
from unmask.use.model import Model

PEAK, CROWD = 48, 300  # clients that fill it, and that are too many
GOOD = {200, 429, 503}


@contextmanager
def serving(model: Path | str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The command itself, on a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "unmask", "serve", str(model), "--port", str(port)]
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
    network = Network(config, HeadsConfig())
    save_folder(place / "tiny", network, load_folder(get("minilm")).needed_tokenizer())
    return place / "tiny"


def texts(count: int) -> list[str]:
    """Different ones, of 5 to 200 tokens."""
    return texts_of_known_length(Model.load(get("minilm")), count)


def latency(short: bool) -> dict[str, Any]:
    """One sentence: the bare engine, then the server, round by round; neither beside the other."""
    model = Model.load(get("minilm"))
    text = next(t for t in texts(1000) if len(model.tokenizer.ids([t])[0]) == 18)
    found: dict[str, list[float]] = {"bare": [], "server": []}

    async def ask(port: int) -> list[float]:
        client = Client(port)
        return [(await client.post("/embed", {"inputs": text})).seconds for _ in range(110)][10:]

    def bare() -> float:
        begun = time.perf_counter()
        model.embed([text])
        return time.perf_counter() - begun

    for _ in range(1 if short else 5):
        found["bare"].append(statistics.median([bare() for _ in range(110)][10:]))
        with serving("minilm") as (port, _):
            found["server"].append(statistics.median(asyncio.run(ask(port))))
    one, two = (1e3 * statistics.median(found[name]) for name in ("bare", "server"))
    print(f"one sentence: bare {one:.2f} ms, over the server {two:.2f} ms: {two - one:+.2f} ms")
    return found


def overload(short: bool) -> dict[str, Any]:
    """The peak, then far too many clients, then three times what it can do."""
    some, seconds = texts(200), 5.0 if short else 40.0

    def body(number: int) -> dict[str, Any]:
        return {"inputs": some[number % len(some)]}

    found: dict[str, Any] = {}
    with serving("minilm") as (port, _):
        asyncio.run(crowd(port, PEAK, 3.0, body))
        peak = asyncio.run(crowd(port, PEAK, seconds, body))
        rate = peak.codes.get(200, 0) / seconds
        for name, every in (("300 clients", 0.0), ("three times its rate", CROWD / (3 * rate))):
            tally = asyncio.run(crowd(port, CROWD, seconds, body, every=every))
            goodput = tally.codes.get(200, 0) / seconds
            found[name] = {"codes": tally.codes, "goodput": goodput, "of_peak": goodput / rate}
            found[name]["p99"] = _share(tally, 0.99)
            print(
                f"{name}: {tally.codes}, {goodput:.0f} answers a second, {goodput / rate:.0%} of "
                f"the peak ({rate:.0f}); p99 of the answered {found[name]['p99']:.2f} s"
            )
            _must(set(tally.codes) <= GOOD, f"{name}: other than {GOOD}")
            _must(short or goodput >= 0.9 * rate, f"{name}: less than 90 % of the peak")
    return {**found, "peak": rate}


def answers(short: bool) -> dict[str, Any]:
    """Every answer is that of its own text, whoever asks at the same time."""
    count = 500 if short else 20_000
    with tempfile.TemporaryDirectory() as folder:
        path = tiny(Path(folder))
        model = Model.load(path)
        rng = random.Random(0)
        words = list(model.tokenizer.vocabulary.tokens[2000:6000])
        asked = [" ".join(rng.choices(words, k=rng.randint(1, 40))) for _ in range(count)]
        truth = model.embed(asked)
        worst = 0.0
        with serving(path) as (port, _):
            found = asyncio.run(_each(port, asked))
        for number, vector in enumerate(found):
            worst = max(worst, float(np.abs(vector - truth[number]).max()))
    near = float(np.abs(truth[1:] - truth[:-1]).max(axis=1).min())
    print(f"{count:,} answers: at most {worst:.1e} from the offline ones (others: {near:.1e})")
    _must(worst <= 1e-5, "an answer is not that of its text")
    return {"answers": count, "worst": worst, "nearest_other": near}


async def _each(port: int, asked: list[str]) -> list[np.ndarray]:
    """The vectors of all texts, asked for by many clients, again where the server was full."""
    found: list[Any] = [None] * len(asked)
    left = iter(range(len(asked)))

    async def one() -> None:
        client = Client(port)
        for number in left:
            while (answer := await client.post("/embed", {"inputs": asked[number]})).status != 200:
                _must(answer.status == 429, f"status {answer.status}")
                await asyncio.sleep(0.05)
            (found[number],) = np.array(json.loads(answer.body), np.float32)
        client.close()

    await asyncio.gather(*(one() for _ in range(64)))
    return found


def slow(short: bool) -> dict[str, Any]:
    """Clients that bring their headers or their body byte by byte, and good ones beside them."""
    count = 60 if short else 500
    head = b"POST /embed HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"

    async def drip(port: int, number: int) -> float:
        begun = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if number % 2:
            writer.write(head + b"content-length: 5000\r\n\r\n")
        ended = asyncio.ensure_future(reader.read())
        while not ended.done() and time.perf_counter() - begun < 60:
            with suppress(OSError):
                writer.write(b"a")
            await asyncio.wait({ended}, timeout=1.0)
        writer.close()
        with suppress(OSError):
            await ended
        return time.perf_counter() - begun

    async def both(port: int) -> tuple[list[float], Tally, Tally]:
        alone = await crowd(port, 20, 8.0, lambda number: {"inputs": "a good text"}, every=0.1)
        dripping = asyncio.gather(*(drip(port, number) for number in range(count)))
        beside = await crowd(port, 20, 12.0, lambda number: {"inputs": "a good text"}, every=0.1)
        return list(await dripping), alone, beside

    with tempfile.TemporaryDirectory() as folder, serving(tiny(Path(folder))) as (port, _):
        ended, alone, beside = asyncio.run(both(port))
    before, during = _share(alone, 0.95), _share(beside, 0.95)
    print(
        f"{count} slow clients: all cut off after {max(ended):.1f} s at most; good ones "
        f"{beside.codes}, p95 {1e3 * before:.1f} ms before and {1e3 * during:.1f} ms beside them"
    )
    _must(max(ended) < 15 and set(beside.codes) == {200}, "slow clients did harm")
    return {"cut_after": max(ended), "p95_before": before, "p95_beside": during}


def stops(short: bool) -> dict[str, Any]:
    """SIGTERM with 64 requests under way: each of them is answered."""
    rounds, lost, good, late = 3 if short else 30, 0, 0, 0.0

    async def ask(port: int, process: subprocess.Popen[bytes]) -> list[int]:
        clients = [Client(port) for _ in range(64)]
        await asyncio.gather(*(client.post("/embed", {"inputs": "a"}) for client in clients))
        body = {"inputs": ["the cat sat on the mat " * 8] * 4}
        asked = [asyncio.ensure_future(client.post("/embed", body)) for client in clients]
        await asyncio.sleep(0.1)  # all are sent
        process.send_signal(signal.SIGTERM)
        return [answer.status for answer in await asyncio.gather(*asked)]

    for _ in range(rounds):
        with serving("minilm") as (port, process):
            codes = asyncio.run(ask(port, process))
            begun = time.perf_counter()
            process.wait(timeout=60)
            late = max(late, time.perf_counter() - begun)
        lost += sum(code not in GOOD for code in codes)
        good += codes.count(200)
    print(
        f"{rounds} stops with 64 under way: {good} answered, {lost} lost; ended {late:.1f} s later"
    )
    _must(lost == 0, "requests were lost")
    return {"rounds": rounds, "answered": good, "lost": lost, "ended_after": late}


def memory(short: bool) -> dict[str, Any]:
    """Does it grow with the requests?"""
    count = 2000 if short else 50_000
    some = texts(300)
    with tempfile.TemporaryDirectory() as folder, serving(tiny(Path(folder))) as (port, process):
        used = []

        async def ask() -> None:
            left = iter(range(count))

            async def one() -> None:
                client = Client(port)
                for number in left:
                    asked = {"inputs": some[number % len(some)], "truncate": True}
                    answer = await client.post("/embed", asked)
                    _must(answer.status == 200, f"status {answer.status}")
                    if number % (count // 20) == 0:
                        used.append(kilobytes(process.pid, "status", "VmRSS:") / 1024)
                client.close()

            await asyncio.gather(*(one() for _ in range(32)))

        asyncio.run(ask())
        used.append(kilobytes(process.pid, "status", "VmRSS:") / 1024)
    grown = used[-1] - used[len(used) // 4]
    print(f"{count:,} requests: {grown:+.1f} MB after the first quarter (of {used[-1]:.0f})")
    _must(short or grown <= 10, "memory grows")
    return {"requests": count, "megabytes": used, "grown": grown}


def nonsense(short: bool) -> dict[str, Any]:
    """Malformed requests: never a status of 500 or more, never a traceback, and it lives on."""
    count, rng, codes = 300 if short else 5000, random.Random(0), {}
    good = (
        b"POST /embed HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b'content-length: 15\r\n\r\n{"inputs": "a"}'
    )
    with tempfile.TemporaryDirectory() as folder, serving(tiny(Path(folder))) as (port, _):
        for number in range(count):
            sent = _spoiled(good, rng) if number % 4 else rng.randbytes(rng.randint(1, 400))
            said = _raw(port, sent)
            first = said.split(b" ", 2)
            code = int(first[1]) if len(first) > 1 and first[1].isdigit() else 0
            codes[code] = codes.get(code, 0) + 1
            _must(code < 500 and b"Traceback" not in said, f"{code} to {sent!r:.200}")
        alive = asyncio.run(Client(port).post("/embed", {"inputs": "a"})).status == 200
    print(f"{count:,} malformed requests: {dict(sorted(codes.items()))}; 0 is a closed connection")
    _must(alive, "it answers no more")
    return {"codes": codes}


def _spoiled(good: bytes, rng: random.Random) -> bytes:
    found = bytearray(good)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(found))
        change = rng.randrange(3)
        if change == 0:
            found[at] = rng.randrange(256)
        elif change == 1:
            del found[at : at + rng.randint(1, 12)]
        else:
            found[at:at] = rng.randbytes(rng.randint(1, 12))
        if not found:
            return b"\r\n"
    return bytes(found)


def _raw(port: int, sent: bytes) -> bytes:
    """What it says, until it hangs up; a request that is not whole is ended here."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        found = b""
        with suppress(ConnectionError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                found += piece
        return found


def _share(tally: Tally, share: float) -> float:
    ordered = sorted(tally.times)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _must(good: bool, otherwise: str) -> None:
    if not good:
        sys.exit(f"failed: {otherwise}")


KINDS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "latency": latency,
    "overload": overload,
    "answers": answers,
    "slow": slow,
    "stops": stops,
    "memory": memory,
    "nonsense": nonsense,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks load")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--short", action="store_true", help="Seconds instead of minutes.")
    given = parser.parse_args(sys.argv[2:])
    for name in given.only:
        save(f"load-{name}", KINDS[name](given.short))
