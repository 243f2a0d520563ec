"""The feed-forward layer, spelled out."""

import torch
from torch.nn import functional as F

from tests.conftest import tiny_config, tiny_network
from unmask.model.block import FeedForward


def test_plain_it_widens_bends_and_narrows():
    feed = FeedForward(tiny_config())
    x = torch.randn(2, 3, feed.inner.in_features)
    torch.testing.assert_close(feed(x), feed.outer(F.gelu(feed.inner(x))))


def test_gated_half_is_bent_and_multiplied_with_the_other():
    config = tiny_config(gated=True)
    feed = FeedForward(config)
    width = config.inner_width
    assert feed.inner.out_features == 2 * width
    x = torch.randn(2, 3, config.width)
    weight, bias = feed.inner.weight, feed.inner.bias
    bent = F.gelu(F.linear(x, weight[:width], bias[:width]))
    other = F.linear(x, weight[width:], bias[width:])
    torch.testing.assert_close(feed(x), feed.outer(bent * other))


def test_a_gated_network_has_twice_the_weights_where_it_widens():
    plain, gated = (
        sum(p.numel() for n, p in tiny_network(gated=g).named_parameters() if "feed.inner" in n)
        for g in (False, True)
    )
    assert gated == 2 * plain
