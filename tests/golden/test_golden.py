"""Folders that an earlier version wrote: this version loads them, and computes what it computed.

`make.py` wrote the folders with the code of commit 3616f50, together with the answers and losses of
that code. They are never written again. A test here that fails means that users lose the models
and the interrupted runs they have: fix the code that reads them, not the recorded numbers.
"""

import json
import shutil

import pytest

import unmask as api
from tests.golden.outputs import (
    ASK,
    FOLDERS,
    SEVERAL,
    checkpointed,
    differences,
    load,
    load_one_of_several,
    recorded,
)
from unmask.train.evaluator import with_present_keys

SAVED, STEPS = 6, 14  # the interrupted run: its checkpoint, and its last step
FOREIGN = {"processor": "a CPU of another maker", "threads": 64, "torch": "1.0", "unmask": "0.0.1"}


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ASK)
def test_a_model_folder_gives_the_recorded_answers(name):
    golden = recorded(name)
    assert differences(ASK[name](load(name), golden["inputs"]), golden["outputs"]) == []


@pytest.mark.parametrize("name", SEVERAL)
def test_the_folder_of_one_of_several_tasks_gives_the_recorded_answers(name):
    golden = recorded("multi")
    model = load(f"multi/models/{name}")
    found = SEVERAL[name](model, golden["inputs"][name])
    assert differences(found, golden["outputs"][name]) == []


@pytest.mark.parametrize("name", SEVERAL)
def test_each_head_of_a_model_of_several_tasks_gives_the_recorded_answers(name):
    golden = recorded("multi")
    found = SEVERAL[name](load_one_of_several(name), golden["inputs"][name])
    assert differences(found, golden["outputs"][name]) == []


def test_a_checkpoint_is_a_model_that_gives_the_recorded_answers():
    golden = recorded("interrupted")
    model = api.load(FOLDERS / "interrupted" / "run" / "checkpoints" / f"step-{SAVED}")
    assert differences(checkpointed(model, golden["inputs"]), golden["outputs"]) == []


@pytest.fixture(scope="module")
def resumed(unmask, tmp_path_factory):
    """What `unmask pretrain --resume` prints, and its run: begun elsewhere, resumed to its end."""
    golden, run = FOLDERS / "interrupted", tmp_path_factory.mktemp("golden") / "run"
    shutil.copytree(golden / "run", run)
    facts = json.loads((run / "facts.json").read_text())
    assert facts.keys() >= FOREIGN.keys()
    (run / "facts.json").write_text(json.dumps({**facts, **FOREIGN}))
    done = unmask("pretrain", golden / "corpus", "--out", run, "--resume", "--threads", 1)
    assert done.returncode == 0, done.stderr
    return done, run


def test_an_interrupted_run_resumes_from_its_checkpoint_to_its_end(resumed):
    done, run = resumed
    assert [entry["step"] for entry in metrics(run) if entry["kind"] == "train"] == list(
        range(1, STEPS + 1)
    )
    assert f"step {SAVED}" in done.stderr
    assert api.load(run / "model").fill("anna lives in [MASK] .")


def test_a_resumed_run_has_the_recorded_losses_step_by_step(resumed):
    before = metrics(FOLDERS / "interrupted" / "run")
    expected = [
        *(entry for entry in before if entry["step"] <= SAVED),
        *recorded("interrupted")["metrics"],
    ]
    found = {(entry["kind"], entry["step"]): entry for entry in metrics(resumed[1])}
    assert found.keys() == {(entry["kind"], entry["step"]) for entry in expected}
    for entry in recorded("interrupted")["metrics"]:
        entry = with_present_keys(entry)
        own = found[entry["kind"], entry["step"]]
        assert differences({key: own[key] for key in entry}, entry) == [], entry["step"]


def test_another_cpu_or_version_is_a_warning_and_no_reason_to_refuse(resumed):
    for name, value in FOREIGN.items():
        (line,) = (own for own in resumed[0].stderr.splitlines() if f"{name} was" in own)
        assert line.startswith("warning: "), line
        assert repr(value) in line
