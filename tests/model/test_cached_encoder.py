"""A causal encoder that generates text: with a key/value cache it says what it says without one."""

from dataclasses import dataclass
from typing import get_args

import pytest
import torch

from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.model.attention import recording
from unmask.model.config import Scheme, SearchSettings
from unmask.model.decoding.beam_search import SpecialIds, search
from unmask.model.network import CausalGenerator, Network
from unmask.model.shape import Shape, TokensConfig
from unmask.system.errors import SettingsError

SCHEMES = get_args(Scheme)
LONGEST = 32  # of a tiny network
VARIANTS = {
    "plain": {},
    "window": {"window": 2},
    "windows": {"layers": 3, "layer_settings": ({}, {"window": 2}, {"window": 1})},
    "shared": {"layers": 3, "layer_groups": 2, "layer_settings": ({"window": 3}, {})},
    "modern": {"norm": "pre", "norm_kind": "rms", "bias": False, "head_size": 12, "gated": True},
    "factorised": {"embedding_width": 6},
}
every_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def causal(scheme="learned", heads=None, **changes):
    """A network that predicts the next token."""
    reach = {"reach": 20} if scheme in ("shaw", "t5") else {}
    if scheme == "rotary" and "layer_settings" in changes:
        first, *others = changes["layer_settings"]
        changes["layer_settings"] = ({**first, "rotary_base": 500.0}, *others)
    heads = heads or bert_heads(tokens=True)
    return tiny_network(heads, causal=True, positions=scheme, **reach, **changes)


def words(rows, count, seed=1):
    return torch.randint(5, 23, (rows, count), generator=torch.Generator().manual_seed(seed))


def whole(encoder, tokens, **how):
    """The ordinary pass over rows of one text each.  [N, T] -> [N, T, D]"""
    index = torch.arange(tokens.shape[1]).expand_as(tokens)
    nothing = torch.zeros_like(tokens)
    return encoder(tokens, nothing, index, nothing, **how)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


# The states


@every_scheme
@every_variant
@torch.inference_mode()
def test_token_by_token_it_reads_what_it_reads_at_once(scheme, changes):
    encoder, tokens = causal(scheme, **changes).encoder, words(3, 8)
    expected, prefix = whole(encoder, tokens), encoder.begin(3)
    for at in range(8):
        states, prefix = encoder.step(prefix, tokens[:, at : at + 1])
        close(states[:, 0], expected[:, at])


@every_scheme
@every_variant
@torch.inference_mode()
def test_several_tokens_may_be_read_in_one_step(scheme, changes):
    encoder, tokens = causal(scheme, **changes).encoder, words(3, 8)
    prefix, found = encoder.begin(3), []
    for part in tokens.split([5, 1, 2], dim=1):
        states, prefix = encoder.step(prefix, part)
        found.append(states)
    close(torch.cat(found, dim=1), whole(encoder, tokens))
    assert prefix.owner is None, "there is no padding"


@every_scheme
@every_variant
@torch.inference_mode()
def test_texts_of_different_lengths_are_read_as_if_each_were_alone(scheme, changes):
    """Three steps with padding in each; a text may have no token at all in a step."""
    encoder = causal(scheme, **changes).encoder
    parts = [words(3, count, seed) for seed, count in enumerate((4, 1, 3))]
    lengths = torch.tensor([[4, 1, 2], [1, 0, 3], [2, 1, 0]])  # of the texts, in each step
    prefix, found = encoder.begin(3), [[], [], []]
    for part, own in zip(parts, lengths.T, strict=True):
        states, prefix = encoder.step(prefix, part, lengths=own)
        for n in range(3):
            found[n].append(states[n, : own[n]])
    for n in range(3):
        own = [part[n, : lengths[n, at]] for at, part in enumerate(parts)]
        close(torch.cat(found[n]), whole(encoder, torch.cat(own)[None])[0])
    assert (prefix.owner >= 0).sum(dim=1).tolist() == [7, 4, 3]


@torch.inference_mode()
def test_what_stands_in_padding_changes_nothing():
    encoder, lengths = causal("shaw").encoder, torch.tensor([4, 2])
    found = []
    for seed in (1, 2):
        prompt = words(2, 4)
        prompt[1, 2:] = words(1, 2, seed)[0]
        _, prefix = encoder.step(encoder.begin(2), prompt, lengths=lengths)
        states, _ = encoder.step(prefix, torch.tensor([[7], [8]]))
        found.append(states)
    assert torch.equal(*found)


@torch.inference_mode()
def test_lengths_that_are_all_whole_are_no_padding():
    encoder, tokens = causal().encoder, words(2, 4)
    some, one = encoder.step(encoder.begin(2), tokens, lengths=torch.tensor([4, 4]))
    other, two = encoder.step(encoder.begin(2), tokens)
    assert torch.equal(some, other)
    assert one.owner is two.owner is None


@torch.inference_mode()
def test_a_prefix_may_go_on_in_several_ways():
    encoder = causal("rotary").encoder
    _, prefix = encoder.step(encoder.begin(2), words(2, 3))
    first, _ = encoder.step(prefix, torch.tensor([[7], [8]]))
    encoder.step(prefix, torch.tensor([[9], [9]]))
    again, _ = encoder.step(prefix, torch.tensor([[7], [8]]))
    assert torch.equal(first, again)


@every_scheme
@pytest.mark.parametrize("lengths", [None, [3, 1, 2]], ids=str)
@torch.inference_mode()
def test_a_selection_goes_on_as_the_whole_would(scheme, lengths):
    encoder = causal(scheme, layer_settings=({}, {"window": 2})).encoder
    own = None if lengths is None else torch.tensor(lengths)
    _, prefix = encoder.step(encoder.begin(3), words(3, 3), lengths=own)
    which, then = torch.tensor([2, 0, 0, 1]), words(3, 1, 5)
    expected, _ = encoder.step(prefix, then)
    found, _ = encoder.step(prefix.select(which), then[which])
    close(found, expected[which])
    assert not torch.allclose(found[:3], expected, atol=1e-3)


@torch.inference_mode()
def test_a_step_has_a_trace_of_all_layers():
    encoder, tokens = causal(layers=3, layer_groups=1).encoder, words(2, 5)
    expected, found = [], []
    whole(encoder, tokens, trace=expected)
    encoder.step(encoder.begin(2), tokens, trace=found)
    assert len(found) == 4
    for one, two in zip(found, expected, strict=True):
        close(one, two)


@torch.inference_mode()
def test_segments_are_those_of_the_step():
    encoder, tokens = causal().encoder, words(1, 4)
    segments = torch.tensor([[0, 0, 1, 1]])
    expected = encoder(tokens, segments, torch.arange(4)[None], torch.zeros_like(tokens))
    found, _ = encoder.step(encoder.begin(1), tokens, segments=segments)
    close(found, expected)


@torch.inference_mode()
def test_whoever_listens_hears_each_layer_once_in_a_step():
    encoder = causal(layers=3, layer_groups=1).encoder
    _, prefix = encoder.step(encoder.begin(1), words(1, 4))
    with recording(encoder) as heard:
        encoder.step(prefix, words(1, 1))
    assert [tuple(weights.shape) for weights in heard] == [(1, 2, 1, 5)] * 3


# Generating


class Everything:
    """As `NextToken`, but it reads the whole text again for every token: no cache, no padding."""

    def __init__(self, network, head="tokens"):
        self.network, self.head = network, head

    def step(self, state, words):
        texts = [[*text, word] for text, word in zip(state.texts, words.tolist(), strict=True)]
        scores = []
        for text in texts:
            trace = []
            encoder = self.network.shape.heads[self.head].encoder
            rows = Row.of(text)
            self.network.encode(rows, encoder=encoder, trace=trace)
            mixed = self.network.heads[self.head].mix(trace)[:, -1]
            scores.append(self.network.token_scores(mixed, self.head))
        return torch.cat(scores), Heard(texts)


@dataclass
class Row:
    """One text."""

    tokens: torch.Tensor
    segments: torch.Tensor
    index: torch.Tensor
    owner: torch.Tensor

    @classmethod
    def of(cls, text):
        tokens = torch.tensor([text])
        nothing = torch.zeros_like(tokens)
        return cls(tokens, nothing, torch.arange(len(text))[None], nothing)


@dataclass
class Heard:
    """All tokens so far."""

    texts: list

    def select(self, which, each=1):
        return Heard([self.texts[n] for n in which.tolist()])


PROMPTS = [[5, 9, 7, 12], [6], [8, 20], [21, 5, 5, 14, 9, 10]]
MARKS = SpecialIds(end=3, never=(0, 1, 2))
SEARCHES = {
    "greedy": {},
    "beams": {"beam_size": 3},
    "drawn": {"sample": True, "temperature": 2.0, "seed": 4},
}


def padded(prompts):
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    tokens = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    return tokens, lengths


@torch.inference_mode()
def generated(network, prompts, settings, *, cached, limits=None, numbers=None, head="tokens"):
    """What follows each prompt, with the cache or without it."""
    tokens, lengths = padded(prompts)
    speaker = CausalGenerator(network, head)
    most = speaker.limits(lengths, 6) if limits is None else torch.tensor(limits)
    if cached:
        prefix, last = speaker.begin(tokens, lengths)
        return search(speaker, prefix, last, most, MARKS, settings, numbers)
    state, last = Heard([prompt[:-1] for prompt in prompts]), torch.tensor([p[-1] for p in prompts])
    return search(Everything(network, head), state, last, most, MARKS, settings, numbers)


def agree(network, how, **others):
    settings = SearchSettings(**how)
    with_it = generated(network, PROMPTS, settings, cached=True, **others)
    without = generated(network, PROMPTS, settings, cached=False, **others)
    assert [one.words for one in with_it] == [one.words for one in without]
    for one, two in zip(with_it, without, strict=True):
        assert one.score == pytest.approx(two.score, abs=1e-3)
    assert len({tuple(one.words) for one in with_it}) > 1, "the prompts make no difference"
    return with_it


@every_scheme
@every_variant
@pytest.mark.parametrize("how", SEARCHES.values(), ids=SEARCHES)
def test_with_a_cache_it_says_what_it_says_without(scheme, changes, how):
    agree(causal(scheme, **changes), how)


@pytest.mark.parametrize("how", SEARCHES.values(), ids=SEARCHES)
def test_the_limits_are_those_that_are_given(how):
    limits = [4, 1, 7, 2]
    found = agree(causal("t5"), how, limits=limits)
    assert all(len(one.words) <= limit for one, limit in zip(found, limits, strict=True))


def test_a_text_says_the_same_whoever_is_searched_with_it():
    network = causal("rotary", window=3)
    together = generated(network, PROMPTS, SearchSettings(), cached=True)
    for prompt, expected in zip(PROMPTS, together, strict=True):
        (alone,) = generated(network, [prompt], SearchSettings(), cached=True)
        assert alone.words == expected.words


def test_greedy_search_by_hand():
    """The likeliest token, again and again."""
    network, text = causal("learned"), [5, 9, 7]
    (found,) = generated(network, [text], SearchSettings(), cached=True)
    for word in found.words:
        scores = network.token_scores(whole(network.encoder, torch.tensor([text]))[:, -1])[0]
        scores[[0, 1, 2]] = float("-inf")
        assert word == int(scores.argmax())
        text = [*text, word]


@pytest.mark.parametrize("mix", ["weighted", (0, 1)], ids=str)
def test_the_head_reads_the_layers_that_it_mixes(mix):
    agree(causal(heads={"tokens": TokensConfig(mix=mix)}), {"beam_size": 2})


def test_another_encoder_generates_with_the_tokens_that_it_borrows():
    main = causal().config
    other = main.model_copy(update={"borrows": "main", "positions": "rotary", "layers": 1})
    heads = {"next": TokensConfig(encoder="small")}
    torch.manual_seed(0)
    network = Network(Shape(encoders={"main": main, "small": other}, heads=heads)).eval()
    agree(network, {"beam_size": 2}, head="next")


# Where it ends


@pytest.mark.parametrize("scheme", ["learned", "sinusoidal", "rotary"])
def test_a_prompt_and_what_follows_fit_into_the_positions(scheme):
    limits = CausalGenerator(causal(scheme)).limits(torch.tensor([4, 30, 32, 31]), 9)
    assert limits.tolist() == [9, 2, 0, 1]


@pytest.mark.parametrize("scheme", ["t5", "shaw", "none"])
def test_without_a_table_of_positions_there_is_no_end(scheme):
    network = causal(scheme)
    assert CausalGenerator(network).limits(torch.tensor([4, 99]), 9).tolist() == [9, 9]
    (found,) = generated(network, [[5] * (LONGEST + 3)], SearchSettings(), cached=True)
    assert found.words


@every_scheme
@pytest.mark.parametrize("how", SEARCHES.values(), ids=SEARCHES)
def test_texts_go_on_while_another_has_ended_at_the_last_position(scheme, how):
    """The first prompt leaves one place; the search steps on with all five."""
    prompts, settings = [words(1, LONGEST - 1)[0].tolist(), *PROMPTS], SearchSettings(**how)
    network, limits = causal(scheme), [1, 6, 6, 6, 6]
    together = generated(network, prompts, settings, cached=True, limits=limits)
    for number, found in enumerate(together):
        own = {"limits": [limits[number]], "numbers": [number]}
        (alone,) = generated(network, [prompts[number]], settings, cached=False, **own)
        assert found.words == alone.words


@every_scheme
@pytest.mark.parametrize("how", SEARCHES.values(), ids=SEARCHES)
def test_a_prompt_that_fills_all_positions_says_nothing(scheme, how):
    """Beside others that go on, and alone."""
    prompts, settings = [words(1, LONGEST)[0].tolist(), *PROMPTS], SearchSettings(**how)
    network = causal(scheme)
    full, *others = generated(network, prompts, settings, cached=True, limits=[0, 6, 6, 6, 6])
    assert full.words == []
    own = {"limits": [6] * len(PROMPTS), "numbers": [1, 2, 3, 4]}
    expected = generated(network, PROMPTS, settings, cached=True, **own)
    assert [one.words for one in others] == [one.words for one in expected]
    (alone,) = generated(network, prompts[:1], settings, cached=True, limits=[0])
    assert alone.words == []


def test_more_tokens_than_positions_are_refused():
    encoder = causal().encoder
    _, prefix = encoder.step(encoder.begin(1), words(1, LONGEST))
    with pytest.raises(SettingsError, match="33 tokens, but the model reads at most 32"):
        encoder.step(prefix, words(1, 1))


def test_an_encoder_that_sees_what_comes_later_generates_nothing():
    with pytest.raises(SettingsError, match="causal = false.*Need a model with causal = true"):
        tiny_network().encoder.begin(1)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_recurrent_encoder_has_no_cache(cell):
    with pytest.raises(SettingsError, match=f'cell = "{cell}": .*only cell = "attention" has'):
        tiny_network(cell=cell, causal=True).encoder.begin(1)
