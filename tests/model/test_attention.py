"""Attention: what must hold whatever the mask and the positions."""

from typing import get_args

import pytest
import torch

from tests.conftest import tiny_config
from unmask.model import masks, positions
from unmask.model.attention import Attention, ablating, listening, recording
from unmask.model.config import Scheme
from unmask.model.decoding.cache import KVCache, KVStorage
from unmask.model.init import init_weights

SCHEMES = get_args(Scheme)


def attention_and_input(scheme="none", **changes):
    config = tiny_config(positions=scheme, **changes)
    where = positions.make_positions(config)
    attention = Attention(config).eval()
    for module in (*where.modules(), *attention.modules()):
        init_weights(module, 0.5)
    x = torch.randn(2, 6, config.width)
    index = torch.arange(6).expand(2, -1)
    return attention, where, x, index


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mask", ["none", "packed", "causal", "window"])
@pytest.mark.parametrize("training", [True, False])  # our own kernel, or torch's
def test_spelled_out_attention_equals_fused(scheme, mask, training):
    attention, where, x, index = attention_and_input(scheme)
    allowed = {
        "none": None,
        "packed": masks.same_text(torch.tensor([[0, 0, 0, 1, 1, -1], [0, 0, 0, 0, 0, 0]])),
        "causal": masks.causal(index),
        "window": masks.window(index, 2),
    }[mask]
    added = masks.as_scores(allowed, where.bias(index, index), x.dtype)
    with torch.set_grad_enabled(training):
        fused = attention(x, added=added, positions=where.at(0), index=index)
    with recording(attention) as heard:
        spelled_out = attention(x, added=added, positions=where.at(0), index=index)
    torch.testing.assert_close(spelled_out, fused)
    (weights,) = heard
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 6))
    if allowed is not None:
        assert weights[~allowed.expand_as(weights)].eq(0).all()


def test_attention_by_hand():
    """Two tokens, one head of two channels, identity projections."""
    config = tiny_config(width=2, heads=1)
    attention = Attention(config).eval()
    with torch.no_grad():
        attention.qkv.weight.copy_(torch.eye(2).repeat(3, 1))
        attention.output.weight.copy_(torch.eye(2))
        attention.qkv.bias.zero_()
        attention.output.bias.zero_()
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    where = positions.Positions()
    out = attention(x, added=None, positions=where, index=torch.tensor([[0, 1]]))
    own = 0.66976  # e^(1/sqrt 2) / (e^(1/sqrt 2) + 1)
    expected = torch.tensor([[[own, 1 - own], [1 - own, own]]])
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mask", ["none", "packed"])
def test_reading_a_text_that_is_itself_is_self_attention(mask):
    attention, where, x, index = attention_and_input()
    owner = torch.tensor([[0, 0, 0, 1, 1, -1], [0, 0, 0, 0, 0, 0]])
    allowed = masks.same_text(owner) if mask == "packed" else None
    added = masks.as_scores(allowed, None, x.dtype)
    own = attention(x, added=added, positions=where, index=index)
    torch.testing.assert_close(attention.read(x, attention.keep(x), added), own)


def test_rows_that_share_a_text_read_it_as_rows_with_their_own():
    attention, _, x, _ = attention_and_input()
    states, x = torch.randn(2, 4, 16), torch.cat([x, x.flip(0)])[:, :1]  # two rows of each text
    source = attention.keep(states)
    added = torch.zeros(2, 1, 1, 4)
    added[1, ..., 3] = float("-inf")
    own = torch.tensor([0, 0, 1, 1])
    expected = attention.read(x, attention.keep(states[own]), added[own])
    torch.testing.assert_close(attention.read(x, source, added), expected)
    swapped = torch.tensor([1, 0])
    turned = attention.read(x[[2, 3, 0, 1]], source[swapped], added[swapped])
    torch.testing.assert_close(turned, expected[[2, 3, 0, 1]])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_going_on_token_by_token_is_causal_attention(scheme):
    attention, where, x, index = attention_and_input(scheme, causal=True)
    added = masks.as_scores(masks.causal(index), where.bias(index, index), x.dtype)
    expected = attention(x, added=added, positions=where.at(0), index=index)
    nothing = torch.empty(2, 2, 0, 8)
    kept = KVCache(KVStorage(nothing, nothing))
    for at in range(6):
        now = index[:, at : at + 1]
        added = where.bias(now, index[:, : at + 1])
        here = {"added": added, "positions": where.at(0), "index": now}
        out = attention(x[:, at : at + 1], **here, cache=kept)
        torch.testing.assert_close(out[:, 0], expected[:, at])
    assert kept.keys.shape == kept.values.shape == (2, 2, 6, 8)


def test_a_query_that_may_see_nothing_reads_zero_and_never_nan():
    attention, where, x, index = attention_and_input()
    allowed = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    allowed[0, 0, 2] = False
    added = masks.as_scores(allowed, None, x.dtype)
    x.requires_grad_()
    fused = attention(x, added=added, positions=where, index=index)
    (expected,) = torch.autograd.grad(fused.square().sum(), x)
    with recording(attention) as heard:
        spelled_out = attention(x, added=added, positions=where, index=index)
    (gradient,) = torch.autograd.grad(spelled_out.square().sum(), x)
    assert heard[0][0, :, 2].eq(0).all()
    torch.testing.assert_close(spelled_out, fused)
    torch.testing.assert_close(gradient, expected, atol=1e-3, rtol=1e-3)


def test_a_listener_may_change_what_it_hears_and_is_gone_afterwards():
    attention, where, x, index = attention_and_input()
    before = attention(x, added=None, positions=where, index=index)
    with listening(attention, ablating({0: [0, 1]})):
        silent = attention(x, added=None, positions=where, index=index)
    torch.testing.assert_close(silent, attention.output.bias.expand_as(silent))
    torch.testing.assert_close(attention(x, added=None, positions=where, index=index), before)


def test_a_listener_is_gone_even_after_an_error():
    attention, *_ = attention_and_input()
    with pytest.raises(RuntimeError, match="stop"), recording(attention):
        raise RuntimeError("stop")
    assert attention.listener is None


def test_dropout_acts_in_training_only():
    attention, where, x, index = attention_and_input(attention_dropout=0.5)
    still = attention(x, added=None, positions=where, index=index)
    attention.train()
    assert not torch.allclose(attention(x, added=None, positions=where, index=index), still)
