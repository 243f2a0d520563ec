"""Names that are nearly right get a suggestion that works."""

import re

import pytest

from tests.cli.test_cli import said
from unmask.checkpoint.fetch import locate
from unmask.model.config import SIZES, sized
from unmask.system.errors import UserError

HUB = "run: unmask get hf:"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("minillm", r"did you mean 'minilm'\?"),
        ("bert-base-uncased", rf"{HUB}bert-base-uncased and use the name hf:bert-base-uncased\.$"),
        ("google/bert_tiny", rf"Check the path\. .*{HUB}google/bert_tiny$"),
        ("./google/bert", r"Check the path\.$"),
    ],
)
def test_the_name_of_a_model(name, suggestion, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        locate(name)
    assert re.search(suggestion, str(error.value)), str(error.value)


def test_a_path_into_a_folder_that_exists_is_no_name_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match=r"Check the path\.$"):
        locate("runs/model")


def test_get_suggests_the_hub_too(unmask):
    assert f"{HUB}bert-base-uncased" in said(unmask("get", "bert-base-uncased"))


@pytest.mark.parametrize("verb", ["info", "tokenize"])
def test_the_folder_of_a_run_names_its_model(unmask, tmp_path, verb):
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    message = said(unmask(verb, tmp_path / "run"))
    assert f"the folder of a run; its model is in {tmp_path / 'run' / 'model'}." in message


def test_the_folder_of_several_tasks_names_all_models(tmp_path):
    for task in ("a", "b"):
        (tmp_path / "models" / task).mkdir(parents=True)
        (tmp_path / "models" / task / "config.json").write_text("{}")
    first, second = (tmp_path / "models" / task for task in ("a", "b"))
    with pytest.raises(UserError, match=f"its model is in {first} or {second}"):
        locate(tmp_path)


def test_a_run_that_was_stopped_has_no_model_yet(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(UserError, match="a run that has no model yet. Finish it with --resume"):
        locate(tmp_path)


def test_an_unknown_size_lists_sizes_from_small_to_large():
    with pytest.raises(UserError, match=f"The sizes are {', '.join(SIZES)}"):
        sized("huge")
    assert list(SIZES) == ["tiny", "mini", "small", "medium", "base", "large"]


@pytest.mark.parametrize(("wrong", "right"), [("pretain", "pretrain"), ("complie", "compile")])
def test_the_nearest_verb_is_named(unmask, wrong, right):
    assert f"Did you mean '{right}'?" in said(unmask(wrong))
