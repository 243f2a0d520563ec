"""The table that a run ends with: it fits a terminal, and its last line is a command that works."""

import json
import shlex

import pytest

from tests.corpora import chatter, corpus_of
from tests.pairs import TRANSFORMER, write_pairs

QUICK = ["--threads", "1", "--no-preflight", "--set", "schedule.steps=2"]
QUICK += ["--set", "evaluate.times=1", "--batch-size", "4", "--max-length", "16"]


def squad() -> str:
    """Passages with a question each, in SQuAD's format."""
    paragraphs = []
    for i in range(20):
        answer = {"text": "cat", "answer_start": 4}
        asked = {"id": str(i), "question": "who sat ?", "answers": [answer]}
        paragraphs.append({"context": f"the cat sat on mat {i}", "qas": [asked]})
    return json.dumps({"data": [{"paragraphs": paragraphs}]})


TABLE = "".join(f"the cat sat {i},meow\nthe dog sat {i},wuff\n" for i in range(10))
TAGGED = "".join(f"the O\ncat B-PER\nsat{i} O\n\n" for i in range(20))
# Name of the task -> name and contents of its file, options, main score, the command without paths.
CASES = {
    "classify": (
        *("classify", "my rows.csv", f"body,sound\n{TABLE}", "--text body --label sound"),
        *("accuracy", "predict MODEL FILE --text body --out answers.csv"),
    ),
    "classify, without a header": (
        *("classify", "rows.csv", TABLE, "--column text=1 --label 2 --no-header"),
        *("accuracy", "predict MODEL FILE --text 1 --no-header --out answers.csv"),
    ),
    "regress": (
        *("regress", "rows.tsv", "text\tscore\n" + "".join(f"the {i}\t{i}.5\n" for i in range(20))),
        *("", "spearman", "predict MODEL FILE --out answers.csv"),
    ),
    "ner": ("ner", "names.conll", TAGGED, "", "f1", "predict MODEL FILE --out answers.csv"),
    "ner, as text": ("ner", "names.txt", TAGGED, "", "f1", "evaluate MODEL FILE"),
    "qa": ("qa", "squad.json", squad(), "", "f1", "predict MODEL FILE --out answers.csv"),
}


def table_of(said: str) -> list[list[str]]:
    """The lines of the table: its name, and what follows it."""
    lines = said.splitlines()
    last = next(i for i, line in enumerate(lines) if line.startswith("next "))
    names = ("steps ", "time ", "model ", "models ", "report ", "next ")
    first = last
    while lines[first - 1].startswith(names):
        first -= 1
    return [line.split(maxsplit=1) for line in lines[first : last + 1]]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_next_command_works_as_it_is(unmask, tiny, tmp_path, monkeypatch, case):
    task, name, text, options, main, expected = CASES[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    given = ["--train", name, *options.split(), "--out", "run", *QUICK]
    done = unmask("finetune", task, tiny, *given)
    assert done.returncode == 0, done.stderr
    rows = dict(table_of(done.stderr))
    assert rows["steps"].split()[0] == "2"
    assert rows["steps"].endswith("published: step 2, the best of 1 evaluation")
    assert (rows["model"], rows["report"]) == ("run/model", "run/report.html")
    assert json.loads(done.stdout.splitlines()[-1])["step"] == 2, "as a script reads it"
    scores = [line for line in done.stderr.splitlines() if line.endswith(" before training")]
    assert scores[0].split()[0] == main
    assert float(scores[0].split()[1]) == pytest.approx(json.loads(done.stdout)[main], abs=1e-4)
    assert scores[-1].split()[0] == "loss"
    words = shlex.split(rows["next"])
    assert words == ["unmask"] + [
        {"MODEL": "run/model", "FILE": name}.get(word, word) for word in expected.split()
    ]
    done = unmask(*words[1:])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "answers.csv").exists() == ("answers.csv" in words)


@pytest.mark.slow
def test_a_translator_is_given_the_held_out_sources(unmask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "data", train=40)
    settings = [part for change in TRANSFORMER for part in ("--set", change)]
    given = ["--from", "xx", "--to", "yy", "--threads", 1, *settings, "--out", "run"]
    done = unmask("translate", "train", "data", *given)
    assert done.returncode == 0, done.stderr
    next_command = dict(table_of(done.stderr))["next"]
    assert next_command == "unmask translate run run/model data/val.xx"
    assert len(unmask(*next_command.split()[1:]).stdout.splitlines()) == 20


@pytest.mark.slow
def test_pairs_without_dev_data_are_divided(unmask, tmp_path, monkeypatch):
    """A table of pairs can be scored again."""
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "data", train=40)
    sides = [
        (tmp_path / "data" / f"train.{side}").read_text().splitlines() for side in ("xx", "yy")
    ]
    lines = "".join(f"{a}\t{b}\n" for a, b in zip(*sides, strict=True))
    (tmp_path / "pairs.tsv").write_text(f"source\ttarget\n{lines}")
    settings = [part for change in TRANSFORMER for part in ("--set", change)]
    given = ["--train", "pairs.tsv", "--threads", 1, *settings, "--out", "run"]
    done = unmask("translate", "train", *given)
    assert done.returncode == 0, done.stderr
    assert " held out (data.dev_share 0.1, data.dev_seed 0; " in done.stderr
    next_command = dict(table_of(done.stderr))["next"]
    assert next_command == "unmask evaluate run/model pairs.tsv"
    assert unmask(*next_command.split()[1:]).returncode == 0


@pytest.mark.slow
def test_several_tasks_name_the_model_of_the_first(unmask, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(f"text,label\n{TABLE}")
    (tmp_path / "names.conll").write_text(TAGGED)
    (tmp_path / "tasks.toml").write_text(
        '[[tasks]]\nname = "sound"\ntask = { name = "classify" }\ntrain = "rows.csv"\n'
        '[[tasks]]\nname = "people"\ntask = { name = "ner" }\ntrain = "names.conll"\n'
    )
    done = unmask("finetune", "multi", "tasks.toml", tiny, "--out", "run", *QUICK)
    assert done.returncode == 0, done.stderr
    rows = dict(table_of(done.stderr))
    assert rows["models"] == "run/models"
    assert rows["next"] == "unmask predict run/models/sound rows.csv --out answers.csv"
    first = [line.split()[0] for line in done.stderr.splitlines() if "before training" in line]
    assert {*first[:2]} == {"sound.accuracy", "people.f1"}, "the scores that decide come first"
    assert unmask(*rows["next"].split()[1:]).returncode == 0


@pytest.mark.slow
def test_pre_training_ends_with_losses_beside_their_baselines(unmask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = corpus_of(tmp_path, chatter(80)).path
    settings = "model.width=32 model.layers=1 model.heads=2 model.inner_width=64 data.held_out=10"
    words = [word for setting in settings.split() for word in ("--set", setting)]
    words += ["--size", "tiny", "--steps", "2", "--max-length", "32", "--batch-tokens", "256"]
    words += ["--threads", "1", "--no-preflight", "--out", "run"]
    done = unmask("pretrain", corpus, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the model is in run/model, the report in run/report.html\n"
    lines = done.stderr.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("held-out loss  ")) :]
    assert all(len(line) <= 80 for line in table)
    assert " unigram " in table[0]
    assert ", ln V " in table[0]
    assert [line.split("  ")[0].partition(",")[0] for line in table[:4]] == [
        "held-out loss", "accuracy", "loss", "accuracy",
    ]  # fmt: skip
    assert table[3].endswith("chance 50.0%")
    rows = dict(table_of(done.stderr))
    assert rows["next"] == "unmask fill run/model 'The weather is [MASK] today.'"
    assert unmask(*shlex.split(rows["next"])[1:]).returncode == 0


def test_answers_are_written_to_a_table_by_the_command(unmask, tiny, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"text,label\n{TABLE}")
    given = ["--train", path, "--out", tmp_path / "run", *QUICK]
    assert unmask("finetune", "classify", tiny, *given).returncode == 0
    (tmp_path / "in.csv").write_text('n,text\n1,"the cat, ""sat"""\n2,\n3,the dog\n')
    command = ["predict", tmp_path / "run" / "model", tmp_path / "in.csv", "--on-bad", "skip"]
    done = unmask(*command, "--out", tmp_path / "out.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "n,text,label,score,probabilities"
    assert [line.partition(",")[0] for line in lines[1:]] == ["1", "3"]
    counts = f"{tmp_path / 'in.csv'}: 3 records read, 2 answers written, 1 skipped"
    assert done.stderr.splitlines()[-1] == counts
    again = unmask(*command, "--out", tmp_path / "out.csv")
    assert again.returncode == 2
    assert "already exists. Replace it with --overwrite" in again.stderr
    assert unmask(*command, "--out", tmp_path / "out.csv", "--overwrite").returncode == 0
    assert "--overwrite: replaces the file in --out" in unmask(*command, "--overwrite").stderr
