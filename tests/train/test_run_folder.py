"""The folder of a run: one process at a time, nothing overwritten unasked or resumed as another."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from tests.corpora import chatter, corpus_of
from tests.train.conftest import (
    Heard,
    metrics,
    pretrain,
    recipe,
    runner,
    single_threaded,
    state,
    steps_saved,
    table,
)
from unmask.jobs.pretrain import Pretrain
from unmask.system.console import Console
from unmask.system.errors import FolderError, SettingsError
from unmask.system.settings import read_toml
from unmask.train.run_folder import (
    BINDING,
    EXACT,
    RunFolder,
    begin,
    environment,
    open_run,
    read_metrics,
    stored_recipe,
)

SHORT = {"schedule": {"steps": 2}, "evaluate": {"times": 0}}


@pytest.fixture(scope="module")
def original(corpus, tmp_path_factory):
    with single_threaded():
        return runner(corpus, tmp_path_factory.mktemp("original"))("run", **SHORT)


@pytest.fixture
def finished(original, tmp_path):
    """A run of two steps."""
    return shutil.copytree(original, tmp_path / "run")


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path, Console())


def opened(path, **how):
    told = {"resume": False, "overwrite": False, "writes": True, "console": Console()}
    return open_run(path, **{**told, **how})


HOLD = """
import sys, time
from pathlib import Path
from unmask.system.console import Console
from unmask.train.run_folder import open_run
with open_run(Path(sys.argv[1]), resume=False, overwrite=False, writes=True, console=Console()):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds tmp_path/run, and its number."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process.pid
    process.kill()
    process.communicate()


def test_a_run_that_is_at_work_is_named_by_its_process_and_dies_with_it(run, holder, tmp_path):
    says = rf"^{tmp_path / 'run'}: process {holder} on \S+ is using this run\. Wait for it, st"
    for how in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(FolderError, match=says):
            run(**SHORT, **how)
    os.kill(holder, 9)
    os.waitpid(holder, 0)
    assert steps_saved(run(**SHORT)) == [2]


def test_a_run_that_is_there_is_neither_gone_on_with_nor_overwritten_unasked(run, finished):
    before = state(finished, 2)
    says = rf"^{finished}: the folder already holds a run. .*\(--resume\).*\(--overwrite\), or give"
    with pytest.raises(FolderError, match=says):
        run(**SHORT)
    assert state(finished, 2) == before


def test_overwriting_begins_anew_and_leaves_nothing_of_the_old_run(run, finished):
    run(overwrite=True, schedule={"steps": 1}, evaluate={"times": 0}, seed=3)
    assert steps_saved(finished) == [1]
    assert [entry["step"] for entry in metrics(finished)] == [1]
    assert read_toml(finished / "recipe.toml")["seed"] == 3


def test_a_folder_with_something_else_in_it_is_left_alone(run, tmp_path):
    precious = tmp_path / "run" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine")
    for how in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(
            FolderError, match="run: the folder is not empty and holds no run. Give"
        ):
            run(**SHORT, **how)
    assert [path.name for path in precious.parent.iterdir()] == ["precious"]


def test_a_file_in_the_place_of_the_folder_is_left_alone(run, tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(FolderError, match=r"run: already exists \(a file\); need a folder"):
        run(**SHORT)
    assert (tmp_path / "run").read_text() == "mine"


def test_an_empty_folder_and_one_of_a_run_killed_at_birth_are_taken(run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert steps_saved(run("empty", **SHORT)) == [2]
    with opened(tmp_path / "killed"):
        pass
    (tmp_path / "killed" / "facts.json").write_text("{}")  # the first thing that is written
    assert steps_saved(run("killed", **SHORT)) == [2]


def test_other_processes_than_the_first_write_nothing(tmp_path):
    with opened(tmp_path / "run", writes=False) as folder:
        folder.say("something")
        folder.record({"step": 1})
        folder.put("file", "text")
        folder.cut_back(0)
        begin(folder, Pretrain.scope, recipe(), {}, None)
    assert not (tmp_path / "run").exists()


def test_there_must_be_a_run_to_resume(corpus, tmp_path):
    says = rf"^{tmp_path / 'run'}: no run to resume: the folder has no recipe.toml. Check the"
    with pytest.raises(FolderError, match=says):
        pretrain(corpus.path, tmp_path / "run", None, resume=True)


def test_a_run_is_resumed_with_the_recipe_that_is_there(run, finished):
    said = []
    run(recipe=None, resume=True, said=said)
    assert "resuming from step 2" in said


# Ten settings, and the error when a run is resumed with another value of one of them.
OTHER = {
    "seed": ({"seed": 1}, r"seed \(was 0, is now 1\)"),
    "size": ({"model": {"size": "mini"}}, r"model.size \(was 'tiny', is now 'mini'\)"),
    "layers": ({"model": {"layers": 2}}, r"model.layers \(was 1, is now 2\)"),
    "pairs": ({"data": {"pairs": "off"}}, r"data.pairs \(was 'nsp', is now 'off'\)"),
    "held out": ({"data": {"held_out": 5}}, r"data.held_out \(was 10, is now 5\)"),
    "masking": (
        {"objective": {"name": "mlm", "mask_rate": 0.2}},
        r"objective.mask_rate \(was 0.15, is now 0.2\)",
    ),
    "rate": (
        {"optimizer": {"learning_rate": 0.5}},
        r"optimizer.learning_rate \(was 0.001, is now 0.5\)",
    ),
    "steps": ({"schedule": {"steps": 3}}, r"schedule.steps \(was 2, is now 3\)"),
    "length": (
        {"schedule": {"phases": [{"length": 16, "batch_tokens": 256}]}},
        r"schedule.phases.0.length \(was 32, is now 16\)",
    ),
    "precision": ({"loop": {"precision": "bf16"}}, r"loop.precision \(was 'fp32', is now 'bf16'\)"),
}


@pytest.mark.parametrize("what", OTHER)
def test_another_setting_is_refused_by_name(run, finished, what):
    change, says = OTHER[what]
    name, value = next(iter(change.items()))
    mixed = {**SHORT, name: {**SHORT[name], **value} if name in SHORT else value}
    before = state(finished, 2)
    start = f"^{finished}: the run was started with other settings: {says}. Resume with the same"
    with pytest.raises(FolderError, match=start):
        run(resume=True, **mixed)
    assert state(finished, 2) == before


def test_a_setting_spelled_out_is_the_one_left_out(run, finished):
    said = []
    spelled = {"model": {"dropout": 0.1, "norm": "post"}, "objective": {"mask_rate": 0.15}}
    run(resume=True, said=said, **SHORT, **spelled)
    assert "resuming from step 2" in said


def test_a_run_of_a_version_that_had_fewer_settings_goes_on(run, finished):
    text = (finished / "recipe.toml").read_text()
    lines = text.splitlines(keepends=True)
    fewer = [line for line in lines if not line.startswith(("epsilon", "prefetch"))]
    assert len(fewer) == len(lines) - 2
    (finished / "recipe.toml").write_text("".join(fewer))
    said = []
    run(resume=True, said=said, **SHORT)
    assert "resuming from step 2" in said


@pytest.fixture
def plugins(monkeypatch):
    """Pretend that these plugins were given, by their names and digests."""
    return lambda **given: monkeypatch.setattr(
        "unmask.system.plugins._loaded", {f"{name}.py": digest for name, digest in given.items()}
    )


def test_a_run_is_resumed_with_the_plugins_that_it_was_begun_with(run, plugins):
    plugins(mine="1" * 64, other="2" * 64)
    folder = run(**SHORT)
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["plugins"] == {"mine.py": "1" * 64, "other.py": "2" * 64}
    said = []
    run(resume=True, said=said, **SHORT)
    assert not any("plugin" in line for line in said)
    plugins(mine="1" * 64, other="3" * 64, third="4" * 64)
    run(resume=True, said=said, **SHORT)
    assert [line for line in said if "plugin" in line] == [
        "warning: the plugin other.py has changed since the run was started"
    ]
    plugins(other="2" * 64)
    says = f"^{folder}: the run was started with the plugin mine.py, .* Add --plugin mine.py"
    with pytest.raises(FolderError, match=says):
        run(resume=True, **SHORT)


def test_a_run_of_a_version_without_plugins_goes_on(run, finished):
    path = finished / "facts.json"
    facts = json.loads(path.read_text())
    assert facts.pop("plugins") == {}
    path.write_text(json.dumps(facts))
    said = []
    run(resume=True, said=said, **SHORT)
    assert "resuming from step 2" in said


def test_what_a_killed_writer_left_is_swept_away(run, finished):
    for name in (".report.html.tmp-123-abcd", ".curves.svg.tmp-9-ef"):
        (finished / name).write_text("half")
    (finished / "notes.tmp-1").write_text("mine")
    run(recipe=None, resume=True)
    assert not list(finished.glob(".*.tmp-*"))
    assert (finished / "notes.tmp-1").read_text() == "mine"


def test_another_corpus_is_refused(run, finished, tmp_path):
    other = corpus_of(tmp_path / "other", chatter(80, seed=1))
    says = (
        rf"^{finished}: the run was started with another corpus \(sha256 was \w{{12}}..., is now \w"
    )
    with pytest.raises(FolderError, match=says):
        run(resume=True, on=other, **SHORT)


@pytest.mark.parametrize("name", BINDING)
def test_what_binds_a_run_is_refused_by_name(finished, name):
    facts = json.loads((finished / "facts.json").read_text())
    folder = RunFolder(finished, Console())
    stored = stored_recipe(finished, Pretrain.scope)
    begin(folder, Pretrain.scope, stored, facts, stored)
    with pytest.raises(FolderError, match=f"was started with another {name} .* start a new run"):
        begin(folder, Pretrain.scope, stored, {**facts, name: "f" * 64}, stored)


@pytest.mark.parametrize("name", EXACT)
def test_what_decides_the_last_bits_is_announced(finished, name):
    facts = json.loads((finished / "facts.json").read_text())
    said = []
    folder = RunFolder(finished, Heard(said))
    stored = stored_recipe(finished, Pretrain.scope)
    begin(folder, Pretrain.scope, stored, {**facts, name: "another"}, stored)
    was = repr(facts[name])
    assert said == [
        f"warning: not bit-identical to an uninterrupted run, because {name} was {was} "
        "and is 'another'"
    ]


def test_a_run_resumed_with_other_threads_is_told_so_and_goes_on(run, finished):
    torch.set_num_threads(2)
    said = []
    run(resume=True, said=said, **SHORT)
    warned = [line for line in said if line.startswith("warning")]
    assert warned == [
        "warning: not bit-identical to an uninterrupted run, because threads was 1 and is 2"
    ]


def test_a_run_resumed_as_it_was_hears_no_warning(run, finished):
    said = []
    run(resume=True, said=said, **SHORT)
    assert not [line for line in said if "warning" in line]


@pytest.mark.parametrize(
    "change",
    [
        {"save_minutes": 1.0},
        {"save_steps": 1},
        {"keep_checkpoints": 5},
        {"log_steps": 2},
        {"max_skipped_steps": 3},
        {"prefetch": "on"},
        {"micro_batches": 2},
    ],
    ids=str,
)
def test_what_decides_nothing_that_is_learned_may_be_changed(run, finished, change):
    (finished / "model").rename(finished / "moved")
    run(resume=True, **SHORT, loop=change)
    assert (finished / "model").is_dir()


def test_what_the_run_is_made_of_is_written_down(finished, corpus):
    facts = json.loads((finished / "facts.json").read_text())
    assert facts["corpus"] == corpus.digest
    assert facts["tokenizer"] == corpus.tokenizer.digest()
    assert (facts["torch"], facts["threads"]) == (torch.__version__, 1)
    assert (facts["processes"], facts["shard"]) == (1, False)
    assert (facts["precision"], facts["micro_batches"]) == ("fp32", 1)
    assert set(facts) >= {*EXACT, *BINDING, "unmask", "begun"}
    assert facts["processor"]
    assert read_toml(finished / "recipe.toml")["optimizer"]["learning_rate"] == 1e-3


def test_the_recipe_is_written_down_in_full_so_that_new_defaults_change_no_old_run(finished):
    stored = read_toml(finished / "recipe.toml")
    assert stored["optimizer"]["beta2"] == 0.999
    assert stored["loop"]["keep_checkpoints"] == 2
    assert stored["schedule"]["phases"] == [{"share": 1.0, "length": 32, "batch_tokens": 256}]


def test_what_is_said_is_kept_with_its_time(run, tmp_path):
    said = []
    run(said=said, **SHORT)
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert [line[21:] for line in lines] == said
    assert all(line[4] == line[7] == "-" and line[13] == ":" for line in lines)


def test_metrics_are_read_back_but_for_a_line_that_was_cut_off(folder):
    folder.record({"kind": "train", "step": 1, "text": "é"})
    folder.record({"kind": "train", "step": 2})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert [entry["step"] for entry in folder.metrics()] == [1, 2]
    assert folder.metrics()[0]["text"] == "é"


def test_metrics_are_cut_back_to_a_step_which_stays(folder):
    for step in range(5):
        folder.record({"step": step})
    folder.cut_back(2)
    assert [entry["step"] for entry in folder.metrics()] == [0, 1, 2]


def test_a_run_without_metrics_has_none(folder):
    assert folder.metrics() == []


def test_every_listener_is_told_every_line_of_metrics(folder):
    heard, also = [], []
    folder.listeners += [heard.append, also.append]
    folder.record({"step": 1})
    folder.record({"step": 2})
    assert heard == also == [{"step": 1}, {"step": 2}]


def test_a_disk_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "log.txt").mkdir()
    with pytest.raises(FolderError, match=r"log.txt: could not be written \(Is a directory\)"):
        RunFolder(tmp_path, Console()).say("x")


def test_the_environment_is_the_same_twice_but_for_the_time():
    one, other = environment(), environment()
    one.pop("begun"), other.pop("begun")
    assert one == other
    assert (one["torch"], one["threads"]) == (torch.__version__, 1)


def test_a_wrong_recipe_begins_no_run(run, corpus, tmp_path):
    with pytest.raises(SettingsError, match="unknown key 'sede'"):
        run(recipe={**table(), "sede": 1})
    with pytest.raises(SettingsError, match="unknown key 'widht'"):
        run(model={"widht": 3})
    assert not (tmp_path / "run" / "recipe.toml").exists()
    assert steps_saved(run(**SHORT)) == [2], "so the fixed one can start in the same place"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"data": {"held_out": 60}}, "one in 60 of [0-9]+ documents is held out"),
        ({"shard": True}, "--shard: needs more than one process"),
        ({"data": {"held_out": 0}, "pairs from one": True}, "needs at least two"),
    ],
    ids=["held out", "shard", "one document"],
)
def test_a_run_that_cannot_be_begins_no_run(run, tmp_path, how, says):
    how = dict(how)
    if how.pop("pairs from one", False):
        how["on"] = corpus_of(tmp_path / "one", [["a b", "c d", "e f"]])
    with pytest.raises(ValueError, match=says):
        run(schedule={"steps": 2}, **how)
    assert steps_saved(run(**SHORT)) == [2]


def test_the_metrics_of_the_first_version_are_read_under_the_present_keys(tmp_path):
    entries = [
        {"kind": "train", "step": 1, "rate": 0.1, "norm": 2.0, "tokens_a_second": 5.0},
        {
            "kind": "eval",
            "step": 1,
            "how": {"": {"name": "qa"}},
            "asks": {"mlm": "hidden tokens"},
            "evaluated": 64,
            "blanks": [{"text": "a [MASK]", "truth": "b", "guesses": [["b", 0.5]]}],
        },
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert read_metrics(tmp_path) == [
        {
            "kind": "train",
            "step": 1,
            "learning_rate": 0.1,
            "grad_norm": 2.0,
            "tokens_per_second": 5.0,
        },
        {
            "kind": "eval",
            "step": 1,
            "task_settings": {"": {"name": "qa"}},
            "targets": {"mlm": "hidden tokens"},
            "evaluated_tokens": 64,
            "masked_predictions": [{"text": "a [MASK]", "truth": "b", "predictions": [["b", 0.5]]}],
        },
    ]


def test_a_term_with_a_former_key_as_its_name_keeps_it(tmp_path):
    entry = {"kind": "train", "step": 1, "rate": 3.0, "learning_rate": 0.1, "grad_norm": 2.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(entry))
    assert read_metrics(tmp_path) == [entry]
