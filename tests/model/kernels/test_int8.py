"""Int8: close to full precision, also where a few channels are far wider than the rest."""

import pytest
import torch
from torch import nn

from tests.conftest import tiny_network
from unmask.model.block import FeedForward
from unmask.model.config import ModelConfig
from unmask.model.kernels.int8 import (
    MAX_WIDE,
    WEIGHT_MAX,
    InputRange,
    Int8FeedForward,
    Int8Linear,
    observing,
    quantized,
)

SHAPES = pytest.mark.parametrize("shape", [(64, 32), (32, 64)], ids=["narrower", "wider"])


@torch.no_grad()
def error(shape: tuple[int, int], wide: float) -> float:
    torch.manual_seed(0)
    layer, x = nn.Linear(*shape), torch.randn(200, shape[0])
    x[:, 3] *= wide
    layer.weight[:, 3] /= wide  # what it adds is as large as what the others add
    made = Int8Linear(layer, InputRange(x.amin(dim=0), x.amax(dim=0)))
    assert (len(made.shrink) > 0) == (wide > 1)
    found, truth = made(x), layer(x)
    return float((found - truth).norm() / truth.norm())


@SHAPES
def test_a_layer_in_8_bits_is_close_to_its_original(shape):
    assert error(shape, wide=1.0) < 0.02


@SHAPES
def test_a_channel_that_is_far_wider_costs_the_others_little(shape):
    assert error(shape, wide=100.0) < 1.5 * error(shape, wide=1.0)


def test_by_hand():
    layer = nn.Linear(3, 1)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[WEIGHT_MAX, 1.0, 2.0]])
        layer.bias[:] = 0.25
    made = Int8Linear(layer, InputRange(torch.full((3,), -1.0), torch.full((3,), 1.55)))
    assert made.scale == pytest.approx(0.01)
    assert made.zero == 100
    assert made.weight[:, 0].tolist() == [WEIGHT_MAX, 1, 2]
    x = torch.tensor([[0.504, 7.0, -0.3]])  # rounded to 0.50; beyond what was seen, so 1.55; exact
    assert made(x).item() == pytest.approx(WEIGHT_MAX * 0.50 + 1.55 - 0.6 + 0.25, rel=1e-5)


def test_only_channels_far_wider_than_the_middle_one_are_wide_and_at_most_eight():
    reach = torch.ones(40)
    assert InputRange(-reach, reach).wide().tolist() == []
    reach[[3, 30]] = 2.6
    assert InputRange(torch.zeros(40), reach).wide().tolist() == [3, 30]
    assert InputRange(-reach, torch.zeros(40)).wide().tolist() == [3, 30]
    reach[10:25] = torch.arange(10.0, 25.0)
    assert InputRange(-reach, reach).wide().tolist() == list(range(25 - MAX_WIDE, 25))


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@torch.no_grad()
def test_wide_channels_inside_the_feed_forward_part_keep_full_precision(gated):
    torch.manual_seed(0)
    feed = FeedForward(
        ModelConfig(vocab_size=23, width=16, layers=1, heads=2, inner_width=64, gated=gated)
    )
    feed.outer.bias[:] = 0.5
    feed.inner.weight[5] *= 60.0
    x = torch.randn(300, 16)
    seen: dict[str, InputRange] = {}
    for name in ("inner", "outer"):
        layer = getattr(feed, name)
        seen[name] = InputRange(torch.zeros(layer.in_features), torch.zeros(layer.in_features))
        watch = layer.register_forward_pre_hook(lambda m, i, own=seen[name]: own.widen(i[0]))
        feed(x)
        watch.remove()
    assert 5 in seen["outer"].wide().tolist()
    made, truth = Int8FeedForward(feed, seen["inner"], seen["outer"]), feed(x)

    def error(found: torch.Tensor) -> float:
        return float((found - truth).norm() / truth.norm())

    assert error(made(x)) < 0.02
    spoiled = Int8Linear(feed.outer, seen["outer"], factors=False)
    feed.outer = spoiled
    assert error(feed(x)) > 2 * error(made(x)), "one scale for all, the wide one included"


def test_factors_by_hand():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[1.0, 1.0, 0.25], [0.5, 1.0, 0.25], [1.0, 0.0, 0.25]])
        layer.bias[:] = 0.0
    made = Int8Linear(
        layer, InputRange(torch.tensor([-1.0, -1.0, -4.0]), torch.tensor([1.0, 1.0, 4.0]))
    )
    assert made.shrink.tolist() == [1.0, 1.0, 0.25]  # the root of 4 to 0.25
    assert made.scale == pytest.approx(2 / 255)
    assert made.weight[:, 0].tolist() == [WEIGHT_MAX, WEIGHT_MAX, WEIGHT_MAX]


@torch.no_grad()
def test_a_network_is_copied_and_only_its_blocks_change():
    network = tiny_network()
    ids = torch.randint(5, 23, (2, 9))
    inputs = ids, torch.zeros_like(ids), torch.arange(9).expand(2, 9), torch.zeros_like(ids)
    truth = network.encoder(*inputs)
    with observing(network) as seen:
        network.encoder(*inputs)
    made = quantized(network, seen)
    modules = made.encoder.blocks.named_modules()
    left = [name for name, layer in modules if isinstance(layer, torch.nn.Linear)]
    assert not [name for name in left if ".few." not in name]
    assert len(seen) == 4 * network.config.layers
    found = made.encoder(*inputs)
    assert torch.nn.functional.cosine_similarity(found, truth, dim=-1).min() > 0.99
    assert not torch.equal(found, truth)
    assert torch.equal(network.encoder(*inputs), truth), "the original is as it was"
