"""`unmask pretrain` as a user runs it: mistakes at once, signals, and the same command to go on."""

import json
import re
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from tests.cli.asked import recipe_of
from tests.cli.test_cli import best_of_several, said
from tests.corpora import chatter, corpus_of
from tests.train.first_version import BERT
from unmask.checkpoint.folder import load_folder
from unmask.checkpoint.state import load_state

SMALL = "--size tiny --max-length 32 --batch-tokens 256 --threads 1 --no-preflight".split()
SETTINGS = "model.width=32 model.layers=1 model.heads=2 model.inner_width=64 data.held_out=10"
SMALL += [word for setting in SETTINGS.split() for word in ("--set", setting)]

# What is typed after `unmask pretrain`, and what the one line of the answer must say.
MISTAKES = {
    "unknown size": (
        ["CORPUS", "--out", "RUN", "--size", "tinny"],
        r"unknown size 'tinny'; did you mean 'tiny'\?",
    ),
    "unknown recipe": (
        ["brt", "CORPUS", "--out", "RUN"],
        r"unknown recipe 'brt'; did you mean 'bert'\?",
    ),
    "missing recipe": (["no.toml", "CORPUS", "--out", "RUN"], r"no\.toml: cannot be read \(No su"),
    "missing corpus": (
        ["nowhere", "--out", "RUN"],
        r"nowhere: no such folder; need a corpus that `unmask prepare` has finished",
    ),
    "two lengths": (
        ["CORPUS", "--out", "RUN", "--steps", "5", "--minutes", "1"],
        r"--steps and --minutes both set the length of the run\. Give one of them",
    ),
    "three arguments": (["a", "b", "CORPUS", "--out", "RUN"], r"3 arguments; need a corpus, or a"),
    "no folder": (["CORPUS"], r"[Mm]issing option '--out'"),
    "misspelled setting": (
        ["CORPUS", "--out", "RUN", "--set", "loop.save_step=3"],
        r"recipe \[loop\]: unknown key 'save_step'; did you mean 'save_steps'\?",
    ),
    "setting without a value": (
        ["CORPUS", "--out", "RUN", "--set", "seed"],
        r"--set seed: need name=value, as in model\.size=mini",
    ),
    "a size to be chosen, without a clock": (
        ["budget", "CORPUS", "--out", "RUN", "--steps", "100"],
        r'recipe: model\.size is "auto", which chooses .* Set it \(--minutes\), or',
    ),
    "shares of matrices that are turned": (
        ["budget", "CORPUS", "--out", "RUN", "--minutes", "1", "--shard"],
        r"--shard: Muon orthogonalises whole matrices.* set optimizer\.kind=adamw",
    ),
    "rows too long": (
        ["CORPUS", "--out", "RUN", "--max-length", "1024"],
        r"sequences of 1024 tokens, but the network reads at most 512",
    ),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    return corpus_of(tmp_path_factory.mktemp("prepared"), chatter(80)).path


@pytest.fixture(scope="module")
def answers(anew, prepared, tmp_path_factory):
    """Seconds and answer of each mistake, made once."""
    run = tmp_path_factory.mktemp("mistakes") / "run"
    places = {"CORPUS": str(prepared), "RUN": str(run)}

    def make(mistake):
        arguments = [places.get(word, word) for word in MISTAKES[mistake][0]]
        seconds, done = best_of_several(anew, "pretrain", *arguments)
        for _ in range(3):  # other work may be going on beside the tests
            if seconds >= 0.5:
                seconds = min(seconds, best_of_several(anew, "pretrain", *arguments)[0])
        assert not run.exists(), "a mistake begins no run"
        return seconds, done

    return cache(make)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_line(answers, mistake):
    message = said(answers(mistake)[1])
    assert re.search(MISTAKES[mistake][1], message), message


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_within_half_a_second(answers, mistake):
    assert answers(mistake)[0] < 0.5


def test_a_mistake_is_found_without_importing_torch(prepared):
    arguments = ["-X", "importtime", "-m", "unmask", "pretrain", str(prepared), "--out", "x"]
    done = subprocess.run(
        [sys.executable, *arguments, "--size", "tinny"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert re.search(r"\| +unmask\.train\.recipe$", done.stderr, re.MULTILINE)
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def phases_of(*words) -> list[tuple[float, int, int | None]]:
    """Share, length and tokens of a step of each phase that a command asks for."""
    phases = recipe_of("pretrain", *words).schedule.phases
    return [(phase.share, phase.length, phase.batch_tokens) for phase in phases]


def test_a_length_makes_one_phase(prepared, tmp_path):
    run = prepared, "--out", tmp_path / "run"
    assert phases_of(*run) == [(0.9, 128, 32_768), (0.1, 512, 131_072)]
    assert phases_of(*run, "--max-length", 64) == [(1.0, 64, 32_768)]
    assert phases_of("budget", *run, "--max-length", 64) == [(1.0, 64, None)]


def test_batch_tokens_are_set_for_every_phase(prepared, tmp_path):
    run = prepared, "--out", tmp_path / "run"
    found = phases_of(*run, "--batch-tokens", 4096)
    assert found == [(0.9, 128, 4096), (0.1, 512, 4096)]
    assert phases_of(*run, "--max-length", 64, "--batch-tokens", 640) == [(1.0, 64, 640)]


def test_a_batch_size_counts_the_sequences_of_each_phase(prepared, tmp_path):
    run = prepared, "--out", tmp_path / "run"
    assert phases_of(*run, "--batch-size", 8) == [(0.9, 128, 8 * 128), (0.1, 512, 8 * 512)]
    assert phases_of(*run, "--batch-size", 8, "--max-length", 64) == [(1.0, 64, 8 * 64)]


def test_translation_has_a_longest_text(tmp_path):
    (tmp_path / "pairs.tsv").write_text("source\ttarget\neins\tone\n")
    files = [word for flag in ("--train", "--dev") for word in (flag, tmp_path / "pairs.tsv")]
    recipe = recipe_of("translate", "train", *files, "--out", tmp_path / "r", "--max-length", 32)
    assert recipe.tokenizer.max_length == 32


@pytest.mark.parametrize("flags", [[], ["--max-length", 64], ["--batch-tokens", 640]], ids=str)
def test_a_recipe_of_the_first_version_is_read_and_its_new_names_are_told(
    unmask, prepared, tmp_path, flags
):
    path = tmp_path / "old.toml"
    path.write_text(BERT)
    run = prepared, "--out", tmp_path / "run"
    assert phases_of(path, *run, *flags) == phases_of("bert", *run, *flags)
    wrong = "--set", "train.keep=1"  # so that nothing is trained
    *notices, error = unmask("pretrain", path, *run, *flags, *wrong).stderr.splitlines()
    assert sorted(notices) == [
        "notice: the setting examples is now called data",
        "notice: the setting optimizer.clip is now called optimizer.max_grad_norm",
        "notice: the setting optimizer.decay is now called optimizer.weight_decay",
        "notice: the setting optimizer.rate is now called optimizer.learning_rate",
        "notice: the setting phases is now called schedule.phases",
        "notice: the setting train.keep is now called loop.keep_checkpoints",
    ]
    assert error.startswith("error: recipe: 'loop.keep_checkpoints' is 1; ")
    assert not (tmp_path / "run").exists()


def command(prepared, out, *flags) -> list[str]:
    words = ["-m", "unmask", "pretrain", prepared, "--out", out, *SMALL, *flags]
    return [sys.executable, *map(str, words)]


def at_work(arguments, folder, step):
    """A run in a process of its own that has gone beyond a step."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while reached(folder) <= step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def reached(folder) -> int:
    """The last step of the metrics, -1 before the first."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=-1)


def saved(folder) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))


def test_a_run_stopped_by_signals_is_resumed_by_the_same_command(prepared, tmp_path, unmask):
    out = tmp_path / "run"
    endless = command(prepared, out, "--steps", 100_000, "--set", "evaluate.times=0")

    first = at_work(endless, out, 3)
    refused = said(unmask(*endless[3:], "--resume"))
    assert f"{out}: process {first.pid} on " in refused
    assert "is using this run" in refused
    first.send_signal(signal.SIGTERM)
    _, told = first.communicate(timeout=30)
    assert first.returncode == 143
    (step,) = saved(out)
    assert f"stopped after step {step}; to continue, run the same command with --resume" in told
    assert "Traceback" not in told

    second = at_work([*endless, "--resume"], out, step)
    second.send_signal(signal.SIGINT)
    _, told = second.communicate(timeout=30)
    assert second.returncode == 130
    assert f"resuming from step {step}" in told
    assert "warning" not in told
    assert saved(out)[-1] > step
    assert load_state(out / "checkpoints" / f"step-{saved(out)[-1]}")


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
    """A run of four steps, and what it printed."""
    out = tmp_path_factory.mktemp("finished") / "run"
    made = command(prepared, out, "--steps", 4, "--set", "evaluate.times=2", "--seed", 3)
    done = subprocess.run(made, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return out, done


def test_a_run_says_where_its_model_and_its_report_are(finished):
    out, done = finished
    assert done.stdout == f"the model is in {out / 'model'}, the report in {out / 'report.html'}\n"
    assert (out / "report.html").exists()
    assert load_folder(out / "model").manifest["provenance"]["step"] == 4


def test_flags_are_settings(finished):
    out, _ = finished
    recipe = load_folder(out / "model").manifest["recipe"]
    assert recipe["seed"] == 3
    phases = [{"share": 1.0, "length": 32, "batch_tokens": 256}]
    rates = {"kind": "linear", "warmup": 0.01, "floor": 0.0}
    assert recipe["schedule"] == {**rates, "steps": 4, "phases": phases}
    assert (recipe["model"]["size"], recipe["model"]["width"]) == ("tiny", 32)
    assert json.loads((out / "facts.json").read_text())["threads"] == 1


def test_what_a_run_says_goes_to_standard_error(finished):
    _, done = finished
    assert " parameters\n" in done.stderr
    assert " tokens; batch size 256 tokens\n" in done.stderr
    assert "held-out loss" in done.stderr


def test_a_run_that_is_there_can_be_resumed_without_its_flags(finished, prepared, unmask):
    out, _ = finished
    done = unmask("pretrain", prepared, "--out", out, "--resume", "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert "resuming from step 4" in done.stderr
