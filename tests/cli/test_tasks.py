"""`unmask finetune`, `evaluate`, `predict` and `check`, as a user runs them."""

import json
import subprocess
import sys

import pytest

from tests.cli.test_cli import rows, said
from unmask.checkpoint.folder import load_folder, save_folder

SMALL = ["--epochs", "4", "--batch-size", "8", "--learning-rate", "5e-3", "--threads", "1"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A text with a cat or a dog in it; the label says which."""
    folder = tmp_path_factory.mktemp("data")
    for name, start in (("train", 0), ("dev", 1)):
        rows = [
            f"the {('cat', 'dog')[i % 2]} sat {'on the mat ' * (i % 3)}\t{('meow', 'wuff')[i % 2]}"
            for i in range(start, start + 40)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tsound", *rows]) + "\n")
    return folder


@pytest.fixture(scope="module")
def trained(unmask, tiny, files, tmp_path_factory):
    """The answer of a run, and its folder."""
    out = tmp_path_factory.mktemp("runs") / "run"
    given = ["--train", files / "train.tsv", "--dev", files / "dev.tsv", "--label", "sound"]
    return unmask("finetune", "classify", tiny, *given, "--out", out, *SMALL), out


def test_a_run_prints_its_scores_and_tells_the_rest_beside_them(trained):
    done, out = trained
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.8
    assert "text is column 'text', label is column 'sound'" in done.stderr
    assert f"model      {out / 'model'}" in done.stderr
    assert (out / "report.html").exists()


def test_evaluation_says_what_training_said(unmask, trained, files):
    done, out = trained
    found = unmask("evaluate", out / "model", files / "dev.tsv", "--label", "sound")
    assert found.returncode == 0, found.stderr
    scores = dict(line.split() for line in found.stdout.splitlines()[:4])
    for name in ("accuracy", "macro_f1"):
        assert float(scores[name]) == pytest.approx(json.loads(done.stdout)[name], abs=1e-4)


def test_lines_of_standard_input_are_answered_in_their_order(unmask, trained):
    _, out = trained
    lines = 'the cat sat\n{"text": "the dog"}\n\nthe cat\n'
    found = unmask("predict", out / "model", stdin=lines)
    assert found.returncode == 0, found.stderr
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    labels = [answer["labels"] for answer in answers]
    assert len(labels) == 4, "the blank line has an answer, so that answer N belongs to line N"
    assert [*labels[:2], labels[3]] == [["meow"], ["wuff"], ["meow"]]
    counts = "4 lines read, 4 answers written, 0 skipped; 1 blank line read as empty text"
    assert found.stderr.splitlines()[-1] == f"standard input: {counts}"
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)


def test_a_bad_line_of_standard_input_is_named(unmask, trained):
    _, out = trained
    assert "standard input:2: 'text' is 7; expected a text" in said(
        unmask("predict", out / "model", stdin='the cat\n{"text": 7}\n')
    )


def test_skipped_records_are_named_and_counted(unmask, trained, tmp_path):
    _, out = trained
    path = tmp_path / "rows.csv"
    path.write_text('text\nthe cat\n""\nthe dog\n')
    refused = unmask("predict", out / "model", path)
    assert refused.returncode == 2
    assert f"error: {path}:3: the text is empty; need some text." in refused.stderr
    assert refused.stderr.endswith("--on-bad skip.\n")
    found = unmask("predict", out / "model", path, "--on-bad", "skip")
    assert found.returncode == 0
    assert len(found.stdout.splitlines()) == 2
    skipped, counts = found.stderr.splitlines()[-2:]
    assert skipped.startswith(f"skipped: {path}:3: the text is empty")
    assert counts == f"{path}: 3 records read, 2 answers written, 1 skipped"


def test_a_sound_file_has_no_faults(unmask, files):
    done = unmask("check", files / "train.tsv", "--label", "sound")
    assert done.returncode == 0, done.stderr
    assert "40 examples for classify" in done.stdout
    assert "labels: meow 20, wuff 20" in done.stdout


def test_every_fault_is_listed_with_its_line(unmask, tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_text("text\tlabel\na cat\tgood\n\tbad\na dog\n")
    done = unmask("check", path)
    assert done.returncode == 2
    faults = [line for line in done.stdout.splitlines() if line.startswith("fault: ")]
    assert [line.split(":")[2] for line in faults] == ["3", "4", "2"]
    assert "3 faults" in done.stderr


def test_any_column_can_be_named_by_its_field(unmask, tiny, trained, tmp_path):
    _, out = trained
    path = tmp_path / "rows.csv"
    path.write_text("id,body,sound\n1,the cat,meow\n2,the dog sat,wuff\n")
    named = ["--column", "text=body"]
    found = unmask("predict", out / "model", path, *named)
    assert [json.loads(line)["labels"] for line in found.stdout.splitlines()] == [
        ["meow"],
        ["wuff"],
    ]
    labelled = [*named, "--column", "label=sound"]
    for words in (("evaluate", out / "model", path), ("check", path)):
        done = unmask(*words, *labelled)
        assert done.returncode == 0, done.stderr
        assert "text is column 'body', label is column 'sound'" in done.stdout + done.stderr
    given = ["--train", path, "--dev", path, "--out", tmp_path / "run", "--epochs", "1"]
    done = unmask("finetune", "classify", tiny, *given, *labelled, "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "text is column 'body', label is column 'sound'" in done.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--column", "text"], "--column text: need FIELD=COLUMN, as in text=review."),
        (["--column", "=a"], "--column =a: need FIELD=COLUMN"),
        (["--column", "text="], "--column text=: need FIELD=COLUMN"),
        (["--text", "a", "--column", "text=b"], "text=b: 'text' already has a column. Choose one"),
        (["--column", "txt=a"], "field 'txt'; did you mean 'text'? The fields are second, text."),
        (["--column", "label=a"], "--label: unknown field 'label'; there is none of that name."),
        (["--column", "second=a"], "unknown column 'a'"),
    ],
)
def test_a_column_that_cannot_be_is_refused(unmask, trained, files, given, says):
    _, out = trained
    assert says in said(unmask("predict", out / "model", files / "dev.tsv", *given))


def test_info_lists_what_a_model_can_be_asked(unmask, trained, tiny):
    _, out = trained
    found = dict(rows(unmask("info", out / "model").stdout))
    assert found["task"] == "classify"
    assert found["field text"] == "text, required. The text, or the first of a pair."
    assert found["field second"] == "text, optional. The second text of a pair."
    answered = unmask("predict", out / "model", stdin=found["example"])
    assert "labels" in json.loads(answered.stdout)
    assert "task" not in dict(rows(unmask("info", tiny).stdout)), "it was not fine-tuned"


def test_info_says_that_the_task_of_a_plugin_is_not_known(unmask, trained, tmp_path):
    _, out = trained
    model = load_folder(out / "model")
    save_folder(tmp_path / "m", model.network, model.tokenizer, task={"name": "highlight"})
    done = unmask("info", tmp_path / "m")
    assert done.returncode == 0, done.stderr
    assert "an unknown task, 'highlight'" in done.stdout
    assert "--plugin FILE.py" in done.stdout


def test_what_is_missing_is_asked_for(unmask, tiny, files):
    done = unmask("finetune", "classify", tiny, "--out", "run")
    assert "need a model and --train FILE" in said(done)
    done = unmask("finetune", "multi", tiny, "--out", "run")
    assert "need a recipe and a model" in said(done)


def test_an_unknown_task_is_answered_with_the_nearest(unmask, tiny, files):
    given = ["--train", files / "train.tsv", "--dev", files / "dev.tsv", "--out", "run"]
    assert "unknown task 'clasify'; did you mean 'classify'?" in said(
        unmask("finetune", "clasify", tiny, *given)
    )


def test_a_model_that_was_not_fine_tuned_has_no_answers(unmask, tiny):
    line = said(unmask("predict", tiny, stdin="the cat\n"))
    assert "finetune" in line


@pytest.mark.slow
def test_two_processes_fine_tune_a_model_together(tiny, files, tmp_path):
    """They agree on the best step and on when there is nothing more to learn."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "unmask", "finetune", "classify", str(tiny)]
    command += ["--train", str(files / "train.tsv"), "--dev", str(files / "dev.tsv")]
    command += ["--label", "sound", "--out", str(tmp_path / "run"), *SMALL, "--set"]
    command += ["evaluate.patience=4", "--set", "evaluate.times=20", "--epochs", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    (answer,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert answer["accuracy"] > 0.8
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] < 40
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
