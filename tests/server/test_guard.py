"""What a client may not do: too much, too slowly, from elsewhere, without a token, by accident."""

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from tests.server.conftest import running
from unmask.server.limits import Limits

JSON = {"content-type": "application/json"}
TOKEN = "a secret of the test"


def raw(port: int, *parts: bytes, pause: float = 0.0, wait: float = 20.0) -> bytes:
    """Send bytes as they are, and read until the server hangs up or has answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:
                break  # it has hung up already, and perhaps said why
            time.sleep(pause)
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
                if b"\r\n\r\n" in found and b"}" in found.split(b"\r\n\r\n", 1)[1]:
                    break
        except OSError:
            pass
        return found


def head(path: str = "/embed", **headers: str) -> bytes:
    lines = {"host": "127.0.0.1", **JSON, **{k.replace("_", "-"): v for k, v in headers.items()}}
    text = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(server):
    assert status(raw(server.port, head(content_length="1000000000"))) == 413
    assert status(raw(server.port, head(content_length="9" * 400))) in (400, 413)


def test_a_body_that_does_not_say_its_size_is_refused_when_it_is_too_large(server):
    chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    answer = raw(server.port, head(transfer_encoding="chunked"), *[chunk] * 64)
    assert status(answer) == 413


def test_a_body_longer_than_it_says_is_no_second_request(server):
    body = json.dumps({"inputs": "a"}).encode()
    answer = raw(server.port, head(content_length=str(len(body))), body + b"GET /metrics")
    assert status(answer) == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_encoding": "gzip"}, 415),
        ({"host": "evil.example"}, 421),
        ({"host": ""}, 421),
    ],
)
def test_what_a_browser_on_another_site_could_send_is_refused(server, headers, code):
    assert status(raw(server.port, head(content_length="2", **headers), b"{}")) == code


def test_no_site_is_allowed_to_read_answers(client):
    response = client.post(
        "/embed", json={"inputs": "a"}, headers={"origin": "http://evil.example"}
    )
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert client.options("/embed", headers={"origin": "http://evil.example"}).status_code == 405


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"inputs": NaN}',
        b"[" * 100_000,
        b'{"inputs":' * 5000,
    ],
    ids=["nothing", "cut", "list", "null", "no utf-8", "nan", "deep", "deep objects"],
)
def test_a_body_that_is_no_request_is_refused(client, body):
    response = client.post("/embed", content=body, headers=JSON)
    assert response.status_code in (400, 422)
    assert "Traceback" not in response.text
    assert response.json()["error_type"]


@pytest.mark.parametrize("item", ['"a"', "1", "[1]", "{}"])
@pytest.mark.parametrize("path", ["/embed", "/predict", "/classify"])
def test_many_tiny_items_cost_little(client, path, item):
    field = "texts" if path == "/classify" else "inputs"
    body = f'{{"{field}": [{",".join([item] * (990_000 // (len(item) + 1)))}]}}'.encode()
    begun = time.monotonic()
    assert client.post(path, content=body, headers=JSON).status_code == 422
    assert time.monotonic() - begun < 2.0


def test_an_answer_that_nobody_reads_is_dropped_also_if_it_is_the_last(served):
    limits = Limits(body_seconds=0.5, drain_seconds=5.0)
    text = "the cat sat on the mat " * 4
    with running(served, limits=limits) as found:
        body = json.dumps({"text": text, "truncate": True}).encode()
        request = head("/attention", content_length=str(len(body)), connection="close") + body
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.connect(("127.0.0.1", found.port))
            connection.sendall(request)
            time.sleep(1.5)
            begun = time.monotonic()
            while found.server.server_state.connections and time.monotonic() - begun < 10:
                time.sleep(0.05)
            assert not found.server.server_state.connections


QUICK = Limits(header_seconds=0.5, body_seconds=0.7, request_seconds=5.0, queue=8, texts=8)


@pytest.fixture(scope="module")
def quick(served):
    with running(served, limits=QUICK) as found:
        yield found


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"POST /em"],
        [bytes([letter]) for letter in head()[:40]],
        [head(content_length="100"), b'{"inp'],
        [head(content_length="100"), *[b" "] * 40],
    ],
    ids=["nothing", "half a line", "slow headers", "half a body", "slow body"],
)
def test_a_slow_client_is_cut_off_while_others_are_served(quick, parts):
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        slow = [pool.submit(raw, quick.port, *parts, pause=0.1) for _ in range(7)]
        with quick.client() as client:
            times = []
            for _ in range(5):
                at = time.monotonic()
                assert client.post("/embed", json={"inputs": "a"}).status_code == 200
                times.append(time.monotonic() - at)
        ends = [one.result() for one in slow]
    assert time.monotonic() - begun < 8.0
    assert sorted(times)[2] < 1.0
    assert all(not end or status(end) in (400, 408) for end in ends)


def test_a_client_that_does_not_read_its_answer_is_cut_off(quick):
    with socket.create_connection(("127.0.0.1", quick.port)) as connection:
        connection.settimeout(10)
        many = 2000  # more than the buffers between the two can hold
        connection.sendall(many * b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n")
        time.sleep(2.5)  # more than it has to read an answer
        found = b""
        with suppress(ConnectionError):
            while piece := connection.recv(1 << 20):
                found += piece
    assert 0 < found.count(b"HTTP/1.1 200") < many


@contextmanager
def narrow(found):
    """A connection whose buffers hold little: answers wait in the server until they are read."""
    for listening in found.server.servers[0].sockets:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # for those to come
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", found.port))
        yield connection


def waiting(found) -> int:
    """Bytes of its only answer that the server could not send, as soon as there are some."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for held in list(found.server.server_state.connections):
            if held.transport and (left := held.transport.get_write_buffer_size()):
                return left
        time.sleep(0.01)
    return 0


def whole(connection) -> bytes:
    """One answer, with its body."""
    answer, length = b"", 1
    while len(answer.partition(b"\r\n\r\n")[2]) < length:
        answer += connection.recv(65_536)
        length = int(re.findall(rb"content-length: (\d+)", answer)[0])
    return answer


def gone(found, within: float) -> bool:
    """Has the server let go of all its connections?"""
    end = time.monotonic() + within
    while found.server.server_state.connections and time.monotonic() < end:
        time.sleep(0.05)
    return not found.server.server_state.connections


OPENAPI = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"  # some 30 KB


def test_a_small_answer_that_nobody_reads_is_given_up(served):
    """Less than the 64 KB at which a transport says that it is full."""
    few = {"pretrained": served["pretrained"]}  # whose routes take less to describe
    with running(few, limits=Limits(body_seconds=0.5)) as found, narrow(found) as connection:
        connection.sendall(OPENAPI)
        assert 0 < waiting(found) < 65_536
        assert gone(found, within=4.0)


def test_an_answer_that_is_read_in_part_is_given_up_too(served):
    with running(served, limits=Limits(body_seconds=0.5)) as found, narrow(found) as connection:
        connection.sendall(4 * OPENAPI)
        assert waiting(found)
        for _ in range(40):
            connection.recv(1024)
        assert gone(found, within=4.0)


def test_an_answer_that_the_system_holds_ends_with_the_idle_connection(served, monkeypatch):
    monkeypatch.setattr("unmask.server.server.KEEP_ALIVE_SECONDS", 1)
    with running(served) as found:
        kept = [socket.create_connection(("127.0.0.1", found.port)) for _ in range(20)]
        for connection in kept:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while found.server.server_state.total_requests < len(kept):
            time.sleep(0.01)
        assert gone(found, within=10.0)
        assert all(status(whole(connection)) == 200 for connection in kept)
        for connection in kept:
            connection.close()


def test_who_reads_slowly_but_reads_may_ask_again(served):
    with running(served, limits=Limits(body_seconds=1.0)) as found, narrow(found) as connection:
        for _ in range(4):
            connection.sendall(OPENAPI)
            time.sleep(0.4)
            assert status(whole(connection)) == 200


def test_beyond_the_queue_it_says_so_at_once_and_loses_nothing(served):
    """A worker that is held up: of many requests some wait, the others are told to come again."""
    held = threading.Event()
    model = served["pretrained"]
    real = model.vectors

    def slow(*arguments, **options):
        held.wait(30)
        return real(*arguments, **options)

    with running({"held": model}, limits=Limits(queue=4)) as found, found.client() as client:
        model.vectors = slow
        try:
            with ThreadPoolExecutor(12) as pool:
                asked = [
                    pool.submit(client.post, "/embed", json={"inputs": "a"}) for _ in range(12)
                ]
                end = time.monotonic() + 20
                while sum(one.done() for one in asked) < 4 and time.monotonic() < end:
                    time.sleep(0.02)  # some are computed and four wait: the others are refused
                assert client.get("/health").status_code == 200, "the loop is not blocked"
                unread = client.post("/embed", content=b"no JSON", headers=JSON)
                assert unread.status_code == 429, "what is refused anyway is not looked into"
                assert client.post("/nowhere", json={}).status_code == 404
                counts = client.get("/metrics").text
                assert 'route="/embed",status="429"' in counts
                assert 'route="other",status="429"' not in counts
                with socket.create_connection(("127.0.0.1", found.port)) as hasty:
                    hasty.sendall(head(content_length="15") + b'{"inputs": "a"}')
                while 'status="499"' not in client.get("/metrics").text:
                    assert time.monotonic() < end, "who hangs up before the refusal is noted so"
                    time.sleep(0.02)
                held.set()
                answers = [one.result() for one in asked]
        finally:
            del model.vectors
    codes = sorted(answer.status_code for answer in answers)
    assert set(codes) == {200, 429}
    assert 5 <= codes.count(200) <= 8
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error_type"] == "overloaded"


def test_one_bad_text_does_not_spoil_its_neighbours(served):
    """Held up until all wait, so that they are computed together."""
    with running(served) as found, found.client() as client, ThreadPoolExecutor(8) as pool:
        texts = ["the cat " * n for n in range(1, 8)] + ["cat " * 400]
        asked = [pool.submit(client.post, "/embed", json={"inputs": text}) for text in texts]
        codes = [one.result().status_code for one in asked]
    assert codes == [200] * 7 + [413]


def test_every_route_needs_the_token_but_health_and_the_page(served):
    with running(served, token=TOKEN) as found, found.client() as client:
        right = {"authorization": f"Bearer {TOKEN}"}
        paths = client.get("/openapi.json", headers=right).json()["paths"]
        assert len(paths) > 15
        asked = [(m.upper(), p.replace("{name}", "x")) for p, ms in paths.items() for m in ms]
        asked += [("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/nowhere")]
        for method, path in asked:
            wrong = {"authorization": f"Bearer {TOKEN}x"}
            basic = {"authorization": f"Basic {TOKEN}"}
            codes = [
                client.request(method, path, headers={**JSON, **own}, content=b"{}").status_code
                for own in ({}, wrong, basic)
            ]
            assert set(codes) == ({200} if path == "/health" else {401}), (method, path)
        assert client.get("/").status_code == 200
        assert client.get("/v1/models", headers=right).status_code == 200
        assert client.get("/v1/models").headers["www-authenticate"] == "Bearer"


def test_stopping_answers_what_is_under_way(served):
    with running(served) as found, found.client() as client, ThreadPoolExecutor(16) as pool:
        client.post("/embed", json={"inputs": "a"})
        asked = [
            pool.submit(client.post, "/embed", json={"inputs": ["the cat sat"] * 16})
            for _ in range(16)
        ]
        time.sleep(0.05)
        found.server.should_exit = True
        codes = []
        for one in asked:
            try:
                codes.append(one.result().status_code)
            except Exception as error:  # a connection that was not yet accepted is refused
                codes.append(type(error).__name__)
    assert codes.count(200) >= 1
    assert set(codes) <= {200, "ConnectError"}, codes
