"""A server under load on loopback: overload, mix-ups, slow clients, stops, leaks, bad requests.

    python -m benchmarks load [--only NAME ...] [--short]

The server is `unmask serve` in a process of its own. The clients share the machine with it, so
speeds are only compared with each other.
"""

import argparse
import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clients import Client, Tally, crowd
from benchmarks.latency import latency
from benchmarks.measure import save
from benchmarks.served import Held, must, serving, texts, tiny
from benchmarks.sessions import sessions
from unmask.infer.model import Model

PEAK, CROWD = 48, 300  # clients that saturate the server, and clients that overload it
GOOD = {200, 429, 503}  # statuses that are right under overload


def overload(short: bool) -> dict[str, Any]:
    """Compare the peak with 300 clients that ask at once and 300 that pause, in turn."""
    some, seconds, rounds = texts(200), 5.0 if short else 10.0, 1 if short else 4
    tallies = {"peak": Tally(), "300 clients": Tally(), "300 clients with pauses": Tally()}

    def body(number: int) -> dict[str, Any]:
        return {"inputs": some[number % len(some)]}

    def ask(port: int, name: str, clients: int, every: float = 0.0) -> float:
        """Run clients for some seconds and return the successful answers per second."""
        tally = asyncio.run(crowd(port, clients, seconds, body, every=every))
        tallies[name].join(tally)
        return tally.codes.get(200, 0) / seconds

    with serving("minilm") as (port, _):
        asyncio.run(crowd(port, PEAK, seconds, body))  # warm-up, not counted
        for _ in range(rounds):
            rate = ask(port, "peak", PEAK)
            ask(port, "300 clients", CROWD)
            # Paced so that all clients together ask three times as much as the peak.
            ask(port, "300 clients with pauses", CROWD, CROWD / (3 * rate))
    spent = rounds * seconds
    rates = {name: own.codes.get(200, 0) / spent for name, own in tallies.items()}
    found: dict[str, Any] = {"peak": rates.pop("peak")}
    for name, goodput in rates.items():
        tally, share = tallies[name], goodput / found["peak"]
        asked, late = tally.asked / spent, _share(tally, 0.99)
        found[name] = {"codes": tally.codes, "late": tally.late, "of_peak": share, "p99": late}
        print(
            f"{name}: {asked:.0f} asked a second, {tally.codes} and {tally.late} later, "
            f"{goodput:.1f} answers a second, {share:.1%} of the peak ({found['peak']:.1f}); "
            f"p99 of the answered {late:.2f} s"
        )
        must(set(tally.codes) <= GOOD, f"{name}: other than {GOOD}")
        must(short or share >= 0.9, f"{name}: less than 90 % of the peak")
    return found


def answers(short: bool) -> dict[str, Any]:
    """Check that every answer belongs to its own text while many clients ask at once."""
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
    must(worst <= 1e-5, "an answer is not that of its text")
    return {"answers": count, "worst": worst, "nearest_other": near}


async def _each(port: int, asked: list[str]) -> list[np.ndarray]:
    """Return the vectors of all texts, requested by 64 clients, which retry after a 429."""
    found: list[Any] = [None] * len(asked)
    left = iter(range(len(asked)))

    async def one() -> None:
        client = Client(port)
        for number in left:
            while (answer := await client.post("/embed", {"inputs": asked[number]})).status != 200:
                must(answer.status == 429, f"status {answer.status}")
                await asyncio.sleep(0.05)
            (found[number],) = np.array(json.loads(answer.body), np.float32)
        client.close()

    await asyncio.gather(*(one() for _ in range(64)))
    return found


def slow(short: bool) -> dict[str, Any]:
    """Measure good clients beside clients that send their headers or body byte by byte."""
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
    must(max(ended) < 15 and set(beside.codes) == {200}, "slow clients did harm")
    return {"cut_after": max(ended), "p95_before": before, "p95_beside": during}


def stops(short: bool) -> dict[str, Any]:
    """Send SIGTERM with 64 open requests; each of them must be answered."""
    rounds, lost, good, late = 3 if short else 30, 0, 0, 0.0

    async def ask(port: int, process: subprocess.Popen[bytes]) -> list[int]:
        clients = [Client(port) for _ in range(64)]
        await asyncio.gather(*(client.post("/embed", {"inputs": "a"}) for client in clients))
        body = {"inputs": ["the cat sat on the mat " * 8] * 4}
        asked = [asyncio.ensure_future(client.post("/embed", body)) for client in clients]
        await asyncio.sleep(0.1)  # until all are sent
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
    must(lost == 0, "requests were lost")
    return {"rounds": rounds, "answered": good, "lost": lost, "ended_after": late}


def memory(short: bool) -> dict[str, Any]:
    """Check that memory, open files and threads of the server do not grow with the requests."""
    count = 2000 if short else 50_000
    some = texts(300)
    held: list[Held] = []

    async def ask(port: int, pid: int) -> None:
        left = iter(range(count))

        async def one() -> None:
            client = Client(port)
            for number in left:
                asked = {"inputs": some[number % len(some)], "truncate": True}
                answer = await client.post("/embed", asked)
                must(answer.status == 200, f"status {answer.status}")
                if number % (count // 40) == 0:
                    held.append(Held.by(pid))
            client.close()

        await asyncio.gather(*(one() for _ in range(32)))

    with tempfile.TemporaryDirectory() as folder, serving(tiny(Path(folder))) as (port, process):
        _raw(port, b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        before = Held.by(process.pid)
        asyncio.run(ask(port, process.pid))
        time.sleep(1)  # until the server has noticed the closed connections
        after = Held.by(process.pid)
    early, late = held[len(held) // 4 : len(held) // 2], held[-len(held) // 4 :]
    grown = after.megabytes - early[0].megabytes
    print(f"{count:,} requests: {grown:+.1f} MB after the first quarter (of {after.megabytes:.0f})")
    for what in ("descriptors", "threads"):
        first, last = (max(getattr(own, what) for own in some) for some in (early, late))
        print(
            f"{what}: {getattr(before, what)} before, at most {first} in the second quarter "
            f"and {last} in the last, {getattr(after, what)} afterwards"
        )
        must(short or last <= first + 2, f"{what} grow")
    must(after.descriptors <= before.descriptors + 2, "connections stay open")
    must(short or grown <= 10, "memory grows")
    return {"requests": count, "grown": grown, "held": [asdict(own) for own in [*held, after]]}


def nonsense(short: bool) -> dict[str, Any]:
    """Send malformed requests: no status from 500, no traceback, and the server keeps running."""
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
            must(code < 500 and b"Traceback" not in said, f"{code} to {sent!r:.200}")
        alive = asyncio.run(Client(port).post("/embed", {"inputs": "a"})).status == 200
    print(f"{count:,} malformed requests: {dict(sorted(codes.items()))}; 0 is a closed connection")
    must(alive, "it answers no more")
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
    """Send bytes, end the sending side, and return all that the server sends until it closes."""
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


KINDS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "latency": latency,
    "sessions": sessions,
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
    parser.add_argument("--short", action="store_true", help="take seconds instead of minutes")
    arguments = parser.parse_args(sys.argv[2:])
    for name in arguments.only:
        save(f"load-{name}", KINDS[name](arguments.short))
