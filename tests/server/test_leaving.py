"""Clients that go away while their answer grows: the session ends, and the server goes on."""

import time

import httpx
import pytest

from tests.server.conftest import running
from unmask.tasks.growing import GrowingAnswers

TEXT = "the cat sat on the mat"
PATIENCE = 10.0  # seconds; the machine may be busy with the other tests


@pytest.fixture
def endless(served, monkeypatch):
    """A server whose texts never end, and the steps that were taken."""
    steps = []

    def step(self):
        steps.append(self)
        time.sleep(0.01)

    monkeypatch.setattr(GrowingAnswers, "step", step)
    monkeypatch.setattr(GrowingAnswers, "done", False)
    with running(served) as found:
        yield found, steps


def wait_until(condition, what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def assert_over(server, steps) -> None:
    """Nothing is computed any more, and others are answered."""

    def over() -> bool:
        taken = len(steps)
        time.sleep(0.2)
        return len(steps) == taken and not server.batcher.sessions

    wait_until(over, "the session goes on")
    with server.client() as client:
        assert client.post("/embed", json={"inputs": TEXT}).status_code == 200
        assert "unmask_waiting_texts 0.0" in client.get("/metrics").text


def test_a_client_that_leaves_in_mid_stream_ends_its_session(endless):
    server, steps = endless
    body = {"items": [{"text": TEXT}], "stream": True}
    with httpx.stream("POST", f"{server.url}/ask/translate", json=body, timeout=60) as response:
        next(response.iter_lines())
    assert_over(server, steps)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/translate", {"texts": [TEXT]}),
        ("/ask/translate", {"items": [{"text": TEXT}, {"text": TEXT, "beams": 2}]}),
    ],
)
def test_a_client_that_leaves_before_its_answer_ends_its_session(endless, path, body):
    server, steps = endless
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url) as client:
        client.post(path, json=body, timeout=0.5)
    assert steps
    assert_over(server, steps)
