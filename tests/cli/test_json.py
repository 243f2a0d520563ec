"""`--json`: one object on standard output, with keys that docs/commands.md lists."""

import json

import pytest

from tests.cli.test_help import LEAVES

WITHOUT_RESULT = {"serve"}  # it runs until it is stopped
FILES = {"train": 0, "dev": 1}


def one_object(done):
    """The object that a verb prints, and nothing else."""
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, start in FILES.items():
        rows = [f"the {('cat', 'dog')[i % 2]} sat\t{i % 2}" for i in range(start, start + 16)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    (folder / "texts.txt").write_text("the cat sat on the mat.\na dog runn.\n\nthe cat.\n" * 20)
    return folder


@pytest.fixture(scope="module")
def run(unmask, tiny, data):
    """A fine-tuned model, and what its run printed."""
    files = ["--train", data / "train.tsv", "--dev", data / "dev.tsv", "--out", data / "run"]
    short = ["--epochs", 1, "--threads", 1, "--no-preflight"]
    return unmask("finetune", "classify", tiny, *files, *short, "--json"), data / "run" / "model"


@pytest.mark.parametrize(("command", "name"), LEAVES)
def test_every_verb_with_a_result_has_json(command, name):
    flags = {flag for param in command.params for flag in getattr(param, "opts", [])}
    assert ("--json" in flags) == (name[0] not in WITHOUT_RESULT)


def test_vocab_learn(unmask, data):
    out = data / "vocabulary"
    table = one_object(
        unmask("vocab", "learn", data / "texts.txt", "--size", 40, "--out", out, "--json")
    )
    assert table["folder"] == str(out)
    assert table["tokens"] <= 40
    keys = {"words", "distinct_words", "characters_spelled", "unknown_words", "tokens_per_word"}
    assert keys < table.keys()


def test_prepare(unmask, tiny, data):
    arguments = [data / "texts.txt", "--tokenizer", tiny, "--out", data / "corpus", "--json"]
    table = one_object(unmask("prepare", *arguments, "--workers", 1))
    assert table["folder"] == str(data / "corpus")
    assert table["finished"] is True
    assert table["records"]["read"] == 60, "a blank line ends a document, and is no record"
    assert table["documents"] > 0
    assert table["tokens"] > table["sentences"] > 0


def test_a_share_of_prepare_is_not_finished(unmask, tiny, data):
    many = data / "many"
    arguments = [data / "texts.txt", "--tokenizer", tiny, "--out", many, "--workers", 1, "--json"]
    arguments += ["--num-tasks", 2, "--task-id", 1]  # the only shard is that of task 0
    table = one_object(unmask("prepare", *arguments))
    assert table == {"folder": str(many), "finished": False}


def test_finetune_prints_its_scores(run):
    done, _ = run
    assert {"accuracy", "step"} <= one_object(done).keys()


def test_evaluate(unmask, run, data):
    table = one_object(unmask("evaluate", run[1], data / "dev.tsv", "--json"))
    assert table["scores"]["accuracy"] == one_object(run[0])["accuracy"]
    assert isinstance(table["details"], list)


def test_predict_prints_the_same_lines_with_and_without(unmask, run):
    with_json = unmask("predict", run[1], "--json", stdin="the cat\nthe dog\n")
    assert [json.loads(line)["labels"] for line in with_json.stdout.splitlines()]
    assert unmask("predict", run[1], stdin="the cat\nthe dog\n").stdout == with_json.stdout


def test_check_lists_what_it_found_also_where_there_are_faults(unmask, data, tmp_path):
    good = one_object(unmask("check", data / "dev.tsv", "--json"))
    assert good["file"] == str(data / "dev.tsv")
    assert good["faults"] == []
    assert good["facts"]
    (tmp_path / "bad.tsv").write_text("text\tlabel\na cat\tgood\n\tbad\n")
    done = unmask("check", tmp_path / "bad.tsv", "--json")
    assert done.returncode == 2
    assert "fault" in done.stderr
    assert "bad.tsv:3: the text is empty" in json.loads(done.stdout)["faults"][0]


def test_info(unmask, tiny, run):
    table = one_object(unmask("info", tiny, "--json"))
    assert table["architecture"] == "BertForPreTraining"
    assert table["parameters"] > 0
    assert table["config"]["layers"] == 4
    assert table["heads"] == ["pooler", "tokens", "pair"]
    assert table["vocabulary"] == {"tokens": 23, "lowercase": True}
    assert (table["labels"], table["task"], table["differences"]) == (None, None, [])
    tuned = one_object(unmask("info", run[1], "--json"))
    assert tuned["labels"]["names"] == ["0", "1"]
    assert tuned["task"]["name"] == "classify"
    assert "text" in tuned["task"]["fields"]
    assert "unmask" in one_object(unmask("info", "--json"))


def test_get(unmask, minilm):
    done = unmask("get", "minilm", "--json")
    assert one_object(done) == {"name": "minilm", "folder": str(minilm)}


def test_embed_into_a_file(unmask, tiny, data):
    out = data / "vectors.npy"
    table = one_object(unmask("embed", tiny, data / "texts.txt", "--out", out, "--json"))
    assert table == {
        "file": str(out),
        "vectors": 80,
        "blank_texts": 20,
        "truncated_texts": 0,
        "truncated_tokens": 0,
    }


def test_next(unmask, tiny):
    table = one_object(unmask("next", tiny, "the cat sat", "on the mat", "--json"))
    assert 0 < table["probability"] < 1
    assert table["follows"] is (table["probability"] >= 0.5)


def test_look(unmask, tiny, data):
    (data / "few.txt").write_text("the cat sat\n" * 3)
    arguments = ["the cat", "--texts", data / "few.txt", "--out", data / "look.html", "--json"]
    assert one_object(unmask("look", tiny, *arguments)) == {"file": str(data / "look.html")}


def test_convert(unmask, tiny, data):
    out = data / "converted"
    assert one_object(unmask("convert", tiny, "--out", out, "--json")) == {"folder": str(out)}
