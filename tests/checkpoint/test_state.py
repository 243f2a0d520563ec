"""Checkpoints: what a run resumes from, with what its objective has learned beside the network."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.conftest import tiny_network
from tests.faults.test_damage import flipped
from tests.train.conftest import Heard
from tests.train.test_toy_job import Count, NextNumber
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.state import load_state, newest_state, refuse_non_finite, write_state
from unmask.system.errors import FolderError
from unmask.system.settings import Settings
from unmask.train.compose import compose
from unmask.train.run import Run, RunOptions

OWN = {"temperature": torch.tensor([2.5]), "map.weight": torch.arange(6.0).reshape(2, 3)}
MOMENTS = {"exp_avg/objective.temperature": torch.tensor([0.5])}


def saved(path, tokenizer, own=OWN):
    """A checkpoint of a tiny network and what an objective has."""
    facts = {"step": 3}
    beside = partial(write_state, moments=MOMENTS, own=own, facts=facts)
    save_folder(path, tiny_network(), tokenizer, beside=beside)
    return path


def test_what_the_objective_has_learned_is_saved_and_read(tmp_path, tokenizer):
    path = saved(tmp_path / "step-3", tokenizer)
    assert load_file(path / "objective.safetensors").keys() == OWN.keys()
    state = load_state(path)
    assert state.own.keys() == OWN.keys()
    assert all(torch.equal(state.own[name], tensor) for name, tensor in OWN.items())
    assert torch.equal(state.optimizer["exp_avg/objective.temperature"], torch.tensor([0.5]))
    assert state.facts == {"step": 3}


def test_it_is_no_part_of_the_model(tmp_path, tokenizer):
    path = saved(tmp_path / "step-3", tokenizer)
    names = load_folder(path).network.state_dict().keys()
    assert names == tiny_network().state_dict().keys()
    weights = load_file(path / "model.safetensors")
    assert not [name for name in weights if "temperature" in name or "map." in name]


def test_an_objective_that_has_learned_nothing_of_its_own_has_no_file(tmp_path, tokenizer):
    path = saved(tmp_path / "step-3", tokenizer, own={})
    assert not (path / "objective.safetensors").exists()
    assert load_state(path).own == {}


def test_a_damaged_or_lost_file_of_the_objective_is_noticed(tmp_path, tokenizer):
    path = saved(tmp_path / "step-3", tokenizer) / "objective.safetensors"
    sound = path.read_bytes()
    path.write_bytes(flipped(sound, 8 * (len(sound) - 1)))
    with pytest.raises(FolderError, match=r"objective\.safetensors"):
        load_state(path.parent)
    path.unlink()
    with pytest.raises(FolderError, match=r"objective\.safetensors"):
        load_state(path.parent)
    said = []
    with pytest.raises(FolderError, match="every checkpoint is damaged"):
        newest_state(tmp_path, said.append)


def test_what_is_not_finite_in_the_objective_is_refused_by_its_name(tmp_path):
    refuse_non_finite(OWN, tmp_path)
    spoiled = {**OWN, "temperature": torch.tensor([float("nan")])}
    with pytest.raises(
        FolderError, match="'temperature' contains NaN or infinity, so no checkpoint is saved"
    ):
        refuse_non_finite(spoiled, tmp_path)


class Heated(NextNumber):
    """Its losses are divided by a temperature that only training knows."""

    def __init__(self, *names) -> None:
        super().__init__(Settings())
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(1)))

    def forward(self, network, batch, companions, each=False):
        sums = super().forward(network, batch, companions)
        for parameter in self.parameters():
            sums["next"] = sums["next"] * parameter.sum().square()
        return sums


class Heating(Count):
    """Counting with such an objective."""

    def __init__(self, *names) -> None:
        self.names = names

    def build(self, recipe, site):
        given = super().build(recipe, site)
        return type(given)(**{**vars(given), "objective": Heated(*self.names)})


def run(out, *names, steps=6, console=None, **options):
    table = {
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"steps": steps},
        "loop": {"precision": "fp32", "save_steps": 2},
    }
    job = Heating(*names)
    Run(job, compose(Count.scope, table), out, console, RunOptions(**options)).go()
    return out


class Dying(Heard):
    """Ends a run after one of its steps."""

    def progress(self, what, unit, done, total=None, **more):
        if what == "training" and done == 5:
            raise KeyboardInterrupt


def test_a_run_that_is_resumed_goes_on_with_what_its_objective_had_learned(tmp_path):
    whole = run(tmp_path / "whole", "heat")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "again", "heat", console=Dying())
    at = tmp_path / "again" / "checkpoints" / "step-4"
    assert load_state(at).own["heat"].item() != 1.0
    assert "exp_avg/objective.heat" in load_state(at).optimizer
    run(tmp_path / "again", "heat", resume=True)
    for name in ("model.safetensors", "objective.safetensors", "optimizer.safetensors"):
        last = "checkpoints", "step-6", name
        expected = whole.joinpath(*last).read_bytes()
        assert tmp_path.joinpath("again", *last).read_bytes() == expected, name


def test_a_run_whose_checkpoint_lacks_something_of_the_objective_is_refused(tmp_path):
    out = run(tmp_path / "run", "heat")
    step = out / "checkpoints" / "step-6"
    says = f"^{step}: has no tensor 'cold', which the objective trains; the run was started with"
    with pytest.raises(FolderError, match=says):
        run(out, "heat", "cold", resume=True)
    plain = run(tmp_path / "plain")
    with pytest.raises(FolderError, match="has no tensor 'heat'"):
        run(plain, "heat", resume=True)
    assert json.loads((step / "state.json").read_text())["step"] == 6
