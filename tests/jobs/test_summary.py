"""The tables that one run and several runs end with, line by line."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.train.conftest import Heard
from unmask.data.labelled.columns import Columns
from unmask.jobs.summary import command_for_files, say_several, say_summary, seed_rows
from unmask.tasks.classify import Classify
from unmask.tasks.qa import Qa
from unmask.tasks.translate import Translate
from unmask.train.run import Outcome


class Job:
    """A job whose run is over."""

    def main_metrics(self) -> list[str]:
        return ["f1"]

    def next_command(self, run: Path) -> list[str]:
        return ["unmask", "predict", str(run / "model"), "a b.txt"]


def finished(tmp_path, monkeypatch, entries, summary):
    """What is printed for a run with these metrics, from the folder above it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "report.html").write_text("")
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (tmp_path / "run" / "metrics.jsonl").write_text(lines)
    console = Heard()
    say_summary(console, Job(), Outcome(Path("run"), summary))
    assert all(len(line) <= 80 for line in console.said)
    return console.said


def evaluation(step, **scores):
    return {"kind": "eval", "step": step, "tokens": step * 10, **scores}


def test_a_fine_tuning(tmp_path, monkeypatch):
    scores = {"loss": 0.5, "precision": 0.75, "f1": 0.6667}
    entries = [
        evaluation(0, loss=0.7, precision=0.5, f1=0.25, metric=0.25),
        {"kind": "train", "step": 1500, "tokens": 123456, "seconds": 61.728},
        evaluation(1000, **scores, metric=0.6667),
        evaluation(1500, loss=0.4, precision=0.7, f1=0.6, metric=0.6),
    ]
    summary = {**scores, "metric": 0.6667, "step": 1000}
    assert finished(tmp_path, monkeypatch, entries, summary) == [
        "f1          0.6667   0.2500 before training",
        "precision   0.7500   0.5000 before training",
        "loss        0.5000   0.7000 before training",
        "steps        1,500   published: step 1,000, the best of 2 evaluations",
        "time        61.7 s   123,456 tokens, 2,000 per second",
        "model       run/model",
        "report      run/report.html",
        "next        unmask predict run/model 'a b.txt'",
    ]


def test_a_pre_training(tmp_path, monkeypatch):
    targets = {"mlm": "masked tokens", "nsp": "pairs", "own": "something"}
    scores = {"mlm": 4.4567, "mlm_accuracy": 0.312, "nsp": 0.5, "nsp_accuracy": 0.75, "own": 2.0}
    plain = {"unigram_loss": 6.4, "ln_v": 9.01, "unigram_accuracy": 0.051, "nsp_chance": 0.5}
    entries = [
        {"kind": "train", "step": 40, "tokens": 7200, "seconds": 7200.0},
        evaluation(40, targets=targets, **scores, **plain),
    ]
    assert finished(tmp_path, monkeypatch, entries, {"step": 40}) == [
        "held-out loss             4.457   unigram 6.400, ln V 9.010",
        "accuracy, masked tokens   31.2%   unigram 5.1%",
        "loss, pairs               0.500",
        "accuracy, pairs           75.0%   chance 50.0%",
        "loss, something           2.000",
        "steps                        40",
        "time                      2.0 h   7,200 tokens, 1 per second",
        "model                     run/model",
        "report                    run/report.html",
        "next                      unmask predict run/model 'a b.txt'",
    ]


def test_a_run_that_was_not_evaluated(tmp_path, monkeypatch):
    entries = [{"kind": "train", "step": 2, "tokens": 20, "seconds": 100.0}]
    assert finished(tmp_path, monkeypatch, entries, {"step": 2})[:2] == [
        "steps          2",
        "time     1.7 min   20 tokens, 0 per second",
    ]


def several(heads, rows):
    console = Heard()
    say_several(console, Job(), Path("runs"), heads, rows)
    assert console.said[-1] == "next   unmask predict runs/model 'a b.txt'"
    return console.said[:-1]


def test_several_seeds():
    found = {
        "seed-3": {"loss": 0.5, "f1": 0.9, "metric": 0.9, "step": 7},
        "seed-4": {"loss": 0.7, "f1": 0.8, "metric": 0.8, "step": 9},
    }
    means = {"loss": 0.6, "f1": 0.85, "metric": 0.85}
    deviations = {"loss": 0.1, "f1": 0.05, "metric": 0.05}
    assert several(*seed_rows(found, means, deviations, "seed-3", ["f1"])) == [
        "                        f1    loss",
        "seed-3 (best)       0.9000  0.5000",
        "seed-4              0.8000  0.7000",
        "mean                0.8500  0.6000",
        "standard deviation  0.0500  0.1000",
    ]


def test_a_table_of_several_runs_fits_a_terminal():
    heads = ["", *(f"a metric of name {i}" for i in range(9))]
    lines = several(heads, [["seed-0", *["0.5000"] * 9]])
    assert len(lines[0]) == len("seed-0") + 3 * (2 + 18)
    assert lines[1].split() == ["seed-0", *["0.5000"] * 3]


@pytest.mark.parametrize(
    ("kind", "files", "columns", "expected"),
    [
        (Classify, [], Columns(), "info MODEL"),
        (Classify, ["a.tsv", "b.tsv"], Columns(), "predict MODEL a.tsv --out answers.csv"),
        (
            *(Classify, ["a.csv.gz"], Columns("x", "y", "z", True)),
            "predict MODEL a.csv.gz --text x --second y --header --out answers.csv",
        ),
        (
            *(Qa, ["a.csv"], Columns(others={"context": "c", "answers": "d"})),
            "predict MODEL a.csv --column context=c --out answers.csv",
        ),
        (Translate, ["v.de", "v.en"], Columns(), "translate run MODEL v.de"),
        (Translate, ["v.tsv"], Columns("x", "y"), "evaluate MODEL v.tsv --text x --second y"),
    ],
)
def test_the_next_command_names_files_and_columns(
    tmp_path, monkeypatch, kind, files, columns, expected
):
    monkeypatch.chdir(tmp_path)
    found = command_for_files(kind, [Path(file) for file in files], columns, Path("MODEL"))
    assert found == ["unmask", *expected.split()]


def test_the_next_command_loads_the_plugin_of_the_task(tmp_path, monkeypatch):
    """It scores: such a task may ask for columns that its training data do not have."""

    class Own(Classify):
        """A task of the user."""

    module = ModuleType("unmask_plugin_own")
    module.__file__ = "own.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Own, "__module__", module.__name__)
    found = command_for_files(Own, [Path("a.csv")], Columns("x", label="y"), Path("MODEL"))
    expected = "unmask evaluate MODEL a.csv --text x --label y --plugin own.py"
    assert found == expected.split()
    assert command_for_files(Own, [], Columns(), Path("MODEL"))[-2:] == ["--plugin", "own.py"]


def test_the_next_command_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("answers.csv", "answers2.csv", "answers3.csv"):
        assert command_for_files(Classify, [Path("a.tsv")], Columns(), Path("m"))[-1] == name
        (tmp_path / name).write_text("")
