"""Load, in short; `make load` has the long version."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.conftest import tiny_network
from tests.server.conftest import running
from unmask.checkpoint.folder import save_folder
from unmask.server.limits import Limits
from unmask.server.threads import SPIN_VARIABLE, SPINS, USER_VARIABLES, wait_briefly

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog"]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"


def texts(count: int) -> list[str]:
    return [" ".join(WORDS[(n * 7 + i * i) % 7] for i in range(1 + n % 23)) for n in range(count)]


def test_every_answer_is_that_of_its_own_text(server, served):
    asked = texts(400)
    with server.client() as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda t: client.post("/embed", json={"inputs": t}), asked))
    assert {answer.status_code for answer in answers} == {200}
    found = np.array([answer.json()[0] for answer in answers])
    np.testing.assert_allclose(found, served["pretrained"].embed(asked), atol=1e-5)


def test_verbs_and_models_do_not_mix(server, served):
    """Requests of all kinds at once: each gets the answer of its own model."""
    asked = texts(60)
    bodies = [
        [
            ("/embed", {"inputs": text}),
            ("/classify", {"texts": [text]}),
            ("/score", {"texts": [text]}),
        ][n % 3]
        for n, text in enumerate(asked)
    ]
    with server.client() as client, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda one: client.post(one[0], json=one[1]).json(), bodies))
    np.testing.assert_allclose(
        [answer[0] for answer in answers[::3]], served["pretrained"].embed(asked[::3]), atol=1e-5
    )
    truth = served["sentiment"].classify(asked[1::3])
    assert [tuple(answer[0]["labels"]) for answer in answers[1::3]] == [t.labels for t in truth]
    numbers = served["nearness"].score(asked[2::3])
    assert [answer[0] for answer in answers[2::3]] == pytest.approx(numbers, abs=1e-5)


def test_far_too_many_clients_get_an_answer_or_are_told_to_wait(served):
    limits = Limits(queue=16)
    body = {"inputs": ["the cat sat"] * 4}
    with (
        running(served, limits=limits) as found,
        found.client() as client,
        ThreadPoolExecutor(64) as pool,
    ):
        asked = [pool.submit(client.post, "/embed", json=body) for _ in range(256)]
        codes = [one.result().status_code for one in asked]
    assert set(codes) <= {200, 429}
    assert codes.count(200) > 0


TEAM = """
import os, sys, time
import torch
from unmask.server.threads import load
from unmask.infer.model import Model

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
before = threads()
load({"one": sys.argv[1]})
for _ in range(100):  # they have been told to end
    time.sleep(0.05 * (threads() > before))
assert threads() == before, "loading has left threads behind"
Model.load(sys.argv[1])
assert threads() > before, "the model is too small to show it"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_loading_leaves_no_helpers_beside_those_of_the_thread_that_answers(tmp_path, tokenizer):
    """More of them than cores would sleep between two steps, and be slow to wake."""
    network = tiny_network(width=256, inner_width=1024)  # torch shares out what is large enough
    save_folder(tmp_path / "one", network, tokenizer)
    subprocess.run([sys.executable, "-c", TEAM, str(tmp_path / "one")], check=True, timeout=120)


@pytest.mark.parametrize("theirs", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive"}])
def test_helpers_wait_briefly_unless_somebody_knows_better(monkeypatch, theirs):
    for name in USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    wait_briefly()
    assert os.environ.get(SPIN_VARIABLE) == theirs.get(
        SPIN_VARIABLE, None if theirs else str(SPINS)
    )
    monkeypatch.delenv(SPIN_VARIABLE, raising=False)


@pytest.mark.slow
def test_whatever_fits_the_description_of_a_route_is_no_error_of_the_server(server):
    pytest.importorskip("schemathesis")
    run = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
        + [
            "--checks",
            CHECKS,
            "--max-examples",
            "15",
            "--seed",
            "1",
            "--phases",
            "examples,fuzzing",
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout[-6000:]
