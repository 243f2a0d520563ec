"""Tasks with objectives of their own: begun, evaluated as they were trained, published, resumed."""

from copy import copy
from dataclasses import replace
from functools import cached_property

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.jobs.small import data, finetune, recipe, small_model
from tests.train.conftest import metrics, single_threaded
from unmask.checkpoint.folder import Folder, load_folder
from unmask.evaluation.tasks import HeldOutRecords
from unmask.model.shape import LABELS, VectorConfig
from unmask.objectives.base import Term
from unmask.system.distributed import Processes
from unmask.system.errors import SettingsError
from unmask.tasks.classify import Classify, ClassifySettings
from unmask.tasks.criterion import Criterion
from unmask.tasks.labels import SupervisedObjective
from unmask.text.tokens import Tokenizers

EXTRA = 5.0  # on the loss, in training alone
BEGUN = 3.0


class Scaled(SupervisedObjective):
    """A learned factor on the loss, which is also larger in training."""

    extra = EXTRA

    def describe(self):
        return [Term("classify", "answers")]

    def build(self, shape, companions):
        self.scale = nn.Parameter(torch.tensor([0.5]))

    def begin(self, network, statistics):
        nn.init.constant_(network.heads[LABELS].dense.bias, BEGUN)

    def publish(self):
        return {"model": (), "models/encoder": ("main",)}

    def standard(self):
        found = copy(self)
        found.extra = 0.0
        return found

    def prepare(self, batch, key, progress):
        return batch.with_labels(batch.counts["classify"], "classify", is_prepared=torch.ones(1))

    def forward(self, network, batch, companions, each=False):
        assert "is_prepared" in batch.labels
        (loss,) = super().forward(network, batch, companions, each).values()
        return {
            "classify": loss * self.scale.square().sum() + self.extra * batch.counts["classify"]
        }


class Own(Classify):
    @cached_property
    def objective(self):
        return Scaled({self.name: self}, {self.name: LABELS})


class NeedsVectors(Scaled):
    def build(self, shape, companions):
        pass

    def heads(self, shape):
        return {"vectors": VectorConfig(width=3)}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Folder:
    return small_model(tmp_path_factory.mktemp("model") / "small")


def own():
    return replace(data(), task=Own(ClassifySettings(), ["seven", "six"]))


@pytest.fixture(scope="module")
def done(model, tmp_path_factory):
    """A run, and its data."""
    place, part = tmp_path_factory.mktemp("own") / "run", own()
    with single_threaded():
        finetune(model, part, place, recipe())
    return place, part


def test_the_held_out_loss_is_that_of_the_trained_objective_in_its_standard_form(done):
    place, part = done
    entry = metrics(place, "eval")[-1]
    checkpoint = place / "checkpoints" / "step-16"
    scale = load_file(checkpoint / "objective.safetensors")["scale"]
    assert float(scale) != 0.5
    folder, plain = load_folder(checkpoint), data()
    exam = HeldOutRecords({"": plain}, Tokenizers(folder.tokenizer, 32), Processes(), 1000, {})
    _, (loss,) = exam.measure(folder.network.eval(), plain.task.objective)
    assert entry["loss"] == pytest.approx(loss * float(scale) ** 2, rel=1e-5)
    assert metrics(place, "train")[0]["classify"] > EXTRA


def test_the_objective_begins_the_network(model, tmp_path):
    finetune(
        model,
        own(),
        tmp_path / "run",
        recipe(schedule={"steps": 1}, optimizer={"learning_rate": 1e-9}),
    )
    network = load_folder(tmp_path / "run" / "model").network
    torch.testing.assert_close(network.heads[LABELS].dense.bias, torch.full([2], BEGUN))


def test_the_folders_of_the_objective_are_published_and_only_the_model_has_the_task(done):
    place, _ = done
    model, encoder = (load_folder(place / name) for name in ("model", "models/encoder"))
    assert list(encoder.network.heads) == []
    assert (model.manifest["task"]["name"], encoder.manifest.get("task")) == ("classify", None)
    assert "scores" in model.manifest["provenance"]
    assert "scores" not in encoder.manifest["provenance"]


def test_the_report_of_a_run_that_is_resumed_has_the_scores_of_its_evaluation(done, model):
    place, part = done
    report = (place / "report.html").read_bytes()
    with single_threaded():
        finetune(model, part, place, recipe(), resume=True)
    assert (place / "report.html").read_bytes() == report


def test_a_folder_that_cannot_be_a_model_is_refused_before_the_first_step(
    model, tmp_path, monkeypatch
):
    config = model.network.config
    more = {"one": config, "two": config}
    monkeypatch.setattr(Scaled, "encoders", lambda self, shape: more)
    monkeypatch.setattr(
        Scaled, "publish", lambda self: {"model": (), "models/more": ("one", "two")}
    )
    with pytest.raises(SettingsError, match="has the encoders one, two; need one called"):
        finetune(model, own(), tmp_path / "run", recipe())
    assert not (tmp_path / "run").exists()


def test_the_loss_of_a_published_model_is_known_unless_its_objective_needs_more(done, monkeypatch):
    place, part = done
    network, plain = load_folder(place / "model").network, data().task
    criterion = Criterion.of(network, plain.objective)
    assert criterion is not None
    assert not criterion.objective.training
    tasks, heads = {"classify": part.task}, {"classify": LABELS}
    assert Criterion.of(network, Scaled(tasks, heads)) is None  # a parameter
    assert Criterion.of(network, NeedsVectors(tasks, heads)) is None  # a head
    monkeypatch.setattr(Scaled, "companions", lambda self: {"teacher": "somewhere"})
    assert Criterion.of(network, Scaled(tasks, heads)) is None
