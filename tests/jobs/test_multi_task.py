"""Several tasks on one encoder: a head each, steps in turn, a folder each, and exact resume."""

import os
import signal

import pytest
import torch
from transformers import AutoModelForTokenClassification

from tests.jobs.small import At, run, samples, small_model, written
from tests.train.conftest import single_threaded, state
from unmask.checkpoint.folder import Folder, load_folder
from unmask.jobs.multi_task import MultiTask
from unmask.model.shape import LABELS
from unmask.system.errors import SettingsError, Stopped
from unmask.tasks.labels import SupervisedObjective
from unmask.tasks.ner import Ner
from unmask.train.compose import compose
from unmask.train.recipe import Recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Folder:
    return small_model(tmp_path_factory.mktemp("model") / "small")


def several(tmp_path, *, steps=80, **changes) -> Recipe:
    conll = tmp_path / "names.conll"
    conll.write_text("john B-PER\nlives O\nin O\nparis B-LOC\n\nit O\nis O\nred O\n\n" * 6)
    files = {
        n: written(tmp_path, f"{n}.tsv", samples(c, start=s))
        for n, c, s in (("train", 40, 0), ("dev", 12, 97))
    }
    table = {
        "tasks": [
            {"name": "number", "task": {"name": "classify"}, **files},
            {"name": "names", "task": {"name": "ner"}, "train": str(conll), "dev": str(conll)},
        ],
        "optimizer": {"learning_rate": 3e-3},
        "schedule": {"steps": steps, "warmup": 0.1},
        "loop": {"batch_size": 8, "precision": "fp32"},
        "evaluate": {"times": 4},
        **changes,
    }
    return compose(MultiTask.scope, table)


def finetune_several(model, recipe, out, **how):
    """The scores of the best step."""
    return run(MultiTask(model), out, recipe, **how).summary


def test_several_tasks_share_an_encoder_and_end_as_models_of_their_own(model, tmp_path):
    found = finetune_several(model, several(tmp_path), tmp_path / "run")
    assert found["number.accuracy"] == 1.0
    assert found["names.f1"] == 1.0
    number, named = (load_folder(tmp_path / "run" / "models" / n) for n in ("number", "names"))
    assert number.network.shape.labels.names == ("seven", "six")
    assert named.network.shape.labels.on == "token"
    for name, tensor in number.network.encoder.state_dict().items():
        assert torch.equal(tensor, named.network.encoder.state_dict()[name]), name
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / "run" / "models" / "names")
    assert theirs.config.num_labels == 5


def test_stopped_it_goes_on_to_the_same_bits(model, tmp_path):
    def stop():
        os.kill(os.getpid(), signal.SIGTERM)

    recipe = several(tmp_path, steps=16)
    with single_threaded():
        finetune_several(model, recipe, tmp_path / "whole")
        with pytest.raises(Stopped):
            finetune_several(model, recipe, tmp_path / "cut", console=At(7, stop))
        finetune_several(model, recipe, tmp_path / "cut", resume=True)
    assert state(tmp_path / "cut", 16) == state(tmp_path / "whole", 16)


@pytest.mark.parametrize(
    "name",
    [
        "loss",
        "tokens",
        "rate",
        "grad_norm",
        "training",
        "kind",
        "metric",
        "Names",
        "a b",
        "labels",
        "pooler",
    ],
)
def test_a_name_that_means_something_else_is_refused(model, tmp_path, name):
    """Of an entry in the metrics, of another head, or of a member of the module that has them."""
    own = {"name": name, "task": {"name": "ner"}, "train": "a", "dev": "b"}
    with pytest.raises(SettingsError, match="name"):
        finetune_several(model, several(tmp_path, tasks=[own]), tmp_path / "run")


def test_a_task_with_an_objective_of_its_own_is_refused(model, tmp_path, monkeypatch):
    class More(SupervisedObjective):
        pass

    more = property(lambda task: More({task.name: task}, {task.name: LABELS}))
    monkeypatch.setattr(Ner, "objective", more)
    refused = r"'names' \(ner\) has an objective of its own.*alone with `unmask finetune ner`"
    with pytest.raises(SettingsError, match=refused):
        finetune_several(model, several(tmp_path), tmp_path / "run")


def test_two_tasks_of_one_name_are_refused(tmp_path):
    own = {"name": "a", "task": {"name": "ner"}, "train": "a", "dev": "b"}
    with pytest.raises(SettingsError, match="task names are not unique"):
        several(tmp_path, tasks=[own, own])


def test_a_run_without_tasks_is_refused(model, tmp_path):
    with pytest.raises(SettingsError, match="tasks is empty; need a"):
        finetune_several(model, several(tmp_path, tasks=[]), tmp_path / "run")


def test_layers_for_a_head_are_for_one_task(tmp_path):
    with pytest.raises(SettingsError, match="model.head_layers is set, but finetune multi does"):
        several(tmp_path, model={"head_layers": [1]})


def test_the_models_have_the_scores_of_their_own_task(model, tmp_path):
    found = finetune_several(model, several(tmp_path, steps=8), tmp_path / "run")
    for name, metric in (("number", "accuracy"), ("names", "f1")):
        folder = load_folder(tmp_path / "run" / "models" / name)
        about = folder.manifest["provenance"]
        expected = {k.partition(".")[2]: v for k, v in found.items() if k.startswith(f"{name}.")}
        assert metric in expected
        assert about["scores"] == expected
        assert about["step"] == found["step"]
    assert load_folder(tmp_path / "run" / "models" / "names").manifest["task"]["name"] == "ner"


def test_the_model_of_all_tasks_names_those_of_each(model, tmp_path):
    from unmask.infer.model import Model

    finetune_several(model, several(tmp_path, steps=4), tmp_path / "run")
    with pytest.raises(SettingsError, match=r"heads for several tasks \(number, names\)"):
        Model.load(tmp_path / "run" / "model").classify(["a"])
