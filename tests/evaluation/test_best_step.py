"""The models that a fine-tuning run keeps: the best, and those that its checkpoints need."""

import hashlib
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.small import At, Examined, data, recipe, run, small_model
from tests.train.conftest import Heard, metrics, state, steps_saved
from unmask.checkpoint.folder import Folder, load_folder
from unmask.evaluation.report.answers import TaskScores
from unmask.model.network import Network
from unmask.objectives.base import Objective
from unmask.system.errors import Stopped
from unmask.tasks.base import Detail
from unmask.tasks.classify import ClassifySettings

SAVES = {"evaluate": {"times": 16}, "loop": {"save_steps": 5}}
# By step: the best one changes four times, and checkpoints need models that are not the best.
MARKS = [0.0, 0.3, 0.1, 0.5, 0.2, 0.1, 0.4, 0.6, 0.3, 0.2, 0.1, 0.5, 0.8, 0.4, 0.3, 0.2, 0.1]
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}  # on a disk


class Restless:
    """An exam with marks that rise and fall; weights that it has seen before get the same again.

    It remembers weights by their digests, in a file, also for processes that come later. Weights
    that no undisturbed run had would need more marks than there are.
    """

    def __init__(self, seen: Path) -> None:
        self.seen = seen

    def measure(
        self, network: Network, objective: Objective | None
    ) -> tuple[dict[str, TaskScores], list[float]]:
        weights = network.heads["labels"].dense.weight.detach().numpy().tobytes()
        digest = hashlib.sha256(weights).hexdigest()
        known = self.seen.read_text().split() if self.seen.exists() else []
        if digest not in known:
            known.append(digest)
            self.seen.write_text("\n".join(known))
        mark = MARKS[known.index(digest)]
        scored = TaskScores(
            "classify", "accuracy", ClassifySettings(), {"accuracy": mark}, Detail()
        )
        return {"": scored}, [0.0]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Folder:
    return small_model(tmp_path_factory.mktemp("model") / "small")


def restless(model: Folder, out: Path, settings: dict[str, Any], **how: Any) -> Path:
    exam = Restless(out.parent / "seen")
    return run(Examined(model, data(), exam), out, recipe(**settings), **how).folder


def kept(folder: Path) -> set[int]:
    return {int(path.name[5:]) for path in (folder / "best").glob("step-*")}


def best(folder: Path, end: float = float("inf")) -> int:
    """The step with the highest mark up to a step; one before training counts for nothing."""
    entries = [entry for entry in metrics(folder, "eval") if entry["step"] <= end]
    trained = [entry for entry in entries if entry["step"]] or entries
    return max(trained, key=lambda entry: entry["accuracy"])["step"]


class Looking(Heard):
    """Looks at a run's folder after every step."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.found = folder, []

    def progress(self, what, unit, done, total=None, **more) -> None:
        needed = {best(self.folder), *(best(self.folder, end) for end in steps_saved(self.folder))}
        self.found.append((kept(self.folder), needed))


def test_a_run_without_checkpoints_on_the_way_keeps_one_best_model(model, tmp_path):
    looking = Looking(tmp_path / "run")
    restless(model, tmp_path / "run", {"evaluate": {"times": 16}}, console=looking)
    assert len(looking.found) == 16
    assert all(len(steps) == 1 for steps, _ in looking.found)
    assert len({frozenset(steps) for steps, _ in looking.found}) > 2, "the best never changed"
    assert kept(tmp_path / "run") == {best(tmp_path / "run")}


def test_a_run_keeps_the_best_model_and_those_that_its_checkpoints_need(model, tmp_path):
    looking = Looking(tmp_path / "run")
    restless(model, tmp_path / "run", SAVES, console=looking)
    assert all(steps == needed for steps, needed in looking.found)
    most = max(len(steps) for steps, _ in looking.found)
    assert 1 < most <= 3, "a checkpoint that needs another model than the best was not tried"
    assert steps_saved(tmp_path / "run") == [15, 16]
    assert kept(tmp_path / "run") == {best(tmp_path / "run", end) for end in (15, 16)}


def test_what_a_killed_process_was_writing_is_removed_on_resuming(model, tmp_path):
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        restless(model, tmp_path / "run", SAVES, console=At(7, stop))
    left = tmp_path / "run" / "best" / ".step-1.tmp-abc"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    restless(model, tmp_path / "run", SAVES, resume=True)
    assert not left.exists()


def test_what_a_killed_process_had_yet_to_remove_is_removed_on_resuming(model, tmp_path):
    """Also when there is no step left, after which it would be removed."""
    out = restless(model, tmp_path / "run", SAVES)
    before = ended(out)
    spare = next(step for step in range(1, 15) if step not in kept(out))
    shutil.copytree(out / "checkpoints" / "step-15", out / "checkpoints" / "step-10")
    shutil.copytree(out / "best" / f"step-{best(out)}", out / "best" / f"step-{spare}")
    restless(model, out, SAVES, resume=True)
    assert steps_saved(out) == [15, 16]
    assert kept(out) == {best(out, end) for end in (15, 16)}
    assert ended(out) == before


def forked(work: Callable[[], object]) -> int:
    """Work in a child; its exit code, negative if a signal ended it."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def kill_at(number: int) -> Callable[[], int]:
    """Kill this process just before its number-th change of a disk; returns how many there were."""
    count = 0

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        written = event == "open" and isinstance(given[2], int) and given[2] & 0o3
        if written or event in CHANGES:
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: count


def ended(folder: Path) -> dict[str, Any]:
    """All that a run has led to, but for the clock."""
    names = "model", *(f"best/step-{step}" for step in sorted(kept(folder)))
    return {
        "states": [state(folder, step) for step in steps_saved(folder)],
        "models": {name: (folder / name / "model.safetensors").read_bytes() for name in names},
        "manifest": load_folder(folder / "model").manifest["provenance"],
        "evaluations": metrics(folder, "eval"),
        "losses": [(entry["step"], entry["loss"]) for entry in metrics(folder)],
        "left behind": [str(path) for path in folder.rglob(".*.tmp-*")],
    }


@pytest.mark.parametrize("kills", [6, pytest.param(24, marks=pytest.mark.slow)])
def test_killed_at_any_change_of_the_disk_a_run_resumes_to_the_same_end(model, tmp_path, kills):
    settings = {"evaluate": {"times": 8}, "schedule": {"steps": 8}, "loop": {"save_steps": 3}}

    restless(model, tmp_path / "seen before", settings)  # so that no later run writes marks

    def whole() -> None:
        changes = kill_at(0)
        restless(model, tmp_path / "whole", settings)
        (tmp_path / "changes").write_text(f"{changes()}")

    assert forked(whole) == 0
    changes, expected = int((tmp_path / "changes").read_text()), ended(tmp_path / "whole")
    assert len(expected["models"]) > 2, "the checkpoints need no model but the best"
    assert expected["left behind"] == []
    for kill in range(kills):
        out = tmp_path / f"killed-{kill}"
        number = 1 + (2 * kill + 1) * changes // (2 * kills)

        def killed(out: Path = out, number: int = number) -> None:
            kill_at(number)
            restless(model, out, settings)

        assert forked(killed) == -signal.SIGKILL, number
        assert forked(lambda out=out: restless(model, out, settings, resume=True)) == 0, number
        assert ended(out) == expected, number
