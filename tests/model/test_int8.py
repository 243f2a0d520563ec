"""Int8: close to full precision, also where a few channels are far wider than the rest."""

import pytest
import torch
from torch import nn

from tests.conftest import tiny_network
from unmask.model.int8 import MOST, WIDE, Int8Linear, Seen, linears, observing, quantized

SHAPES = pytest.mark.parametrize("shape", [(64, 32), (32, 64)], ids=["narrower", "wider"])


@torch.no_grad()
def error(shape: tuple[int, int], wide: float) -> float:
    torch.manual_seed(0)
    layer, x = nn.Linear(*shape), torch.randn(200, shape[0])
    x[:, 3] *= wide
    layer.weight[:, 3] /= wide  # what it adds is as large as what the others add
    made = Int8Linear(layer, Seen(x.amin(dim=0), x.amax(dim=0)))
    assert (len(made.wide) > 0, len(made.shrink) > 0) == (
        wide > 1 and shape[0] > shape[1],
        wide > 1 and shape[0] <= shape[1],
    )
    found, truth = made(x), layer(x)
    return float((found - truth).norm() / truth.norm())


@SHAPES
def test_a_layer_in_8_bits_is_close_to_its_original(shape):
    assert error(shape, wide=1.0) < 0.02


@SHAPES
def test_a_channel_that_is_far_wider_costs_the_others_little(shape):
    assert error(shape, wide=100.0) < 1.5 * error(shape, wide=1.0)


def test_by_hand():
    layer = nn.Linear(2 * WIDE, 1)
    with torch.no_grad():
        layer.weight[:] = 1.0
        layer.weight[0, 0] = MOST
        layer.bias[:] = 0.25
    low, high = torch.full((2 * WIDE,), -1.0), torch.full((2 * WIDE,), 1.55)
    low[WIDE:], high[WIDE:] = -9.0, 9.0  # the last eight are wide
    made = Int8Linear(layer, Seen(low, high))
    assert made.wide.tolist() == list(range(WIDE, 2 * WIDE))
    assert made.scale == pytest.approx(0.01)
    assert made.zero == 100
    assert made.weight[:, 0].tolist() == [MOST, *[1] * (WIDE - 1), *[0] * WIDE]
    x = torch.zeros(1, 2 * WIDE)
    x[0, 0], x[0, 1], x[0, -1] = (
        0.504,
        7.0,
        0.3,
    )  # rounded to 0.50; beyond what was seen, so 1.55; exact
    assert made(x).item() == pytest.approx(MOST * 0.50 + 1.55 + 0.3 + 0.25, rel=1e-5)


def test_factors_by_hand():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[1.0, 1.0, 0.25], [0.5, 1.0, 0.25], [1.0, 0.0, 0.25]])
        layer.bias[:] = 0.0
    made = Int8Linear(layer, Seen(torch.tensor([-1.0, -1.0, -4.0]), torch.tensor([1.0, 1.0, 4.0])))
    assert made.shrink.tolist() == [1.0, 1.0, 0.25]  # the root of 4 to 0.25
    assert made.scale == pytest.approx(2 / 255)
    assert made.weight[:, 0].tolist() == [MOST, MOST, MOST]


@torch.no_grad()
def test_a_network_is_copied_and_only_its_blocks_change():
    network = tiny_network()
    ids = torch.randint(5, 23, (2, 9))
    inputs = ids, torch.zeros_like(ids), torch.arange(9).expand(2, 9), torch.zeros_like(ids)
    truth = network.encoder(*inputs)
    with observing(network) as seen:
        network.encoder(*inputs)
    made = quantized(network, seen)
    assert not linears(made)
    assert len(linears(network)) == len(seen) == 4 * network.config.layers
    found = made.encoder(*inputs)
    assert torch.nn.functional.cosine_similarity(found, truth, dim=-1).min() > 0.99
    assert not torch.equal(found, truth)
    assert torch.equal(network.encoder(*inputs), truth), "the original is as it was"
