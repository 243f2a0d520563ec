"""The loop: a run that was stopped, anywhere, goes on as if it had not been.

Runs are compared with runs of the same test, to the byte; nothing is pinned.
"""

import errno
import itertools
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.faults.test_damage import flipped
from tests.train.conftest import (
    LENGTH,
    STEPS,
    Heard,
    metrics,
    runner,
    single_threaded,
    state,
    steps_saved,
)
from unmask.checkpoint.folder import load_folder
from unmask.checkpoint.state import load_state, newest_state
from unmask.evaluation.held_out import HeldOutText
from unmask.jobs.pretrain import Pretrain
from unmask.objectives.mlm import MaskedLM
from unmask.system.errors import FolderError, Stopped, UserError
from unmask.train.compose import compose
from unmask.train.loop import Loop
from unmask.train.optim.precision import choose_precision
from unmask.train.optim.schedules import ScheduleSettings


class After(Heard):
    """Does something after one step of a run."""

    def __init__(self, step, do, said=None):
        super().__init__(said)
        self.step, self.do = step, do

    def progress(self, what, unit, done, total=None, **how):
        super().progress(what, unit, done, total, **how)
        if what == "training" and done == self.step:
            self.do()


def stop_after(step, number=signal.SIGTERM, said=None):
    """A console that sends this process a signal after a step."""
    return After(step, lambda: os.kill(os.getpid(), number), said)


def stopped(run, name, step, **how):
    with pytest.raises(Stopped):
        run(name, console=stop_after(step), **how)


@pytest.mark.parametrize("step", range(1, STEPS))
def test_stopped_after_any_step_a_run_goes_on_to_the_same_bits(run, whole, step):
    stopped(run, "again", step)
    folder = run("again", resume=True)
    assert state(folder, STEPS) == state(whole, STEPS)


def test_a_signal_after_the_last_step_lets_the_run_end(run, whole):
    folder = run("again", console=stop_after(STEPS))
    assert state(folder, STEPS) == state(whole, STEPS)
    assert (folder / "model").exists()


def test_a_run_stopped_again_and_again_goes_on_to_the_same_bits(run, whole):
    stopped(run, "again", 2)
    for step in (3, 4, 7):
        stopped(run, "again", step, resume=True)
    assert state(run("again", resume=True), STEPS) == state(whole, STEPS)


def test_dropout_and_the_objective_are_on_so_that_equality_means_something(run, whole):
    other = run("other", seed=1)
    assert state(other, STEPS)[0] != state(whole, STEPS)[0]
    dry = run("dry", model={"dropout": 0.0, "attention_dropout": 0.0})
    assert state(dry, STEPS)[0] != state(whole, STEPS)[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_granted_after_the_step_with_everything_saved(run, number):
    said = []
    with pytest.raises(Stopped, match=signal.Signals(number).name) as wish:
        run(console=stop_after(5, number, said))
    assert wish.value.exit_code == 128 + number
    assert said[-1] == "stopped after step 5; the same command with --resume continues"


def test_a_signal_in_the_middle_of_a_step_gives_the_step_up(run, whole, tmp_path, monkeypatch):
    """A step has two batches; the signal comes with the first of the sixth step."""
    seeds = itertools.count(1)
    plain = torch.manual_seed

    def told(seed):
        if next(seeds) == 11:  # ten for five steps
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(seed)

    said = []
    monkeypatch.setattr("unmask.train.steps.summed.torch.manual_seed", told)
    with pytest.raises(Stopped):
        run("amid", said=said)
    monkeypatch.undo()
    assert next(seeds) == 12  # the second batch was not begun
    assert said[-1] == "stopped after step 5; the same command with --resume continues"
    assert steps_saved(tmp_path / "amid") == [5]
    assert state(run("amid", resume=True), STEPS) == state(whole, STEPS)


def test_a_run_stopped_has_saved_its_step(run, tmp_path):
    stopped(run, "run", 5)
    assert steps_saved(tmp_path / "run") == [5]
    assert not (tmp_path / "run" / "model").exists()


def test_signals_are_the_callers_again_when_a_run_has_ended(run):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stopped(run, "run", 2)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_same_wish_passed_on_twice_is_one(run, tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        run("twice", console=After(3, twice))
    assert steps_saved(tmp_path / "twice") == [3]


def test_a_second_signal_leaves_at_once(run, tmp_path, whole, monkeypatch):
    monkeypatch.setattr("unmask.system.signals.SAME_REQUEST_SECONDS", -1.0)

    def twice():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    child = os.fork()
    if child == 0:
        try:
            run("twice", console=After(3, twice), loop={"save_steps": 2})
        finally:
            os._exit(77)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
    assert steps_saved(tmp_path / "twice") == [2]
    assert state(run("twice", resume=True), STEPS) == state(whole, STEPS)


def test_each_step_is_in_the_metrics_once_after_a_resumption(run, whole):
    stopped(run, "again", 5)
    folder = run("again", resume=True)
    assert [entry["step"] for entry in metrics(folder)] == list(range(1, STEPS + 1))
    assert [entry["step"] for entry in metrics(folder, "eval")] == [0, 4, 8]
    timed = {"seconds", "tokens_a_second"}
    for kind in ("train", "eval"):
        for one, other in zip(metrics(folder, kind), metrics(whole, kind), strict=True):
            assert {k: v for k, v in one.items() if k not in timed} == {
                k: v for k, v in other.items() if k not in timed
            }


def killed_after(run, name, step, **how):
    """A run in a process of its own that is killed without notice."""

    console = After(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        try:
            run(name, console=console, **how)
        finally:
            os._exit(77)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_steps_that_were_lost_are_told_once(run, tmp_path, whole):
    killed_after(run, "killed", 7, loop={"save_steps": 5})
    assert [entry["step"] for entry in metrics(tmp_path / "killed")] == list(range(1, 8))
    folder = run("killed", resume=True, loop={"save_steps": 5})
    assert [entry["step"] for entry in metrics(folder)] == list(range(1, STEPS + 1))
    assert state(folder, STEPS) == state(whole, STEPS)


def test_steps_that_were_lost_before_the_first_checkpoint_are_told_once(run, whole):
    killed_after(run, "killed", 4)
    folder = run("killed", resume=True)
    assert state(folder, STEPS) == state(whole, STEPS)
    assert [entry["step"] for entry in metrics(folder)] == list(range(1, STEPS + 1))
    assert [entry["step"] for entry in metrics(folder, "eval")] == [0, 4, 8]


def test_a_line_of_metrics_that_was_cut_off_is_passed_over(run, tmp_path):
    stopped(run, "run", 5)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    folder = run(resume=True)
    assert [entry["step"] for entry in metrics(folder)] == list(range(1, STEPS + 1))


def test_a_run_resumed_after_its_end_changes_nothing(run, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")

    def contents():
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {p: p.read_bytes() for p in files if p.suffix in (".safetensors", ".jsonl")}

    before = contents()
    assert len(before) == 4
    run(resume=True)
    assert contents() == before


def damage(folder, step, name="model.safetensors"):
    path = folder / "checkpoints" / f"step-{step}" / name
    path.write_bytes(flipped(path.read_bytes(), 8 * 1000 % (8 * path.stat().st_size)))


@pytest.fixture(scope="module")
def original(corpus, tmp_path_factory):
    place = tmp_path_factory.mktemp("original")
    with single_threaded():
        stopped(runner(corpus, place), "run", 6, loop={"save_steps": 3})
    assert steps_saved(place / "run") == [3, 6]
    return place / "run"


@pytest.fixture
def cut_short(original, tmp_path):
    """A run stopped after step 6, with checkpoints of steps 3 and 6."""
    return shutil.copytree(original, tmp_path / "run")


FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "config.json", "unmask.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_announced_and_the_one_before_it_used(cut_short, name):
    damage(cut_short, 6, name)
    said = []
    found = newest_state(cut_short / "checkpoints", said.append)
    assert found.path.name == "step-3"
    (line,) = said
    assert f"step-6/{name}: " in line
    assert line.startswith("warning: ")
    assert line.endswith("Going on from the one before it.")


def test_a_checkpoint_that_the_disk_cannot_read_is_announced_and_the_one_before_it_used(
    cut_short, monkeypatch
):
    plain = Path.open

    def failing(self, *args, **how):
        if self.parent.name == "step-6" and self.name == "model.safetensors":
            raise OSError(errno.EIO, "Input/output error", str(self))
        return plain(self, *args, **how)

    monkeypatch.setattr(Path, "open", failing)
    said = []
    assert newest_state(cut_short / "checkpoints", said.append).path.name == "step-3"
    (line,) = said
    assert "Input/output error" in line
    assert "step-6" in line


def test_from_the_checkpoint_before_a_damaged_one_a_run_goes_on_to_the_same_bits(
    run, cut_short, whole
):
    damage(cut_short, 6)
    said = []
    run(resume=True, loop={"save_steps": 3}, said=said)
    assert "resuming from step 3" in said
    assert state(cut_short, STEPS) == state(whole, STEPS)
    assert [entry["step"] for entry in metrics(cut_short)] == list(range(1, STEPS + 1))


def test_with_every_checkpoint_damaged_a_run_does_not_begin_again_in_silence(run, cut_short):
    damage(cut_short, 3)
    damage(cut_short, 6)
    with pytest.raises(FolderError, match=f"^{cut_short}/checkpoints: every checkpoint is damaged"):
        run(resume=True, loop={"save_steps": 3})
    assert steps_saved(cut_short) == [3, 6]


@pytest.mark.parametrize("name", ["optimizer.safetensors", "state.json", "unmask.json"])
def test_a_checkpoint_of_which_a_file_is_missing_is_no_checkpoint(cut_short, name):
    at = cut_short / "checkpoints" / "step-6"
    (at / name).unlink()
    with pytest.raises(FolderError, match="step-6"):
        load_state(at)


def test_a_half_written_checkpoint_is_swept_away(run, cut_short):
    left = cut_short / "checkpoints" / ".step-7.tmp-xyz"
    shutil.copytree(cut_short / "checkpoints" / "step-6", left)
    run(resume=True, loop={"save_steps": 3})
    assert not left.exists()


@pytest.mark.parametrize("keep", [2, 3])
def test_the_newest_checkpoints_are_kept(run, keep):
    folder = run(loop={"save_steps": 2, "keep_checkpoints": keep})
    assert steps_saved(folder) == list(range(2, STEPS + 1, 2))[-keep:]


def test_a_folder_of_another_name_is_left_alone(run, tmp_path):
    stopped(run, "run", 4, loop={"save_steps": 2})
    mine = tmp_path / "run" / "checkpoints" / "step-2-mine"
    shutil.copytree(tmp_path / "run" / "checkpoints" / "step-2", mine)
    run(resume=True, loop={"save_steps": 2})
    assert mine.exists()


def test_a_checkpoint_is_a_model_with_its_recipe_and_where_it_came_from(run, corpus):
    folder = run(loop={"save_steps": 4})
    for path, step in ((folder / "checkpoints" / "step-4", 4), (folder / "model", STEPS)):
        found = load_folder(path)
        assert found.manifest["provenance"]["step"] == step
        assert found.manifest["provenance"]["corpus sha256"] == corpus.digest
        assert compose(Pretrain.scope, found.manifest["recipe"]).schedule.steps == STEPS
        assert found.tokenizer.digest() == corpus.tokenizer.digest()
    last = (folder / "checkpoints" / f"step-{STEPS}" / "model.safetensors").read_bytes()
    assert (folder / "model" / "model.safetensors").read_bytes() == last


def test_a_run_saves_when_the_time_has_come(run):
    folder = run(loop={"save_minutes": 1e-9, "keep_checkpoints": 50})
    assert steps_saved(folder) == list(range(1, STEPS + 1))


def test_the_rate_of_every_step_is_the_schedules(run):
    folder = run(schedule={"steps": 10, "warmup": 0.2}, optimizer={"learning_rate": 0.01})
    rates = [entry["rate"] for entry in metrics(folder)]
    expected = [0.0025, 0.0075, *(0.01 * (1 - (i + 0.5 - 2) / 8) for i in range(2, 10))]
    assert rates == pytest.approx(expected)  # at the middle of each step
    assert rates == pytest.approx(
        [0.01 * ScheduleSettings(steps=10, warmup=0.2).factor((i + 0.5) / 10) for i in range(10)]
    )


def test_the_tokens_so_far_are_counted(run):
    entries = metrics(run())
    tokens = [entry["tokens"] for entry in entries]
    assert tokens == sorted(tokens)
    assert 0.8 * 8 * LENGTH < tokens[0] <= 8 * LENGTH


def test_only_every_so_many_steps_are_told_and_the_last(run):
    assert [entry["step"] for entry in metrics(run(loop={"log_steps": 3}))] == [3, 6, 8]


@pytest.mark.parametrize(
    ("evaluations", "steps"), [(0, []), (1, [0, 8]), (4, [0, 2, 4, 6, 8]), (3, [0, 3, 6, 8])]
)
def test_evaluations_are_spread_over_the_run_from_before_its_first_step(run, evaluations, steps):
    folder = run(evaluate={"times": evaluations})
    assert [entry["step"] for entry in metrics(folder, "eval")] == steps


def test_evaluating_changes_nothing_that_is_learned(run, whole):
    often = run("often", evaluate={"times": 8})
    assert state(often, STEPS)[0] == state(whole, STEPS)[0]


def test_a_run_of_minutes_ends_in_time_by_the_machines_clock(run):
    begun = time.monotonic()
    folder = run(schedule={"steps": None, "minutes": 0.02}, evaluate={"times": 2})
    assert time.monotonic() - begun >= 1.2
    *_, before, last = [entry["seconds"] for entry in metrics(folder)]
    assert before <= 1.2 <= last  # both are rounded


def test_a_run_of_minutes_ends_in_time_with_its_rate_at_the_end(run, clock):
    folder = run(schedule={"steps": None, "minutes": 0.05}, evaluate={"times": 2})
    entries = metrics(folder)
    assert 3.0 <= entries[-1]["seconds"] < 3.1
    assert entries[-1]["rate"] < 0.2 * max(entry["rate"] for entry in entries)
    assert entries[0]["rate"] > 0.0
    assert (folder / "model").exists()


def test_what_comes_before_the_first_step_is_part_of_the_minutes(run, monkeypatch, clock):
    """Half a second before, of three; at most half of a shorter run counts, with a notice."""
    planned = HeldOutText.__init__

    def slow(*arguments):
        clock.now += 0.5
        planned(*arguments)

    monkeypatch.setattr(HeldOutText, "__init__", slow)
    for minutes, least in ((0.05, 0.5), (0.01, 0.5 * 0.6)):
        said = []
        timed = {"steps": None, "minutes": minutes, "warmup": 0.9}
        folder = run(str(minutes), said=said, schedule=timed)
        first = metrics(folder, "eval")[0]["seconds"]
        assert least <= first < least + 0.2
        rates = [entry["rate"] for entry in metrics(folder, "train")]
        assert rates[0] < 0.01 * max(rates), "and the rate still rises from the first step on"
        told = [line for line in said if line.startswith("setting up took 0.0 of 0.01 minutes")]
        assert len(told) == (minutes == 0.01)


def test_an_evaluation_that_falls_due_during_another_is_made_up_for(run, monkeypatch, clock):
    """Each takes as long as the time between two of them, and a little longer."""
    evaluate = HeldOutText.evaluate

    def slow(*arguments):
        clock.now += 0.35
        return evaluate(*arguments)

    monkeypatch.setattr(HeldOutText, "evaluate", slow)
    monkeypatch.setattr(HeldOutText, "_affordable", lambda self, network: (LENGTH, 4))
    clock.tick = 0.005
    folder = run(schedule={"steps": None, "minutes": 0.02})  # 1.2 s, one every 0.3 s
    assert len(metrics(folder, "eval")) == 4  # at 0, 0.35, 0.7 and 1.05, and a little later each


def test_a_run_of_minutes_that_was_stopped_has_as_long_to_go_as_it_had(run, tmp_path, clock):
    class Soon(Heard):
        def progress(self, what, unit, done, total=None, *, note="", seconds_left=None):
            if what == "training" and seconds_left < 0.5 * 1.2:
                os.kill(os.getpid(), signal.SIGTERM)

    timed = {"schedule": {"steps": None, "minutes": 0.02}}
    with pytest.raises(Stopped):
        run(console=Soon(), **timed)
    (step,) = steps_saved(tmp_path / "run")
    clock.now += 5.0  # which is not training
    folder = run(resume=True, **timed)
    seconds = [e["seconds"] for e in metrics(folder)]
    assert seconds == sorted(seconds)
    assert len([s for s in seconds if s > seconds[step - 1]]) > 5
    assert 1.2 <= seconds[-1] < 1.3


@pytest.fixture(scope="module")
def in_two_phases():
    """Ten steps, the last of them on rows twice as long."""
    phases = [
        {"share": 0.9, "length": LENGTH, "batch_tokens": 8 * LENGTH},
        {"share": 0.1, "length": 2 * LENGTH, "batch_tokens": 8 * LENGTH},
    ]
    return {"schedule": {"steps": 10, "phases": phases}, "loop": {"save_steps": 9}}


def test_the_second_phase_begins_where_its_share_does(run, in_two_phases, monkeypatch):
    widths = []
    plain = MaskedLM.read

    def read(self, network, states, batch, **how):
        if network.training:
            widths.append(tuple(batch.tokens.shape))
        return plain(self, network, states, batch, **how)

    monkeypatch.setattr(MaskedLM, "read", read)
    folder = run(**in_two_phases)
    assert steps_saved(folder) == [9, 10]
    first, second = widths[: 9 * 2], widths[9 * 2 :]
    assert all(rows == 4 and width <= LENGTH for rows, width in first)
    assert len(second) == 2
    assert all(rows == 2 and LENGTH < width <= 2 * LENGTH for rows, width in second)
    cursors = [state(folder, step)[2]["cursor"] for step in (9, 10)]
    assert [cursor["phase"] for cursor in cursors] == [0, 1]
    assert cursors[1] == {"phase": 1, "epoch": 0, "row": 4}


@pytest.mark.parametrize("step", [8, 9])
def test_stopped_where_phases_meet_a_run_goes_on_to_the_same_bits(run, in_two_phases, step):
    whole = run("whole", **in_two_phases)
    stopped(run, "again", step, **in_two_phases)
    assert state(run("again", resume=True, **in_two_phases), 10) == state(whole, 10)


def test_a_run_over_many_epochs_goes_on_to_the_same_bits(run):
    """So small a corpus that it is read several times."""
    often = {
        "schedule": {"steps": 6, "phases": [{"length": LENGTH, "batch_tokens": 64 * LENGTH}]},
        "loop": {"micro_batch_tokens": 64 * LENGTH},
    }
    whole = run("whole", **often)
    assert state(whole, 6)[2]["cursor"]["epoch"] >= 2
    stopped(run, "again", 3, **often)
    assert state(run("again", resume=True, **often), 6) == state(whole, 6)


@pytest.fixture
def poison(monkeypatch):
    """From now on, the loss of chosen steps is not a number."""

    def at(*steps, value=float("nan"), pieces=2):
        plain, calls = MaskedLM.read, iter(range(10**9))

        def read(self, network, states, batch, **how):
            sums = plain(self, network, states, batch, **how)
            if network.training and next(calls) // pieces + 1 in steps:
                sums["mlm"] = sums["mlm"] * value
            return sums

        monkeypatch.setattr(MaskedLM, "read", read)

    return at


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_left_out_and_told(run, poison, value):
    poison(3, 6, value=value)
    said = []
    folder = run(said=said)
    warned = [line for line in said if "is not finite" in line]
    assert [line.partition(":")[0] for line in warned] == ["warning"] * 2
    assert warned[0].startswith("warning: step 3: the loss or the gradient is not finite (mlm ")
    assert warned[1].startswith("warning: step 6: ")
    for word in ("norm ", "rate ", "first examples [", "the weights are as before"):
        assert word in warned[0]
    weights, _, facts = state(folder, STEPS)
    assert facts["bad"] == 0, "they count in a row"
    assert facts["step"] == STEPS
    network = load_folder(folder / "model").network
    assert all(torch.isfinite(tensor).all() for tensor in network.state_dict().values())


def test_a_step_that_is_left_out_changes_neither_weights_nor_optimizer(run, poison):
    poison(3)
    folder = run(loop={"save_steps": 1, "keep_checkpoints": 20})
    assert state(folder, 3)[:2] == state(folder, 2)[:2]
    assert state(folder, 4)[0] != state(folder, 3)[0]
    assert state(folder, 3)[2]["cursor"] != state(folder, 2)[2]["cursor"], "its batch is passed by"


def test_too_many_steps_that_are_not_finite_end_the_run_naming_the_last_good_state(
    run, poison, tmp_path
):
    poison(*range(5, 9))
    folder = tmp_path / "run"
    with pytest.raises(UserError) as error:
        run(loop={"save_steps": 4, "max_skipped_steps": 2})
    message = str(error.value)
    assert message.startswith("step 7: the loss or the gradient is not finite")
    assert "That is 3 such steps in a row, more than loop.max_skipped_steps = 2." in message
    assert f"The last good checkpoint is step 4 in {folder / 'checkpoints'}." in message
    assert message.endswith("Start over with a lower learning rate.")
    assert steps_saved(folder) == [4]
    assert load_state(folder / "checkpoints" / "step-4").facts["bad"] == 0


def test_without_a_checkpoint_none_is_named(run, poison, tmp_path):
    poison(*range(1, 10))
    with pytest.raises(UserError) as error:
        run(loop={"max_skipped_steps": 0})
    assert steps_saved(tmp_path / "run") == []
    assert "checkpoint is step" not in str(error.value)


def test_a_rate_far_too_high_poisons_no_checkpoint(run, tmp_path):
    with pytest.raises(UserError, match="not finite|NaN or infinity"):
        run(
            optimizer={"learning_rate": 1e30, "max_grad_norm": 1e30},
            loop={"save_steps": 1, "max_skipped_steps": 2},
        )
    for step in steps_saved(tmp_path / "run"):
        found = load_state(tmp_path / "run" / "checkpoints" / f"step-{step}")
        tensors = [*found.network.state_dict().values(), *found.optimizer.values()]
        assert all(torch.isfinite(tensor).all() for tensor in tensors)


@pytest.mark.parametrize("where", ["weight", "moment"])
def test_what_is_not_finite_is_never_saved(run, tmp_path, monkeypatch, where):
    seen = {}
    plain = Loop.__init__

    def begin(self, *given, **how):
        plain(self, *given, **how)
        seen["loop"] = self

    def spoil():
        loop = seen["loop"]
        parameter = loop.given.network.encoder.embeddings.norm.weight
        kept = loop.optimizer.state[parameter]["exp_avg"]
        (parameter.data if where == "weight" else kept)[0] = float("inf")

    monkeypatch.setattr(Loop, "__init__", begin)
    folder = tmp_path / "run"
    name = "encoders.main.embeddings.norm.weight"
    name = name if where == "weight" else f"exp_avg/{name}"
    says = f"^{folder}/checkpoints: '{name}' holds NaN or infinity; it is not saved.* lower rate"
    with pytest.raises(FolderError, match=says):
        run(console=After(6, spoil), loop={"save_steps": 3})
    assert steps_saved(folder) == [3]


@pytest.mark.parametrize(("wanted", "found"), [("fp32", "fp32"), ("bf16", "bf16")])
def test_a_precision_that_was_asked_for_is_used(wanted, found):
    assert choose_precision(wanted, torch.device("cpu")) == found


def test_a_run_in_half_precision_keeps_whole_weights(run):
    folder = run(loop={"precision": "bf16"})
    network = load_folder(folder / "model").network
    assert {tensor.dtype for tensor in network.state_dict().values()} == {torch.float32}


def test_state_json_says_how_far_the_run_is(run):
    folder = run()
    facts = json.loads((folder / "checkpoints" / f"step-{STEPS}" / "state.json").read_text())
    clocks = {"seconds", "before"}
    assert set(facts) == {"step", "tokens", "bad", "evaluated", "slot", "cursor"} | clocks
    assert facts["tokens"] == metrics(folder)[-1]["tokens"]


def test_a_run_learns(run):
    folder = run(schedule={"steps": 60}, optimizer={"learning_rate": 5e-3})
    first, *_, last = metrics(folder, "eval")
    assert last["mlm"] < first["mlm"] - 0.3
