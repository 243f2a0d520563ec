"""Callbacks of users: each entry of the metrics as a copy, and a failing one does no harm."""

import json
import re

import pytest

import unmask
from tests.train.conftest import STEPS, state
from unmask.system import plugins
from unmask.train.listeners import CallbackListener


@pytest.fixture
def callback(monkeypatch):
    """Register a callback for this test."""
    own = {kind: dict(known) for kind, known in plugins._registered.items()}
    monkeypatch.setattr(plugins, "_registered", own)
    return lambda name, function: unmask.register("callback", name, function)


def test_a_callback_gets_each_entry_as_it_is():
    seen, entry = [], {"step": 1, "masked_predictions": [{"predictions": ["a"]}]}
    observer = CallbackListener("mine", seen.append, print)
    observer(entry)
    assert dict(seen[0]) == entry
    assert seen[0] is not entry


def test_it_cannot_change_what_is_recorded():
    entry = {"step": 1, "masked_predictions": [{"predictions": ["a"]}]}
    told = json.dumps(entry)

    def meddle(given):
        given["masked_predictions"][0]["predictions"].append("b")
        given["masked_predictions"].clear()

    said = []
    CallbackListener("meddle", meddle, said.append)(entry)
    assert json.dumps(entry) == told
    assert said == [], "it has a copy of its own"

    def replace(given):
        given["step"] = 2

    CallbackListener("replace", replace, said.append)(entry)
    assert json.dumps(entry) == told
    assert "does not support item assignment" in said[0]


def test_one_that_fails_is_told_once_and_not_called_again():
    calls, said = [], []

    def fail(given):
        calls.append(given["step"])
        raise ValueError("no\nfile")

    observer = CallbackListener("fragile", fail, said.append)
    for step in range(3):
        observer({"step": step})
    assert calls == [0]
    assert said == [
        "warning: callback 'fragile' failed and is not called again: ValueError: no file"
    ]


def test_one_that_works_is_called_every_time_beside_one_that_fails():
    seen, said = [], []
    observers = [CallbackListener("fails", lambda given: 1 / 0, said.append)]
    observers.append(
        CallbackListener("works", lambda given: seen.append(given["step"]), said.append)
    )
    for step in range(3):
        for observer in observers:
            observer({"step": step})
    assert seen == [0, 1, 2]
    assert len(said) == 1


def test_a_wish_to_stop_is_not_held_up():
    def interrupted(given):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CallbackListener("mine", interrupted, print)({"step": 1})


def test_a_run_shows_its_metrics_to_every_callback_and_learns_the_same(run, whole, callback):
    seen, said, times = [], [], []

    def meddle(given):
        times.append(given["step"])
        given["loss"] = 0.0

    callback("keep", lambda given: seen.append(dict(given)))
    callback("meddle", meddle)
    folder = run("watched", said=said)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert seen == lines
    assert [entry["step"] for entry in seen if entry["kind"] == "train"] == [*range(1, STEPS + 1)]
    assert len(times) == 1
    warned = [line for line in said if "callback" in line]
    assert len(warned) == 1
    assert re.match("warning: callback 'meddle' failed and is not called again: TypeError", *warned)
    assert state(folder, STEPS) == state(whole, STEPS)
    assert "callback 'meddle' failed" in (folder / "log.txt").read_text()
