"""The encoder on packed rows: the states of a text do not depend on the others in its row."""

from typing import get_args

import pytest
import torch

from tests.conftest import tiny_config, tiny_network
from unmask.data.batch import collate
from unmask.data.packing import pack
from unmask.model.config import READ_BY_SCHEME, Scheme
from unmask.model.encoder import Encoder
from unmask.model.init import init_weights
from unmask.text.tokenizer import Encoded

SCHEMES = get_args(Scheme)


def far(scheme):
    """A reach beyond every text, where the scheme has one: else far distances look the same."""
    return {"reach": 20} if scheme in READ_BY_SCHEME["reach"] else {}


def example(ids, second=()):
    both = [*ids, *second]
    return Encoded(
        both, [0] * len(ids) + [1] * len(second), [(0, 0)] * len(both), [False] * len(both)
    )


def random_examples(lengths):
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randint(5, 23, (n,), generator=generator).tolist()  # noqa: E731
    return [example(draw(n - n // 3), draw(n // 3)) for n in lengths]


def states_of(encoder, examples, rows):
    """The hidden states of each text, wherever it lies."""
    batch = collate(examples, rows, pad_id=0)
    hidden = encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    places = zip(batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True)
    return [hidden[row, start : start + length] for row, start, length in places]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "changes", [{}, {"norm": "pre"}, {"gated": True}, {"causal": True}, {"window": 3}]
)
def test_sharing_a_row_changes_nothing(scheme, changes):
    encoder = tiny_network(positions=scheme, **far(scheme), **changes).encoder
    examples = random_examples([7, 3, 12, 1, 9, 5])
    alone = [states_of(encoder, [one], [[0]])[0] for one in examples]
    packed = states_of(encoder, examples, pack([len(e) for e in examples], 16))
    padded = states_of(encoder, examples, [[i] for i in range(len(examples))])
    for one, two, three in zip(alone, packed, padded, strict=True):
        torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(three, one, atol=1e-5, rtol=1e-5)


def test_what_stands_in_padding_changes_nothing():
    encoder = tiny_network().encoder
    batch = collate(random_examples([7, 3]), [[0], [1]], pad_id=0)
    first = encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    noise = batch.tokens.masked_fill(batch.owner < 0, 7)
    second = encoder(noise, batch.segments, batch.index, batch.owner)
    real = batch.owner >= 0
    torch.testing.assert_close(second[real], first[real])


def test_without_positions_order_does_not_matter_and_with_them_it_does():
    forwards, backwards = example([5, 6, 7, 8]), example([8, 7, 6, 5])
    for scheme in SCHEMES:
        encoder = tiny_network(positions=scheme, **far(scheme)).encoder
        one, two = (states_of(encoder, [e], [[0]])[0] for e in (forwards, backwards))
        same = torch.allclose(one, two.flip(0), atol=1e-5)
        assert same == (scheme == "none"), scheme


def test_a_causal_encoder_does_not_see_the_future():
    encoder = tiny_network(causal=True).encoder
    one = states_of(encoder, [example([5, 6, 7, 8])], [[0]])[0]
    two = states_of(encoder, [example([5, 6, 7, 9])], [[0]])[0]
    torch.testing.assert_close(one[:3], two[:3])
    assert not torch.allclose(one[3], two[3])


def test_the_trace_has_the_embeddings_and_every_block():
    network = tiny_network()
    encoder = network.encoder
    tokens, index = torch.tensor([[5, 6, 7]]), torch.arange(3)[None]
    trace = []
    embedded = encoder.embeddings(tokens, torch.zeros_like(tokens), index)
    last = encoder.run(embedded, None, index, trace=trace)
    assert len(trace) == encoder.config.layers + 1
    assert torch.equal(trace[0], embedded)
    assert torch.equal(trace[-1], last)


def test_pre_norm_ends_with_a_norm_and_leaves_the_input_a_straight_way_through():
    encoder = tiny_network(norm="pre").encoder
    with torch.no_grad():
        for block in encoder.blocks:
            for part in (block.attention.output, block.feed.outer):
                part.weight.zero_()
                part.bias.zero_()
    tokens, index = torch.tensor([[5, 6, 7]]), torch.arange(3)[None]
    x = encoder.embeddings(tokens, torch.zeros_like(tokens), index)
    torch.testing.assert_close(encoder.run(x, None, index), encoder.last_norm(x))


def test_weights_start_narrow_and_cut_at_two_deviations():
    encoder = Encoder(tiny_config(width=64, inner_width=256))
    weights = encoder.blocks[0].feed.inner.weight
    assert weights.abs().max() <= 0.04
    assert weights.std().item() == pytest.approx(0.88 * 0.02, rel=0.05)  # of the cut distribution
    assert encoder.blocks[0].feed.inner.bias.eq(0).all()
    assert encoder.embeddings.norm.weight.eq(1).all()


def test_every_parameter_gets_a_gradient():
    for scheme in SCHEMES:
        encoder = tiny_network(positions=scheme, **far(scheme)).encoder.train()
        for module in encoder.modules():
            init_weights(module, 0.2)
        batch = collate(random_examples([7, 6]), [[0, 1]], pad_id=0)
        hidden = encoder(batch.tokens, batch.segments, batch.index, batch.owner)
        (hidden * torch.randn_like(hidden)).sum().backward()
        without = [
            name
            for name, p in encoder.named_parameters()
            if p.grad is None or not p.grad.abs().sum() > 0
        ]
        assert not without, (scheme, without)
