"""Layers that read word by word, and decoders that hear what their settings say and no more."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import tiny_config, tiny_network, tiny_translator
from unmask.data.batch import collate
from unmask.data.packing import pack
from unmask.model.attention import listening, recording
from unmask.model.decoding.recurrent import RecurrentLayer, last_state
from unmask.model.decoding.unpacking import texts_of
from unmask.text.tokenizer import Encoded

CELLS = ["lstm", "gru"]
FEEDS = ["nothing", "word", "context", "both"]
CONTEXTS = ["last", "mapped", "all"]
SCORINGS = ["additive", "dot", "general"]
PLAIN = [{"feeds": f, "context": c} for f, c in itertools.product(FEEDS, CONTEXTS)]
LOOKING = [{"feeds": f, "attention": a} for f, a in itertools.product(["word", "both"], SCORINGS)]


def name(own):
    return "-".join(map(str, own.values()))


def one_step(kind, weights, x, state):
    """The formulas of Hochreiter and Schmidhuber 1997 (with a forget gate) and of Cho 2014."""
    to_gates, from_state, bias, state_bias = weights
    h, *c = state
    into, over = x @ to_gates.T + bias, h @ from_state.T + state_bias
    if kind == "lstm":
        write, forget, new, show = (into + over).chunk(4, dim=-1)
        cell = forget.sigmoid() * c[0] + write.sigmoid() * new.tanh()
        return show.sigmoid() * cell.tanh(), cell
    (reset, keep, new), (reset2, keep2, new2) = into.chunk(3, dim=-1), over.chunk(3, dim=-1)
    stay = (keep + keep2).sigmoid()
    new = (new + (reset + reset2).sigmoid() * new2).tanh()
    return ((1 - stay) * new + stay * h,)


def weights_of(cell, end="l0"):
    return [getattr(cell, f"{n}_{end}") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def read_by_hand(kind, weights, xs):
    width = weights[1].shape[1]
    state = (torch.zeros(width),) * (2 if kind == "lstm" else 1)
    states = []
    for x in xs:
        state = one_step(kind, weights, x, state)
        states.append(state[0])
    return torch.stack(states)


def layer_of(kind, **changes):
    torch.manual_seed(0)
    return RecurrentLayer(tiny_config(cell=kind, **changes)).eval()


@pytest.mark.parametrize("kind", CELLS)
def test_a_causal_layer_is_the_formula_of_its_cell(kind):
    layer, x = layer_of(kind, causal=True), torch.randn(1, 5, 16)
    expected = read_by_hand(kind, weights_of(layer.cell), x[0])
    torch.testing.assert_close(layer(x, torch.tensor([5]))[0], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
def test_half_of_a_state_has_read_from_the_left_and_half_from_the_right(kind):
    layer, x = layer_of(kind), torch.randn(1, 5, 16)
    there = read_by_hand(kind, weights_of(layer.cell), x[0])
    back = read_by_hand(kind, weights_of(layer.cell, "l0_reverse"), x[0].flip(0)).flip(0)
    expected = torch.cat([there, back], dim=-1)
    torch.testing.assert_close(layer(x, torch.tensor([5]))[0], expected, atol=1e-6, rtol=1e-5)


def examples(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for n in lengths:
        ids = torch.randint(5, 19, (n,), generator=generator).tolist()
        found.append(Encoded(ids, [0] * n, [(0, 0)] * n, [False] * n))
    return found


def states_of(encoder, some, rows):
    batch = collate(some, rows, pad_id=0)
    hidden = encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    places = zip(batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True)
    return [hidden[row, start : start + length] for row, start, length in places]


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("causal", [False, True])
def test_sharing_a_row_or_a_batch_changes_nothing(kind, causal):
    encoder = tiny_network(cell=kind, causal=causal).encoder
    some = examples([7, 3, 12, 1, 9, 5])
    alone = [states_of(encoder, [one], [[0]])[0] for one in some]
    packed = states_of(encoder, some, pack([len(one) for one in some], 16))
    padded = states_of(encoder, some, [[i] for i in range(len(some))])
    for one, two, three in zip(alone, packed, padded, strict=True):
        torch.testing.assert_close(two, one, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(three, one, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
def test_what_stands_in_padding_is_never_read(kind):
    encoder = tiny_network(cell=kind).encoder
    batch = collate(examples([7, 3]), [[0], [1]], pad_id=0)
    first = encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    noise = batch.tokens.masked_fill(batch.owner < 0, 7)
    second = encoder(noise, batch.segments, batch.index, batch.owner)
    assert torch.equal(second, first)
    assert second[batch.owner < 0].eq(0).all()


@pytest.mark.parametrize("kind", CELLS)
def test_causal_layers_do_not_see_the_future_and_others_do(kind):
    for causal in (True, False):
        encoder = tiny_network(cell=kind, causal=causal).encoder
        one, two = examples([5])[0], examples([5])[0]
        two.ids[4] = 22
        (one,), (two,) = (states_of(encoder, [e], [[0]]) for e in (one, two))
        assert torch.equal(one[:4], two[:4]) == causal
        assert not torch.allclose(one[4], two[4])


@pytest.mark.parametrize("kind", CELLS)
def test_the_trace_has_the_embeddings_and_every_layer_in_their_rows(kind):
    encoder = tiny_network(cell=kind).encoder
    batch = collate(examples([4, 3, 5]), [[0, 1], [2]], pad_id=0)
    trace = []
    last = encoder(batch.tokens, batch.segments, batch.index, batch.owner, trace=trace)
    places = torch.tensor([1, 6, 9])
    at = encoder(batch.tokens, batch.segments, batch.index, batch.owner, places=places)
    assert [state.shape for state in trace] == [last.shape] * 3
    assert torch.equal(trace[-1], last)
    assert torch.equal(at, last.flatten(0, 1)[places])
    real = batch.owner >= 0
    embedded = encoder.embeddings(batch.tokens, batch.segments, batch.index)
    assert torch.equal(trace[0][real], embedded[real])


def test_the_last_state_of_two_directions_is_where_each_has_read_all():
    states = torch.arange(2 * 3 * 4.0).view(2, 3, 4)
    length = torch.tensor([3, 2])
    both = last_state(states, length, tiny_config(cell="gru"))
    assert both.tolist() == [[8.0, 9.0, 2.0, 3.0], [16.0, 17.0, 14.0, 15.0]]
    one = last_state(states, length, tiny_config(cell="gru", causal=True))
    assert one.tolist() == [[8.0, 9.0, 10.0, 11.0], [16.0, 17.0, 18.0, 19.0]]


def test_cls_stands_for_a_text_unless_it_sees_nothing_of_it():
    states = torch.arange(2 * 3 * 4.0).view(2, 3, 4)
    length = torch.tensor([3, 2])
    assert torch.equal(last_state(states, length, tiny_config()), states[:, 0])
    causal = last_state(states, length, tiny_config(causal=True))
    assert torch.equal(causal, torch.stack([states[0, 2], states[1, 1]]))


def asked(own, kind="gru", lengths=(4, 2, 6), *, words=5, **changes):
    """A decoder, what it has read (random states), and what it is to hear."""
    network = tiny_translator({"cell": kind, **own}, cell="gru", **changes)
    owner = torch.full((len(lengths), max(lengths)), -1)
    index = torch.zeros_like(owner)
    for row, length in enumerate(lengths):
        owner[row, :length], index[row, :length] = 0, torch.arange(length)
    texts = texts_of(owner, index)
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(*owner.shape, 16, generator=generator) * (owner >= 0)[..., None]
    said = torch.randint(5, 19, (len(lengths), words), generator=generator)
    return network.heads["decoder"], states, texts, said, network.words()


def step_by_step(decoder, spoken, words, table):
    found = []
    for heard in words.unbind(1):
        state, spoken = decoder.step(spoken, heard, table)
        found.append(state)
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("own", [*PLAIN, *LOOKING], ids=name)
def test_word_by_word_is_all_words_at_once(kind, own):
    decoder, states, texts, words, table = asked(own, kind)
    spoken = decoder.begin(states, texts)
    together = decoder(spoken, words, table)
    assert together.shape == (3, 5, 16)
    one_by_one = step_by_step(decoder, spoken, words, table)
    torch.testing.assert_close(one_by_one, together, atol=1e-5, rtol=1e-5)
    forced = decoder(spoken, words, table, torch.ones(3, 5, dtype=torch.bool))
    torch.testing.assert_close(forced, together, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("own", [*PLAIN, *LOOKING], ids=name)
def test_texts_of_one_batch_do_not_change_each_other(kind, own):
    decoder, states, texts, words, table = asked(own, kind)
    together = decoder(decoder.begin(states, texts), words, table)
    for n, length in enumerate(texts.length.tolist()):
        owner = torch.zeros(1, length, dtype=torch.long)
        single = texts_of(owner, torch.arange(length)[None])
        spoken = decoder.begin(states[n : n + 1, :length], single)
        alone = decoder(spoken, words[n : n + 1], table)
        torch.testing.assert_close(together[n : n + 1], alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("own", [*PLAIN, *LOOKING], ids=name)
def test_a_selection_goes_on_as_the_whole_would(own):
    decoder, states, texts, words, table = asked(own)
    _, spoken = decoder.step(decoder.begin(states, texts), words[:, 0], table)
    whole, _ = decoder.step(spoken, words[:, 1], table)
    which = torch.tensor([2, 0, 0, 1])
    some, _ = decoder.step(spoken.select(which), words[which, 1], table)
    torch.testing.assert_close(some, whole[which], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("own", [*PLAIN, *LOOKING], ids=name)
def test_rows_that_share_a_source_say_what_rows_with_their_own_would(own):
    decoder, states, texts, words, table = asked(own)
    _, spoken = decoder.step(decoder.begin(states, texts), words[:, 0], table)
    twice = torch.arange(3).repeat_interleave(2)
    alone, shared = spoken.select(twice), spoken.select(twice, group_size=2)
    assert shared.states is spoken.states
    for which in (torch.tensor([1, 0, 2, 3, 5, 5]), torch.tensor([5, 4, 0, 1])):
        alone, shared = alone.select(which), shared.select(which, group_size=2)
        assert len(shared.states) == len(which) // 2
        heard = torch.arange(5, 5 + len(which))
        one, shared = decoder.step(shared, heard, table)
        two, alone = decoder.step(alone, heard, table)
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


def context_by_hand(decoder, states, length, kind):
    """Of one text.  [L, D] -> [D]"""
    last = torch.cat([states[length - 1, :8], states[0, 8:]])
    if kind == "last":
        return last
    which = last if kind == "mapped" else states[:length].mean(dim=0)
    return torch.tanh(decoder.map.weight @ which + decoder.map.bias)


@pytest.mark.parametrize("own", PLAIN, ids=name)
def test_a_decoder_is_its_formula(own):
    """One layer of gru, one text; see the top of the source file."""
    decoder, states, texts, words, table = asked({"layers": 1, **own})
    with torch.no_grad():
        if decoder.first is not None:
            decoder.first.copy_(torch.randn_like(decoder.first))
    c = context_by_hand(decoder, states[1], 2, own["context"])
    heard = [F.layer_norm(v, (16,), eps=1e-12) for v in table[words[1]]]
    h, expected = (c if own["feeds"] in ("nothing", "word") else decoder.first[0, 0]), []
    for y in heard:
        fed = {
            "nothing": torch.zeros(1),
            "word": y,
            "context": c,
            "both": torch.cat([y, c]),
        }[own["feeds"]]
        (h,) = one_step("gru", weights_of(decoder.cell), fed, (h,))
        seen = {"nothing": [h], "word": [h, y], "context": [h, c], "both": [h, c, y]}[own["feeds"]]
        expected.append(torch.tanh(decoder.read.weight @ torch.cat(seen) + decoder.read.bias))
    found = decoder(decoder.begin(states, texts), words, table)[1]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_both_states_of_an_lstm_begin_with_the_context():
    decoder, states, texts, _, _ = asked({"feeds": "word"}, "lstm")
    hidden, cell = decoder.begin(states, texts).cell
    expected = last_state(states, texts.length, tiny_config(cell="gru"))
    assert torch.equal(hidden, expected.expand(2, -1, -1))
    assert torch.equal(cell, hidden)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("own", [*PLAIN, *LOOKING], ids=name)
def test_who_is_fed_no_word_does_not_hear_any(kind, own):
    decoder, states, texts, words, table = asked(own, kind)
    spoken = decoder.begin(states, texts)
    other = words.clone()
    other[:, 1] = 5 + (words[:, 1] - 4) % 14
    before, after = decoder(spoken, words, table), decoder(spoken, other, table)
    deaf = own["feeds"] in ("nothing", "context")
    assert torch.equal(before, after) == deaf
    assert torch.equal(before[:, 0], after[:, 0]), "the past does not change"
    if not deaf:
        for late in (1, 2, 4):
            assert not torch.allclose(before[:, late], after[:, late])


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("feeds", FEEDS)
def test_only_a_context_that_is_fed_survives_a_lost_state(kind, feeds):
    """After two steps all that the state remembers is taken away."""
    decoder, states, texts, words, table = asked({"feeds": feeds}, kind)
    spoken = decoder.begin(states, texts)
    words = words[:1].expand(3, -1)  # the same for all: only the sources differ
    for at in (0, 1):
        _, spoken = decoder.step(spoken, words[:, at], table)
    empty = tuple(torch.zeros_like(part) for part in spoken.cell)
    third, _ = decoder.step(type(spoken)(**{**vars(spoken), "cell": empty}), words[:, 2], table)
    alike = torch.allclose(third, third[:1].expand_as(third), atol=1e-6)
    assert alike == (feeds in ("nothing", "word"))


def scores_by_hand(alignment, scoring, query, states):
    """[D], [L, D] -> [L]"""
    if scoring == "dot":
        return states @ query
    keys = states @ alignment.key.weight.T
    if scoring == "general":
        return keys @ query
    asked = alignment.query.weight @ query + alignment.query.bias
    return torch.tanh(keys + asked) @ alignment.score.weight[0]


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("own", LOOKING, ids=name)
def test_a_decoder_looks_where_its_scores_say_and_never_at_padding(kind, own):
    decoder, states, texts, words, table = asked(own, kind)
    spoken = decoder.begin(states, texts)
    for word in words.unbind(1):
        before = spoken.cell[0][-1]  # of the upper layer
        with recording(decoder.alignment) as heard:
            _, spoken = decoder.step(spoken, word, table)
        now = spoken.cell[0][-1]
        query = before if own["feeds"] == "both" else now
        (weights,) = heard
        assert weights.shape == (3, 1, 1, 6)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 1))
        for n, length in enumerate(texts.length.tolist()):
            assert weights[n, 0, 0, length:].eq(0).all()
            scores = scores_by_hand(decoder.alignment, own["attention"], query[n], states[n])
            expected = scores[:length].softmax(dim=-1)
            torch.testing.assert_close(weights[n, 0, 0, :length], expected, atol=1e-6, rtol=1e-5)
            if own["feeds"] == "both":  # what it found is what it is fed
                seen = expected @ states[n, :length]
                torch.testing.assert_close(spoken.context[n, 0], seen, atol=1e-5, rtol=1e-5)


def test_all_looks_at_once_are_those_of_every_step():
    decoder, states, texts, words, table = asked({"feeds": "word", "attention": "general"})
    spoken = decoder.begin(states, texts)
    with recording(decoder.alignment) as once:
        decoder(spoken, words, table)
    with recording(decoder.alignment) as each:
        step_by_step(decoder, spoken, words, table)
    torch.testing.assert_close(torch.cat(each, dim=2), once[0], atol=1e-6, rtol=1e-5)


def test_a_listener_changes_what_is_read():
    decoder, states, texts, words, table = asked({"feeds": "both", "attention": "dot"})
    spoken = decoder.begin(states, texts)
    first = torch.zeros(3, 1, 1, 6)
    first[..., 0] = 1.0
    with listening(decoder, lambda layer, weights: first):
        _, after = decoder.step(spoken, words[:, 0], table)
    assert torch.equal(after.context[:, 0], states[:, 0])


@pytest.mark.parametrize("own", [{"feeds": "word"}, {"feeds": "both", "attention": "additive"}])
def test_who_is_not_forced_hears_its_own_words(own):
    decoder, states, texts, words, table = asked(own)
    spoken = decoder.begin(states, texts)
    nowhere = torch.zeros(3, 5, dtype=torch.bool)
    free = decoder(spoken, words, table, nowhere)
    state, heard, expected = spoken, words[:, 0], []
    for _ in range(5):
        own_state, state = decoder.step(state, heard, table)
        expected.append(own_state)
        heard = F.linear(own_state, table, decoder.bias).argmax(dim=-1)
    torch.testing.assert_close(free, torch.stack(expected, dim=1), atol=1e-6, rtol=1e-5)
    other = words.clone()
    other[:, 1:] = 5
    assert torch.equal(decoder(spoken, other, table, nowhere), free), "the truth is not heard"


def test_a_word_is_heard_as_it_should_be_just_where_that_is_forced():
    decoder, states, texts, words, table = asked({"feeds": "word"})
    spoken = decoder.begin(states, texts)
    forced = torch.tensor([[0, 1, 0, 0, 1], [0, 0, 1, 1, 0], [1, 0, 0, 1, 0]]).bool()
    found = decoder(spoken, words, table, forced)
    said = F.linear(found, table, decoder.bias).argmax(dim=-1)
    heard = words.clone()
    heard[:, 1:] = torch.where(forced[:, 1:], words[:, 1:], said[:, :-1])
    assert not torch.equal(heard, words)
    torch.testing.assert_close(decoder(spoken, heard, table), found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("own", [*PLAIN, *LOOKING], ids=name)
def test_every_parameter_gets_a_gradient(kind, own):
    """Of the encoder too; processes that share the work wait for the gradient of each."""
    network = tiny_translator({"cell": kind, **own}, cell=kind).train()
    batch = collate(examples([7, 6]), [[0, 1]], pad_id=0)
    hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    texts = texts_of(batch.owner, batch.index)
    spoken = network.heads["decoder"].begin(texts.apart(hidden), texts)
    words = torch.randint(5, 19, (2, 5))
    states = network.heads["decoder"](spoken, words, network.words())
    network.token_loss(states.flatten(0, 1), words.flatten(), "decoder").backward()
    unfed = {"heads.decoder.cell.weight_ih_l0"} if own["feeds"] == "nothing" else set()
    without = {
        name
        for name, p in network.named_parameters()
        if p.grad is None or (name not in unfed and not p.grad.abs().sum() > 0)
    }
    assert not without
