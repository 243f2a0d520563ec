"""Servers with small models, each in a thread of its own, on a port that was free."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import save_folder
from unmask.infer.model import Model
from unmask.model.shape import DecoderConfig

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

HEADS = {
    "pretrained": bert_heads(tokens=True, pair=True),
    "sentiment": bert_heads(labels="text", label_names=("bad", "good")),
    "nearness": bert_heads(labels="text", label_names=("score",), label_answer="number"),
    "names": bert_heads(pooler=False, labels="token", label_names=("O", "B-PER", "I-PER")),
    "answers": bert_heads(pooler=False, labels="span", label_names=("start", "end")),
    "translator": bert_heads(
        pooler=False, decoder=DecoderConfig(vocab_size=23, layers=1, max_length=16, shared=True)
    ),
}


@pytest.fixture(scope="session")
def served(tmp_path_factory, tokenizer) -> dict[str, Model]:
    """One model of each kind."""
    place = tmp_path_factory.mktemp("served")
    for name, heads in HEADS.items():
        save_folder(place / name, tiny_network(heads), tokenizer)
    return {name: Model.load(place / name) for name in HEADS}


@dataclass
class Running:
    """A server that answers."""

    url: str
    port: int
    server: Any

    @property
    def batcher(self) -> Any:
        """What answers."""
        return self.server.config.app.service.batcher

    def client(self, **options: Any) -> Any:
        """Something to ask it with."""
        return httpx.Client(base_url=self.url, timeout=60.0, **options)


@contextmanager
def running(models: dict[str, Model], **options: Any) -> Iterator[Running]:
    """Start one, and stop it."""
    from unmask.server.app import create_app
    from unmask.server.limits import Limits
    from unmask.server.server import make_server

    limits = options.pop("limits", Limits())
    made = make_server(
        create_app(models, limits=limits, **options), host="127.0.0.1", port=0, limits=limits
    )
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    while not made.started:
        time.sleep(0.01)
    port = made.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(f"http://127.0.0.1:{port}", port, made)
    finally:
        made.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="module")
def server(served) -> Iterator[Running]:
    """With the ordinary limits."""
    with running(served) as found:
        yield found


@pytest.fixture
def client(server) -> Iterator[Any]:
    """To the ordinary server."""
    with server.client() as found:
        yield found
