"""`--quiet` and `--verbose` go with every verb, wherever they stand on the line."""

import pytest

from tests.cli.test_cli import LONG, said

TOO_LONG = "the cat sat on the mat"


def placed(flag, arguments, place):
    return [flag, *arguments] if place == "before" else [*arguments, flag]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("flag", ["--quiet", "-q"])
def test_quiet_prints_the_result_alone(unmask, tiny, flag, place):
    arguments = ["tokenize", tiny, TOO_LONG, "--limit", 5]
    loud, quiet = unmask(*arguments), unmask(*placed(flag, arguments, place))
    assert loud.stderr
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, loud.stdout, "")


def test_quiet_keeps_errors(unmask, tiny):
    assert "contains no [MASK]" in said(unmask("fill", tiny, "a text", "--quiet"))


def test_quiet_shows_no_progress(unmask, tiny, tmp_path):
    (tmp_path / "texts.txt").write_text(LONG)
    done = unmask("embed", tiny, tmp_path / "texts.txt", "--out", tmp_path / "v.npy", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_verbose_adds_options_the_model_its_stages_and_the_time(unmask, tiny, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat\na dog\n")
    arguments = ["embed", tiny, tmp_path / "texts.txt", "--out", tmp_path / "v.npy"]
    lines = unmask(*arguments, "--verbose").stderr.splitlines()
    assert f"option: file = {tmp_path / 'texts.txt'}" in lines
    assert "option: pool = mean" in lines
    (model,) = [line for line in lines if line.startswith("model: ")]
    assert model.startswith(f"model: {tiny}, ")
    assert "parameters on cpu, loaded in " in model
    (stage,) = [line for line in lines if line.startswith("stage: ")]
    assert stage.startswith("stage: embedding: 2 texts in ")
    assert lines[-1].startswith("time: ")


def test_without_verbose_there_are_no_details(unmask, tiny):
    done = unmask("tokenize", tiny, "the cat")
    assert done.stderr == ""


def test_verbose_lists_the_settings_of_a_run(unmask, tmp_path, tiny):
    rows = "".join(f"a {('cat', 'dog')[i % 2]}\t{i % 2}\n" for i in range(8))
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + rows)
    files = ["--train", tmp_path / "t.tsv", "--dev", tmp_path / "t.tsv"]
    short = ["--epochs", 1, "--seed", 7, "--threads", 1, "--no-preflight"]
    arguments = ["finetune", "classify", tiny, *files, "--out", tmp_path / "run", *short]
    lines = unmask(*arguments, "-v").stderr.splitlines()
    assert "setting: seed = 7" in lines
    assert "setting: schedule.epochs = 1.0" in lines


def test_verbose_does_not_print_a_token(anew):
    done = anew("serve", "nowhere", "--token", "swordfish", "--verbose")
    assert "option: token = (not shown)" in done.stderr
    assert "swordfish" not in done.stderr


def test_both_are_refused(unmask):
    assert "contradict each other" in said(unmask("info", "--quiet", "--verbose"))


def test_behind_two_dashes_they_are_texts(unmask, tiny):
    done = unmask("tokenize", "--json", tiny, "--", "--quiet", "-v")
    assert len(done.stdout.splitlines()) == 2
    assert not done.stderr
