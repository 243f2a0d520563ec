"""unmask translate: train, run, evaluate, compare, look, as a user types them."""

import json

import pytest

from tests.pairs import TRANSFORMER, write_pairs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translate")
    write_pairs(folder / "data")
    return folder


@pytest.fixture(scope="module")
def model(unmask, place):
    """A model that was trained by the command."""
    settings = [part for change in TRANSFORMER for part in ("--set", change)]
    done = unmask(
        *("translate", "train", place / "data", "--from", "xx", "--to", "yy"),
        *("--out", place / "run", "--threads", 1, *settings),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] > 0
    assert "200 examples" in done.stderr
    return place / "run" / "model"


def test_lines_go_in_and_as_many_lines_come_out(unmask, model):
    done = unmask("translate", "run", model, "--beams", 2, stdin="hund\n\nkatze rot\n")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert len(lines) == 4
    assert lines[1] == ""


def test_scores_come_with_json(unmask, model):
    done = unmask("translate", "run", model, "--json", stdin="hund\n")
    found = json.loads(done.stdout)
    assert found["score"] < 0
    assert isinstance(found["text"], str)


def test_evaluation_prints_sacrebleus_signature(unmask, model, place):
    files = place / "data" / "val.xx", place / "data" / "val.yy"
    done = unmask("translate", "evaluate", model, *files, "--out", place / "said.txt")
    assert done.returncode == 0, done.stderr
    assert "bleu " in done.stdout
    assert "case:lc" in done.stdout
    assert "version:" in done.stdout
    assert len((place / "said.txt").read_text().splitlines()) == 20


def test_a_look_is_a_picture(unmask, model, place):
    done = unmask("translate", "look", model, "hund rot", "--out", place / "look.svg")
    assert done.returncode == 0, done.stderr
    assert (place / "look.svg").read_text().startswith("<svg")


def test_a_comparison_ends_in_a_table(unmask, place):
    recipe = place / "compare.toml"
    recipe.write_text(
        f'out = "{place / "both"}"\nfolder = "{place / "data"}"\nsource = "xx"\ntarget = "yy"\n'
        f'[[variants]]\nname = "one"\nrecipe = "transformer"\nset = {json.dumps(TRANSFORMER)}\n'
    )
    done = unmask("translate", "compare", recipe, "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stdout
    assert "one" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "data", "--from", "xx", "--to", "qq"), "qq"),
        (("train", "data", "--to", "yy"), "a folder needs --from and --to"),
        (("train", "--train", "missing.tsv", "--dev", "missing.tsv"), "missing.tsv"),
        (("train", "data", "--from", "xx", "--to", "yy", "--recipe", "lstn"), "lstm"),
        (("run", "nowhere"), "nowhere"),
        (("run", "run/model", "--top-k", "5"), "it only applies to sampling; set sample"),
        (("run", "run/model", "--beams", "2", "--sample"), "sampling and beam search exclude"),
        (("look", "run/model", "hund", "--out", "x.png"), "need .svg"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(unmask, model, place, monkeypatch, arguments, message):
    monkeypatch.chdir(place)
    verb, *rest = arguments
    out = ("--out", "new") if verb == "train" else ()
    done = unmask("translate", verb, *rest, *out)
    assert done.returncode == 2, done.stdout
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert not (place / "new").exists()


def test_a_folder_that_is_taken_is_refused_before_a_vocabulary_is_learned(unmask, model, place):
    before = sorted(path.name for path in (place / "run").iterdir())
    done = unmask(
        *("translate", "train", place / "data", "--from", "xx", "--to", "yy"),
        *("--out", place / "run", "--threads", 1),
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {place / 'run'}: the folder already holds a run.")
    assert done.stderr.count("\n") == 1, "nothing was read or learned"
    assert sorted(path.name for path in (place / "run").iterdir()) == before


def test_files_of_different_length_name_the_first_line_without_a_partner(unmask, place):
    short = place / "short.yy"
    short.write_text("dog\ncat\n")
    long = place / "data" / "train.xx"
    done = unmask(
        *("translate", "train", "--train", long, "--train", short),
        *("--dev", long, "--dev", long, "--out", place / "no"),
    )
    assert done.returncode == 2
    assert f"{long}:3" in done.stderr
    assert not (place / "no").exists()
