"""Positions: each scheme by hand, and the invariances that define it."""

import math
from typing import get_args

import pytest
import torch
from torch import nn

from tests.conftest import tiny_config
from unmask.model import positions
from unmask.model.attention import Attention
from unmask.model.config import Scheme
from unmask.model.init import init_weights
from unmask.model.positions import Bucketed, Rotary, ShawLayer, Sinusoidal


def test_sinusoids_have_sine_in_even_and_cosine_in_odd_dimensions():
    table = Sinusoidal(tiny_config(width=768, heads=12)).embed(torch.tensor([[0, 1]]))[0]
    assert table[0, :4].tolist() == [0, 1, 0, 1]
    expected = torch.tensor([0.8415, 0.5403, 0.8284, 0.5601])
    torch.testing.assert_close(table[1, :4], expected, atol=1e-4, rtol=0)


def test_rotary_turns_pairs_of_channels_by_position_times_rate():
    rotary = Rotary(tiny_config(width=8, heads=2))  # d = 4: rates 1 and 1/100
    x = torch.tensor([1.0, 0.0, 0.0, 1.0]).expand(1, 1, 1, 4)
    turned = rotary.rotate(x, torch.tensor([[3]]))[0, 0, 0]
    expected = [math.cos(3), math.sin(3), -math.sin(0.03), math.cos(0.03)]
    torch.testing.assert_close(turned, torch.tensor(expected))


def test_rotary_scores_depend_on_distance_alone():
    rotary = Rotary(tiny_config(width=16, heads=2))
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i, j):
        turned = rotary.rotate(q, torch.tensor([[i]])) * rotary.rotate(k, torch.tensor([[j]]))
        return turned.sum()

    torch.testing.assert_close(score(3, 7), score(20, 24))


def test_t5_buckets_are_exact_near_by_and_wider_far_away():
    bucketed = Bucketed(tiny_config(positions="t5", buckets=32, reach=128))
    distance = torch.tensor([0, -1, -7, -8, -15, -16, -127, -500, 1, 7, 8, 500])
    assert bucketed.bucket(distance).tolist() == [0, 1, 7, 8, 9, 10, 15, 15, 17, 23, 24, 31]


def test_t5_buckets_of_a_causal_model_are_all_for_the_past():
    bucketed = Bucketed(tiny_config(positions="t5", buckets=32, reach=128, causal=True))
    assert bucketed.bucket(torch.tensor([5, 0, -15, -16, -500])).tolist() == [0, 0, 15, 16, 31]


def test_t5_buckets_equal_those_of_transformers():
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-600, 600)
    for causal in (False, True):
        config = tiny_config(positions="t5", buckets=32, reach=128, causal=causal)
        theirs = t5.T5Attention._relative_position_bucket(distance, not causal, 32, 128)
        assert torch.equal(Bucketed(config).bucket(distance), theirs)


def test_t5_bias_is_one_number_per_head_and_distance():
    bucketed = Bucketed(tiny_config(positions="t5"))
    index = torch.arange(5)[None]
    bias = bucketed.bias(index, index)  # [1, H, 5, 5]
    nn.init.normal_(bucketed.table.weight)
    bias = bucketed.bias(index, index)
    torch.testing.assert_close(bias[0, :, 0, 1], bias[0, :, 3, 4])
    assert not torch.allclose(bias[0, :, 0, 1], bias[0, :, 1, 0])


def test_shaw_adds_a_vector_per_distance_to_keys_and_to_values():
    shaw = ShawLayer(reach=2, head_width=4)
    nn.init.normal_(shaw.keys.weight)
    nn.init.normal_(shaw.between.weight)
    q, weights = torch.randn(1, 2, 3, 4), torch.rand(1, 2, 3, 5)
    index, memory_index = torch.tensor([[0, 3, 4]]), torch.arange(5)[None]
    scores, values = torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 3, 4)
    for h in range(2):
        for i, at in enumerate([0, 3, 4]):
            for j in range(5):
                distance = max(-2, min(2, j - at)) + 2
                scores[0, h, i, j] = q[0, h, i] @ shaw.keys.weight[distance] / 2  # sqrt(4)
                values[0, h, i] += weights[0, h, i, j] * shaw.between.weight[distance]
    torch.testing.assert_close(shaw.scores(q, index, memory_index), scores)
    torch.testing.assert_close(shaw.values(weights, index, memory_index), values)


def test_shaw_attention_equals_the_sum_of_the_paper():
    """Softmax over q (k + a) / sqrt(d), then weights times (v + b), token by token."""
    config = tiny_config(positions="shaw", reach=2, width=8, heads=2)
    where, attention = positions.make_positions(config), Attention(config).eval()
    for module in (*where.modules(), *attention.modules()):
        init_weights(module, 0.5)
    x, index = torch.randn(1, 5, 8), torch.arange(5)[None]
    own = where.at(0)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 2, 4))[0].unbind(1)  # each [5, 2, 4]
    mixed = torch.zeros(5, 2, 4)
    for i in range(5):
        apart = [max(-2, min(2, j - i)) + 2 for j in range(5)]
        for h in range(2):
            keys = k[:, h] + own.keys.weight[apart]
            weights = (keys @ q[i, h] / 2).softmax(0)
            mixed[i, h] = weights @ (v[:, h] + own.between.weight[apart])
    expected = attention.output(mixed.flatten(1))[None]
    found = attention(x, added=None, positions=own, index=index)
    torch.testing.assert_close(found, expected)


def test_every_scheme_has_a_way_to_be_built():
    assert set(positions.SCHEMES) == set(get_args(Scheme))
