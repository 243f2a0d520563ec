"""Minimal HTTP/1.1 clients: a blocking one on a socket, and many asynchronous ones in a thread."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

RESET = -1  # in place of a status: the connection broke


@dataclass
class Answer:
    """A response: status, body and the seconds it took."""

    status: int
    body: bytes
    seconds: float


def request(path: str, body: Any) -> bytes:
    """Return a POST request as bytes."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def ask(connection: socket.socket, asked: bytes) -> bytes:
    """Send a request and return the body of its 200 response, with as little work as possible."""
    connection.sendall(asked)
    found = b""
    while not (parts := found.partition(b"\r\n\r\n"))[1]:
        found += connection.recv(65536)
    head, _, body = parts
    assert head.startswith(b"HTTP/1.1 200"), head
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return body


class Client:
    """A client with one connection, which is reopened after the server has closed it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Any) -> Answer:
        """Send a request; a broken connection is returned as an answer with status RESET."""
        asked = request(path, body)
        begun = time.perf_counter()
        try:
            reader, writer = await self._open()
            writer.write(asked)
            await writer.drain()
            status, headers = await _head(reader)
            found = await reader.readexactly(int(headers.get("content-length", "0")))
            if headers.get("connection") == "close":
                self.close()
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return Answer(RESET, b"", time.perf_counter() - begun)
        return Answer(status, found, time.perf_counter() - begun)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        return self.streams

    def close(self) -> None:
        """Close the connection."""
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {k.lower(): v.strip().lower() for k, _, v in pairs}


@dataclass
class Tally:
    """Counts of answers by status, and the times of the successful ones."""

    codes: dict[int, int] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    late: int = 0  # successes after the end: counted in `codes`, they would inflate the rate

    def add(self, answer: Answer, *, late: bool = False) -> None:
        """Count an answer."""
        if late and answer.status == 200:
            self.late += 1
        else:
            self.codes[answer.status] = self.codes.get(answer.status, 0) + 1
        if answer.status == 200:
            self.times.append(answer.seconds)

    def join(self, other: "Tally") -> None:
        """Add the counts and times of another tally."""
        for status, count in other.codes.items():
            self.codes[status] = self.codes.get(status, 0) + count
        self.times += other.times
        self.late += other.late

    @property
    def asked(self) -> int:
        """Return the number of requests."""
        return sum(self.codes.values()) + self.late


async def crowd(
    port: int, clients: int, seconds: float, body: Callable[[int], Any], *, every: float = 0.0
) -> Tally:
    """Run `clients` clients at once; each asks again as soon as it is answered.

    With `every`, each client asks once in that many seconds instead.
    """
    tally, end, number = Tally(), time.perf_counter() + seconds, 0

    async def one() -> None:
        nonlocal number
        client = Client(port)
        due = time.perf_counter()
        while time.perf_counter() < end:
            number += 1
            answer = await client.post("/embed", body(number))
            tally.add(answer, late=time.perf_counter() >= end)
            # After a slow answer, the client does not make up for all requests it has missed.
            due = max(due + every, time.perf_counter() - every)
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
        client.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return tally
