"""`unmask.serve`: the server of `unmask serve`, from Python."""

import socket
import threading
import time

import numpy as np
import pytest

import unmask
from tests.server.conftest import httpx
from unmask.server import server as server_file
from unmask.server.start import named_models, named_runs
from unmask.server.threads import SPIN_VARIABLE
from unmask.system.errors import SettingsError


@pytest.fixture
def started(monkeypatch):
    """Start `unmask.serve` in a thread; return the server, and its address."""
    monkeypatch.setenv(SPIN_VARIABLE, "10000")  # which the server would set
    make, made, threads = server_file.make_server, [], []

    def keep(app, **options):
        made.append(make(app, **options))
        return made[-1]

    monkeypatch.setattr(server_file, "make_server", keep)

    def start(models, **options):
        threads.append(
            threading.Thread(target=unmask.serve, args=(models,), kwargs={"port": 0, **options})
        )
        threads[-1].start()
        while not (made and made[-1].started):
            assert threads[-1].is_alive()
            time.sleep(0.01)
        return f"http://127.0.0.1:{made[-1].servers[0].sockets[0].getsockname()[1]}"

    yield start
    for server, thread in zip(made, threads, strict=True):
        server.should_exit = True
        thread.join(timeout=60)


def test_loaded_models_and_folders_are_served_by_name_and_nothing_is_printed(
    served, started, capfd
):
    url = started({"one": served["pretrained"], "two": served["sentiment"].path})
    vectors = httpx.post(f"{url}/v1/embeddings", json={"model": "one", "input": ["the cat"]})
    found = vectors.json()["data"][0]["embedding"]
    np.testing.assert_allclose(found, served["pretrained"].embed("the cat"), atol=1e-6)
    names = [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]]
    assert names == ["one", "two"]
    assert capfd.readouterr() == ("", "")


def test_a_single_folder_is_served_by_its_own_name_behind_a_token(served, started):
    url = started(served["names"].path, token="secret", host="127.0.0.1")
    assert httpx.get(f"{url}/v1/models").status_code == 401
    known = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer secret"})
    assert [model["id"] for model in known.json()["data"]] == ["names"]


def test_models_are_named_by_their_folders_or_as_asked(tmp_path):
    (tmp_path / "a=b").mkdir()
    path = str(tmp_path / "a=b")
    assert named_models(["x/one", "two=y/three", path]) == {
        "one": "x/one",
        "two": "y/three",
        "a=b": path,
    }
    with pytest.raises(SettingsError, match="two models named one. .* NAME=y/one"):
        named_models(["x/one", "y/one"])


def test_runs_are_named_by_their_folders(tmp_path):
    for name in ("a/run", "b/run", "c"):
        (tmp_path / name).mkdir(parents=True)
    assert [*named_runs([tmp_path / "a" / "run", tmp_path / "c"])] == ["run", "c"]
    with pytest.raises(SettingsError, match="two runs have this name"):
        named_runs([tmp_path / "a" / "run", tmp_path / "b" / "run"])


def test_a_port_that_is_taken_is_refused_before_models_are_loaded(served, monkeypatch):
    monkeypatch.setenv(SPIN_VARIABLE, "10000")
    monkeypatch.setattr("unmask.server.threads.load", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = f"host 127.0.0.1, port {port}: cannot listen there .* Choose another"
        with pytest.raises(SettingsError, match=message):
            unmask.serve(served["names"].path, port=port)
