"""Several tasks on one encoder: a head each, steps in turn, a folder each, and exact resume."""

import os
import signal

import pytest
import torch
from transformers import AutoModelForTokenClassification

from tests.train.conftest import single_threaded, state
from tests.train.test_finetune import model, quiet, samples, written  # noqa: F401
from unmask.checkpoint.folder import load_folder
from unmask.errors import SettingsError, Stopped
from unmask.settings import build
from unmask.train.multi import Multi, finetune_several


def several(tmp_path, *, steps=80, **changes):
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
        "tune": {"batch": 8},
        "optimizer": {"rate": 3e-3},
        "schedule": {"steps": steps, "warmup": 0.1},
        "train": {"evaluations": 4, "precision": "fp32"},
        **changes,
    }
    return build(Multi, table, where="recipe")


def test_several_tasks_share_an_encoder_and_end_as_models_of_their_own(model, tmp_path):  # noqa: F811
    found = finetune_several(model, several(tmp_path), tmp_path / "run", notice=quiet)
    assert found["number.accuracy"] == 1.0
    assert found["names.f1"] == 1.0
    number, named = (load_folder(tmp_path / "run" / "models" / n) for n in ("number", "names"))
    assert number.network.heads.label_names == ("seven", "six")
    assert named.network.heads.labels == "token"
    for name, tensor in number.network.encoder.state_dict().items():
        assert torch.equal(tensor, named.network.encoder.state_dict()[name]), name
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / "run" / "models" / "names")
    assert theirs.config.num_labels == 5


def test_stopped_it_goes_on_to_the_same_bits(model, tmp_path):  # noqa: F811
    def stop(position, report, progress):
        if position.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    recipe = several(tmp_path, steps=16)
    with single_threaded():
        finetune_several(model, recipe, tmp_path / "whole", notice=quiet)
        with pytest.raises(Stopped):
            finetune_several(model, recipe, tmp_path / "cut", notice=quiet, show=stop)
        finetune_several(model, recipe, tmp_path / "cut", notice=quiet, resume=True)
    assert state(tmp_path / "cut", 16) == state(tmp_path / "whole", 16)


@pytest.mark.parametrize("name", ["loss", "tokens", "train", "kind", "Names", "a b"])
def test_a_name_that_means_something_else_is_refused(tmp_path, name):
    own = {"name": name, "task": {"name": "ner"}, "train": "a", "dev": "b"}
    with pytest.raises(SettingsError, match="name"):
        several(tmp_path, tasks=[own])


def test_the_model_of_all_tasks_names_those_of_each(model, tmp_path):  # noqa: F811
    from unmask.use.model import Model

    finetune_several(model, several(tmp_path, steps=4), tmp_path / "run", notice=quiet)
    with pytest.raises(SettingsError, match=r"heads for several tasks \(number, names\)"):
        Model.load(tmp_path / "run" / "model").classify(["a"])
