"""A running mean of the weights: what is evaluated and published, while the run goes on without."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.train.conftest import STEPS, metrics, state
from tests.train.optim.test_muon import dies_after
from unmask.train.optim.optimizers import average, make_optimizer, mean
from unmask.train.optim.schedules import OptimizerSettings


def test_the_mean_by_hand():
    layer = nn.Linear(1, 1, bias=False)
    optimizer = make_optimizer(layer, OptimizerSettings())
    assert mean(layer.weight, optimizer) is layer.weight
    average(layer, optimizer, 0.25)  # before the first step there is nothing to keep it with
    assert mean(layer.weight, optimizer) is layer.weight
    layer.weight.grad = torch.ones(1, 1)
    optimizer.step()
    for value in (4.0, 8.0, 0.0):
        with torch.no_grad():
            layer.weight.fill_(value)
        average(layer, optimizer, 0.25)
    # 4, then 4 + (8 - 4) / 4 = 5, then 5 - 5 / 4
    assert mean(layer.weight, optimizer).item() == 3.75
    assert layer.weight.item() == 0.0


@pytest.fixture
def how():
    return {"loop": {"weight_average": 0.5, "save_steps": 5}}


def tensors(folder, name):
    return load_file(folder / name)


def test_the_mean_is_published_and_the_weights_go_on_as_without(run, whole, how):
    folder = run("mean", **how)
    assert state(folder, STEPS)[0] == state(whole, STEPS)[0]
    last = folder / "checkpoints" / f"step-{STEPS}"
    kept = tensors(last, "optimizer.safetensors")["average/encoders.main.embeddings.tokens.weight"]
    name = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(tensors(folder / "model", "model.safetensors")[name], kept)
    assert not torch.equal(tensors(last, "model.safetensors")[name], kept)


def test_the_mean_is_evaluated(run, whole, how):
    means, plain = (metrics(folder, "eval")[-1] for folder in (run("mean", **how), whole))
    assert means["mlm"] != plain["mlm"]


def test_a_run_that_was_killed_goes_on_with_its_mean(run, how):
    undisturbed = state(run("mean", **how), STEPS)
    with pytest.raises(KeyboardInterrupt):
        run("again", console=dies_after(6), **how)
    assert state(run("again", resume=True, **how), STEPS) == undisturbed


def test_a_mean_over_less_than_a_step_is_the_weights(run):
    folder = run("short", loop={"weight_average": 0.01})
    last = folder / "checkpoints" / f"step-{STEPS}" / "model.safetensors"
    assert last.read_bytes() == (folder / "model" / "model.safetensors").read_bytes()
