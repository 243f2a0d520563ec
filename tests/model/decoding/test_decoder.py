"""The Transformer's decoder: at once or word by word, and nobody sees more than is theirs."""

from typing import get_args

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import tiny_config, tiny_translator
from tests.shapes import bert_heads
from unmask.data.batch import collate
from unmask.data.packing import pack
from unmask.model.attention import recording
from unmask.model.config import READ_BY_SCHEME, Scheme
from unmask.model.decoding.unpacking import texts_of
from unmask.model.network import Network
from unmask.model.shape import DecoderConfig, Shape
from unmask.system.errors import SettingsError
from unmask.text.tokenizer import Encoded

SCHEMES = get_args(Scheme)
PAIRS = [(7, 4), (3, 6), (5, 5), (2, 1), (6, 3)]  # tokens of a source and of its target


def far(scheme):
    return {"reach": 20} if scheme in READ_BY_SCHEME["reach"] else {}


def texts(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for n in lengths:
        ids = torch.randint(5, 19, (n,), generator=generator).tolist()
        found.append(Encoded(ids, [0] * n, [(0, 0)] * n, [False] * n))
    return found


def sources(pairs=PAIRS):
    return texts([source for source, _ in pairs], 1)


def targets(pairs=PAIRS):
    return texts([target for _, target in pairs], 2)


def apart(x, batch):
    places = zip(batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True)
    return [x[row, start : start + length] for row, start, length in places]


def decoded(network, some, said, rows):
    """The states of each target, wherever it lies."""
    read, heard = (collate(side, rows, pad_id=0) for side in (some, said))
    states = network.encoder(read.tokens, read.segments, read.index, read.owner)
    words = heard.tokens, heard.index, heard.owner
    found = network.heads["decoder"](*words, states, read.owner, network.words())
    return apart(found, heard)


def alone(network, some, said):
    return [decoded(network, [s], [t], [[0]])[0] for s, t in zip(some, said, strict=True)]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("training", [True, False])  # our own kernel, or torch's
def test_pairs_that_share_a_row_do_not_see_each_other(scheme, norm, training):
    changes = {"positions": scheme, "norm": norm, **far(scheme)}
    network = tiny_translator({}, **changes)
    some, said = sources(), targets()
    with torch.set_grad_enabled(training):
        expected = alone(network, some, said)
        for rows in (pack([max(pair) for pair in PAIRS], 14), [[i] for i in range(5)]):
            found = decoded(network, some, said, rows)
            for one, two in zip(found, expected, strict=True):
                torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_the_words_to_come_are_not_seen():
    network = tiny_translator({})
    (source,), (target,) = sources([(6, 5)]), targets([(6, 5)])
    (before,) = decoded(network, [source], [target], [[0]])
    target.ids[3] = 22 - target.ids[3]
    (after,) = decoded(network, [source], [target], [[0]])
    assert torch.equal(before[:3], after[:3])
    for late in (3, 4):
        assert not torch.allclose(before[late], after[late])


def test_every_word_sees_all_of_its_source_and_nothing_of_a_neighbours():
    network = tiny_translator({})
    read, heard = (
        collate(side, [[0, 1], [2]], pad_id=0) for side in (sources()[:3], targets()[:3])
    )
    states = torch.randn(*read.tokens.shape, 16, requires_grad=True)
    words = heard.tokens, heard.index, heard.owner
    found = network.heads["decoder"](*words, states, read.owner, network.words())
    for n, own in enumerate(apart(found, heard)):
        for state in own:
            (grad,) = torch.autograd.grad(state.square().sum(), states, retain_graph=True)
            touched = grad.abs().sum(-1) > 0
            row, start, length = (int(part[n]) for part in (read.row, read.start, read.length))
            expected = torch.zeros_like(touched)
            expected[row, start : start + length] = True
            assert torch.equal(touched, expected)


def steps(network, some, words):
    """Word by word, all sources padded to the longest.  words [N, T] -> [N, T, D]"""
    read = collate(some, [[i] for i in range(len(some))], pad_id=0)
    states = network.encoder(read.tokens, read.segments, read.index, read.owner)
    where = texts_of(read.owner, read.index)
    said = network.heads["decoder"].begin(where.apart(states), where)
    found = []
    for word in words.unbind(1):
        state, said = network.heads["decoder"].step(said, word, network.words())
        found.append(state)
    return torch.stack(found, dim=1), said


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"gated": True}, {"cell": "gru"}])
def test_word_by_word_is_all_words_at_once(scheme, changes):
    if "cell" not in changes:
        changes = {"positions": scheme, **far(scheme), **changes}
    network = tiny_translator({"max_length": 6}, **changes)
    some, said = sources(), targets([(s, 6) for s, _ in PAIRS])
    words = torch.tensor([target.ids for target in said])
    found, _ = steps(network, some, words)
    for one, two in zip(found, alone(network, some, said), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_selection_goes_on_as_the_whole_would():
    network = tiny_translator({}, positions="t5", reach=20)
    words = torch.tensor([target.ids for target in targets([(0, 3)] * 5)])
    _, said = steps(network, sources(), words)
    which, next_words = torch.tensor([3, 1, 1, 4]), torch.tensor([5, 6, 7, 8, 9])
    whole, _ = network.heads["decoder"].step(said, next_words, network.words())
    some, _ = network.heads["decoder"].step(said.select(which), next_words[which], network.words())
    torch.testing.assert_close(some, whole[which], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(some, whole[:4], atol=1e-3)


@torch.inference_mode()
def test_rows_that_share_a_source_say_what_rows_with_their_own_would():
    network = tiny_translator({}, positions="rotary")
    words = torch.tensor([target.ids for target in targets([(0, 3)] * 5)])
    _, said = steps(network, sources(), words)
    own = said.select(torch.arange(5).repeat_interleave(3))
    shared = said.select(torch.arange(5).repeat_interleave(3), group_size=3)
    assert shared.source is said.source
    step = network.heads["decoder"].step
    for which in (torch.arange(15).view(5, 3).flip(1), torch.tensor([[12, 12, 14], [3, 5, 4]])):
        heard = 5 + torch.arange(which.numel()) % 14
        shared, own = shared.select(which.flatten(), group_size=3), own.select(which.flatten())
        assert len(shared.source[0]) == len(which)
        one, shared = step(shared, heard, network.words())
        two, own = step(own, heard, network.words())
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


def heads_of(x):
    return x.unflatten(-1, (2, 8)).transpose(-2, -3)  # [.., S, D] -> [.., H, S, d]


def test_weights_of_the_look_at_the_source_are_its_formula():
    """One block, post-norm, one pair: softmax(q k / sqrt(d)), q of the words, k of the source."""
    network = tiny_translator({"layers": 1})
    (source,), (target,) = sources([(6, 4)]), targets([(6, 4)])
    read = collate([source], [[0]], pad_id=0)
    states = network.encoder(read.tokens, read.segments, read.index, read.owner)[0]
    with recording(network.heads["decoder"]) as heard:
        (found,) = decoded(network, [source], [target], [[0]])
    own, crossed = heard
    assert own.shape == (1, 2, 4, 4)
    block, table = network.heads["decoder"].blocks[0], network.words()
    x = network.heads["decoder"].norm(
        table[target.ids] + network.heads["decoder"].positions.table.weight[:4]
    )

    def mixed(attention, asking, answering, mask):
        q, k, v = (
            heads_of(F.linear(side, *part))
            for side, part in zip(
                (asking, answering, answering),
                zip(attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3), strict=True),
                strict=True,
            )
        )
        scores = q @ k.transpose(-1, -2) / 8**0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return weights, attention.output((weights @ v).transpose(0, 1).flatten(1))

    past, all_of = torch.ones(4, 4).tril().bool(), torch.ones(4, 6).bool()
    first, read_own = mixed(block.attention, x, x, past)
    x = block.attention_norm(x + read_own)
    second, read_source = mixed(block.cross, x, states, all_of)
    x = block.cross_norm(x + read_source)
    x = block.feed_norm(x + block.feed(x))
    torch.testing.assert_close(own[0], first, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(crossed[0], second, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found, x, atol=1e-5, rtol=1e-5)


def test_who_listens_hears_of_each_step_what_is_heard_of_all_at_once():
    network = tiny_translator({})
    (source,), (target,) = sources([(6, 4)]), targets([(6, 4)])
    with recording(network.heads["decoder"]) as once:
        decoded(network, [source], [target], [[0]])
    with recording(network.heads["decoder"]) as each:
        steps(network, [source], torch.tensor([target.ids]))
    for at in range(4):
        for part in range(4):  # two blocks, each with a look at itself and one at the source
            seen = each[4 * at + part]
            expected = once[part][:, :, at : at + 1, : seen.shape[-1]]
            torch.testing.assert_close(seen, expected, atol=1e-6, rtol=1e-5)


def test_it_is_torchs_decoder():
    """The same numbers from torch.nn.TransformerDecoder with the same weights."""
    network = tiny_translator({"layers": 1}, activation="relu", norm_epsilon=1e-5)
    block = network.heads["decoder"].blocks[0]
    theirs = torch.nn.TransformerDecoderLayer(16, 2, 32, 0.0, batch_first=True).eval()
    for ours, other in ((block.attention, theirs.self_attn), (block.cross, theirs.multihead_attn)):
        other.in_proj_weight, other.in_proj_bias = ours.qkv.weight, ours.qkv.bias
        other.out_proj.load_state_dict(ours.output.state_dict())
    theirs.linear1.load_state_dict(block.feed.inner.state_dict())
    theirs.linear2.load_state_dict(block.feed.outer.state_dict())
    states, x, index = torch.randn(3, 6, 16), torch.randn(3, 4, 16), torch.arange(4).expand(3, -1)
    owner, source_owner = torch.zeros(3, 4).long(), torch.zeros(3, 6).long()
    network.heads["decoder"]._embed = lambda *_: x
    found = network.heads["decoder"](owner, index, owner, states, source_owner, network.words())
    expected = theirs(x, states, tgt_mask=torch.full((4, 4), float("-inf")).triu(1))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shared", [True, False])
def test_every_parameter_gets_a_gradient(scheme, shared):
    network = tiny_translator({"shared": shared}, positions=scheme, **far(scheme)).train()
    found = decoded(network, sources(), targets(), pack([max(pair) for pair in PAIRS], 14))
    states = torch.cat(found)
    network.token_loss(states, torch.randint(5, 19, (len(states),)), "decoder").backward()
    without = [
        name
        for name, p in network.named_parameters()
        if p.grad is None or not p.grad.abs().sum() > 0
    ]
    assert not without


def test_shared_words_are_the_encoders():
    shared, own = tiny_translator({"shared": True}), tiny_translator({})
    assert shared.words() is shared.encoder.embeddings.tokens.weight
    assert shared.heads["decoder"].tokens is None
    assert own.words() is own.heads["decoder"].tokens.weight
    assert own.words().shape == (19, 16)


def test_one_table_has_as_many_words_for_both_sides():
    heads = bert_heads(decoder=DecoderConfig(vocab_size=19, layers=1, shared=True))
    with pytest.raises(
        SettingsError, match="decoder: its vocab_size is 19, but the encoder's is 23"
    ):
        Network(Shape.of(tiny_config(), heads))


def test_a_table_of_positions_is_as_limited_as_the_encoders():
    heads = bert_heads(decoder=DecoderConfig(vocab_size=19, layers=1, max_length=2**17))
    with pytest.raises(SettingsError, match="decoder: max_length 131072 times 128 channels"):
        Network(Shape.of(tiny_config(positions="sinusoidal", width=128), heads))


def test_buckets_of_distances_are_all_spent_on_what_is_behind():
    network = tiny_translator({}, positions="t5", buckets=8, reach=20)
    behind = torch.tensor([0, -1, -2, -3])
    assert network.heads["decoder"].positions.bucket(behind).tolist() == [0, 1, 2, 3]
    assert network.encoder.positions.bucket(behind).tolist() != [0, 1, 2, 3]
