"""A user's own task whose objective has parameters, a companion and a folder of its own."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file

from tests.extension.conftest import command, environment, plugin, settings
from tests.extension.test_objectives import same, tensors
from tests.extension.test_tasks import serving
from unmask import load
from unmask.train.run_folder import read_metrics

STEPS, SAVED, HARDER = 60, 20, 10.0
OFF = [
    "model.frozen=0",
    "loop.precision=fp32",
    "optimizer.learning_rate=5e-3",
    "task.teacher=bert/model",
]


def finetuning(out: str, *changes: str) -> list[str]:
    words = ["finetune", "tutored", "bert/model", "--train", "said.train.txt"]
    words += ["--dev", "said.dev.txt", "--out", out, "--batch-size", "16", "--threads", "1"]
    own = [
        *OFF,
        f"schedule.steps={STEPS}",
        f"loop.save_steps={SAVED}",
        "evaluate.times=3",
        *changes,
    ]
    return [*words, "--no-preflight", *settings(*own), *plugin("tutored")]


@pytest.fixture(scope="module")
def whole(world) -> Path:
    """An undisturbed run."""
    draw, words = random.Random(0), "red big old quiet cat dog bird".split()
    lines = [" ".join(draw.choices(words, k=draw.randint(1, 4))) + "\n" for _ in range(96)]
    (world / "said.train.txt").write_text("".join(lines))
    (world / "said.dev.txt").write_text("".join(lines[::12]))
    command(world, *finetuning("tutored"))
    return world


@pytest.mark.slow
def test_the_held_out_loss_is_that_of_the_trained_objective_as_it_is_evaluated(whole):
    metrics = read_metrics(whole / "tutored")
    losses = [entry["loss"] for entry in metrics if entry["kind"] == "eval"]
    trained = [entry for entry in metrics if entry["kind"] == "train"]
    assert losses[-1] < 0.1 * losses[0]
    assert {"distance", "tutored"} <= trained[0].keys()
    assert losses[0] == pytest.approx(trained[0]["distance"] / HARDER, rel=0.2)


@pytest.mark.slow
def test_what_it_publishes_are_models_and_its_own_parameters_are_in_none(whole):
    run = whole / "tutored"
    assert {key for key in tensors(run, STEPS) if key.startswith("objective.")} == {
        "objective.safetensors/map.weight",
        "objective.safetensors/map.bias",
    }
    model, helper = load(run / "model"), load(run / "models" / "helper")
    assert (list(model.network.encoders), list(model.network.heads)) == (["main"], ["decoder"])
    assert (list(helper.network.encoders), list(helper.network.heads)) == (["main"], [])
    manifests = [json.loads((model.path / "unmask.json").read_text()) for model in (model, helper)]
    assert manifests[0]["task"]["name"] == "tutored"
    assert "right" in manifests[0]["provenance"]["scores"]
    assert manifests[1].get("task") is None
    assert "scores" not in manifests[1]["provenance"]
    assert len(manifests[0]["provenance"]["teacher sha256"]) == 64
    for folder in (model.path, helper.path):
        assert not [name for name in load_file(folder / "model.safetensors") if "map" in name]


@pytest.mark.slow
def test_it_begins_as_its_objective_says(whole):
    command(whole, *finetuning("begun", "schedule.steps=1", "optimizer.learning_rate=1e-9"))
    helper = load(whole / "begun" / "models" / "helper").network.encoder.state_dict()
    for name, tensor in load(whole / "bert" / "model").network.encoder.state_dict().items():
        torch.testing.assert_close(helper[name], tensor, rtol=0.0, atol=1e-6, msg=name)


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_bits(whole):
    words, run = finetuning("killed"), whole / "killed"
    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", *words],
        cwd=whole,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while not (run / "checkpoints" / f"step-{SAVED}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    command(whole, *words, "--resume")
    assert same(tensors(run, STEPS), tensors(whole / "tutored", STEPS))
    held = [
        [(e["step"], e["loss"]) for e in read_metrics(whole / name) if e["kind"] == "eval"]
        for name in ("killed", "tutored")
    ]
    assert held[0] == held[1]


@pytest.mark.slow
def test_evaluate_says_that_the_loss_of_a_published_model_is_not_known(whole):
    done = command(whole, "evaluate", "tutored/model", "said.dev.txt", *plugin("tutored"))
    assert done.stdout.startswith("right ")
    assert "loss" not in done.stdout
    assert "said.dev.txt: the loss is unknown, " in done.stderr


@pytest.mark.slow
def test_what_it_streams_is_what_the_server_sends(whole):
    body = {"items": [{"text": "red big old"}], "stream": True}
    with serving(whole, "tutored/model", *plugin("tutored")) as address:
        response = httpx.post(f"{address}/ask/tutored", json=body, timeout=60)
    events = [json.loads(line[6:]) for line in response.text.split("\n") if line]
    *growing, whole_answer = [event["text"] for event in events[:-1]]
    assert growing
    assert all(text.endswith(" ...") for text in growing)
    assert not whole_answer.endswith("...")
