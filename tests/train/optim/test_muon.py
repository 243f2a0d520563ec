"""Muon: orthogonal steps for the matrices of blocks, AdamW for all the rest."""

import pytest
import torch
from torch import nn

from tests.conftest import tiny_network
from tests.shapes import bert_heads
from tests.train.conftest import STEPS, state
from tests.train.test_loop import After
from unmask.system.errors import SettingsError
from unmask.train.optim.muon import Muon, orthogonal
from unmask.train.optim.optimizers import make_optimizer, read_moments
from unmask.train.optim.schedules import OptimizerSettings

SHAPES = [(16, 16), (8, 32), (32, 8), (1, 5)]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_all_directions_become_about_as_long(shape):
    turned = orthogonal(random(3, *shape))
    lengths = torch.linalg.svdvals(turned)
    assert turned.shape == (3, *shape)
    assert float(lengths.min()) > 0.4
    assert float(lengths.max()) < 1.3


@pytest.mark.parametrize("shape", SHAPES)
def test_the_directions_stay(shape):
    (matrix,) = random(1, *shape)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    inside = u.T @ orthogonal(matrix[None])[0] @ v.T  # what is left of each direction
    torch.testing.assert_close(inside, torch.diag(inside.diag()), atol=1e-4, rtol=0)
    assert bool((inside.diag() > 0).all())


def test_how_long_a_gradient_is_does_not_matter():
    matrix = random(1, 6, 10)
    torch.testing.assert_close(orthogonal(matrix), orthogonal(1000 * matrix))


def test_nothing_stays_nothing():
    assert torch.equal(orthogonal(torch.zeros(2, 4, 4)), torch.zeros(2, 4, 4))


def layers():
    torch.manual_seed(0)
    return nn.ModuleDict({"qkv": nn.Linear(4, 12, bias=False), "out": nn.Linear(4, 6)})


def muon(module, **how):
    matrices = {"params": [module["qkv"].weight, module["out"].weight], "parts": [3, 1]}
    matrices |= {"momentum": 0.0, "factor": 0.5, "weight_decay": 0.5, **how}
    return Muon([{"params": [module["out"].bias]}, matrices], lr=0.2, fused=True)


def test_one_step_by_hand():
    module = layers()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for number, parameter in enumerate(module.parameters()):
        parameter.grad = random(*parameter.shape, seed=number)
    muon(module).step()
    kept = 1 - 0.1 * 0.5
    step = 0.1 * 0.2 * 6**0.5 * orthogonal(module["out"].weight.grad[None])[0]
    torch.testing.assert_close(module["out"].weight, kept * before["out.weight"] - step)
    for third in range(3):  # queries, keys and values each for themselves
        rows = slice(4 * third, 4 * third + 4)
        step = 0.1 * 0.2 * 2.0 * orthogonal(module["qkv"].weight.grad[None, rows])[0]
        expected = kept * before["qkv.weight"][rows] - step
        torch.testing.assert_close(module["qkv"].weight[rows], expected)


def test_momentum_looks_ahead_by_hand():
    module = layers()
    optimizer = muon(module, momentum=0.5, weight_decay=0.0)
    first, second = random(6, 4, seed=1), random(6, 4, seed=2)
    weight = module["out"].weight
    mean = torch.zeros(6, 4)
    for grad in (first, second):
        before = weight.detach().clone()
        weight.grad = grad
        optimizer.step()
        mean = 0.5 * mean + 0.5 * grad
        ahead = 0.5 * grad + 0.5 * mean
        step = 0.1 * 0.2 * 6**0.5 * orthogonal(ahead[None])[0]
        torch.testing.assert_close(weight, before - step, atol=1e-5, rtol=1e-4)


def test_what_is_no_matrix_of_a_block_moves_as_with_adamw():
    moved = {}
    for kind in ("adamw", "muon"):
        network = tiny_network(bert_heads(tokens=True))
        optimizer = make_optimizer(network, OptimizerSettings(kind=kind, learning_rate=0.01))
        for number in range(3):
            for parameter in network.parameters():
                parameter.grad = random(*parameter.shape, seed=number)
            optimizer.step()
        moved[kind] = dict(network.named_parameters())
    for name, parameter in moved["adamw"].items():
        same = torch.equal(parameter, moved["muon"][name])
        assert same != (".blocks." in name and parameter.ndim == 2), name


@pytest.mark.parametrize("gated", [False, True])
def test_what_lies_in_one_matrix_to_save_a_product_is_turned_apart(gated):
    network = tiny_network(gated=gated)
    group = make_optimizer(network, OptimizerSettings(kind="muon")).param_groups[-1]
    names = {id(p): name.rpartition("blocks.0.")[2] for name, p in network.named_parameters()}
    parts = {names[id(p)]: n for p, n in zip(group["params"], group["parts"], strict=True)}
    assert parts["attention.qkv.weight"] == 3
    assert parts["feed.inner.weight"] == 1 + gated
    assert parts["attention.output.weight"] == parts["feed.outer.weight"] == 1


def test_every_parameter_is_in_one_group_and_has_its_tensors():
    network = tiny_network()
    optimizer = make_optimizer(network, OptimizerSettings(kind="muon"))
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in network.parameters())
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kinds = {name.partition("/")[::2] for name in read_moments({"": network}, optimizer)}
    assert ("momentum", "encoders.main.blocks.0.feed.inner.weight") in kinds
    assert ("exp_avg", "encoders.main.blocks.0.feed.inner.weight") not in kinds
    assert ("exp_avg", "encoders.main.blocks.0.feed.inner.bias") in kinds
    assert ("exp_avg", "encoders.main.embeddings.tokens.weight") in kinds


def test_a_run_with_it_goes_on_to_the_same_bits_and_learns_otherwise(run, whole, tmp_path):
    how = {"optimizer": {"kind": "muon"}, "loop": {"save_steps": 5}}
    undisturbed = state(run("muon", **how), STEPS)
    assert undisturbed[0] != state(whole, STEPS)[0]
    assert undisturbed == state(again(run, tmp_path, how), STEPS)


def again(run, tmp_path, how):
    """Killed after its first checkpoint, and resumed."""
    with pytest.raises(KeyboardInterrupt):
        run("again", console=dies_after(6), **how)
    return run("again", resume=True, **how)


def dies_after(step):
    def die():
        raise KeyboardInterrupt

    return After(step, die)


def test_it_needs_whole_matrices(run):
    with pytest.raises(SettingsError, match="--shard: Muon orthogonalises whole matrices"):
        run(optimizer={"kind": "muon"}, shard=True)
    with pytest.raises(SettingsError, match="--shard: needs more than one process"):
        run(shard=True)
