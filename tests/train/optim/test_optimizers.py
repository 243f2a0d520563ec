"""AdamW: what decays, one step by hand, and moments that survive being written down."""

import copy

import pytest
import torch
from torch import nn

from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.train.optim.optimizers import make_optimizer, read_moments, write_moments
from unmask.train.optim.schedules import OptimizerSettings, set_learning_rate

EVERY_HEAD = bert_heads(tokens=True, pair=True, labels="token", label_names=("a", "b"))


def groups(module, **settings):
    """The names of the parameters that decay, and of those that do not."""
    optimizer = make_optimizer(module, OptimizerSettings(**settings))
    names = {id(p): name for name, p in module.named_parameters()}
    found = {0.0: set(), 0.01: set()}
    for group in optimizer.param_groups:
        found[group["weight_decay"]] |= {names[id(p)] for p in group["params"]}
    return found[0.01], found[0.0]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_matrices_and_tables_decay_but_no_bias_and_no_norm(norm):
    network = tiny_network(EVERY_HEAD, norm=norm)
    decayed, plain = groups(network)
    assert {n for n in decayed if "norm" in n or n.endswith("bias")} == set()
    assert {n for n in plain if "norm" not in n and not n.endswith("bias")} == set()
    assert {
        "encoders.main.embeddings.tokens.weight",
        "encoders.main.blocks.0.feed.inner.weight",
    } <= decayed
    assert {
        "encoders.main.embeddings.norm.weight",
        "heads.tokens.bias",
        "heads.pooler.dense.bias",
    } <= plain


def test_every_parameter_is_in_one_group():
    network = tiny_network(EVERY_HEAD)
    optimizer = make_optimizer(network, OptimizerSettings())
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in network.parameters())


def test_a_frozen_parameter_is_left_alone():
    network = tiny_network()
    network.encoder.embeddings.tokens.weight.requires_grad_(False)
    decayed, _ = groups(network)
    assert "encoders.main.embeddings.tokens.weight" not in decayed


def test_a_module_without_biases_or_norms_can_be_trained():
    assert len(make_optimizer(nn.Linear(2, 2, bias=False), OptimizerSettings()).param_groups) == 1


def test_one_step_by_hand():
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(3.0)
    settings = OptimizerSettings(learning_rate=0.1, weight_decay=0.5, epsilon=1e-8)
    optimizer = make_optimizer(layer, settings)
    layer.weight.grad, layer.bias.grad = torch.tensor([[4.0]]), torch.tensor([-7.0])
    optimizer.step()
    # The moments, put right for their start at zero, are g and g^2: a first step has length rate.
    assert layer.weight.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1, abs=1e-6)
    assert layer.bias.item() == pytest.approx(3.0 + 0.1, abs=1e-6)


def test_a_second_step_by_hand():
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    optimizer = make_optimizer(
        layer, OptimizerSettings(learning_rate=0.1, weight_decay=0.0, epsilon=1e-8)
    )
    for gradient in (1.0, 3.0):
        layer.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
    first = (0.9 * 0.1 * 1 + 0.1 * 3) / (1 - 0.9**2)
    second = (0.999 * 0.001 * 1 + 0.001 * 9) / (1 - 0.999**2)
    assert layer.weight.item() == pytest.approx(1 - 0.1 - 0.1 * first / second**0.5, abs=1e-6)


def taught(module, optimizer, steps, seed):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        optimizer.step()


def test_moments_written_back_go_on_to_the_same_bits():
    network = tiny_network(EVERY_HEAD)
    optimizer = make_optimizer(network, OptimizerSettings())
    taught(network, optimizer, 3, seed=1)
    found = read_moments({"": network}, optimizer)
    moments = {name: tensor.clone() for name, tensor in found.items()}
    other, third = copy.deepcopy(network), copy.deepcopy(network)
    resumed, forgetful = (make_optimizer(n, OptimizerSettings()) for n in (other, third))
    write_moments({"": other}, resumed, moments)
    for module, stepper in ((network, optimizer), (other, resumed), (third, forgetful)):
        taught(module, stepper, 2, seed=2)
    pairs = zip(network.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(
        network.encoder.embeddings.tokens.weight, third.encoder.embeddings.tokens.weight
    )


def test_moments_are_named_after_their_parameters():
    network = tiny_network()
    optimizer = make_optimizer(network, OptimizerSettings())
    assert read_moments({"": network}, optimizer) == {}
    taught(network, optimizer, 1, seed=1)
    moments = read_moments({"": network}, optimizer)
    names = {name for name, _ in network.named_parameters()}
    kinds = ("exp_avg", "exp_avg_sq", "step")
    assert set(moments) == {f"{kind}/{name}" for kind in kinds for name in names}
    name, norm = "encoders.main.embeddings.norm.weight", network.encoder.embeddings.norm
    assert moments[f"exp_avg/{name}"].shape == norm.weight.shape
    assert moments[f"step/{name}"].item() == 1.0


def test_a_rate_is_set_for_every_group():
    optimizer = make_optimizer(tiny_network(), OptimizerSettings())
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
