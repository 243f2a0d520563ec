"""Norms, biases, the width of heads: each is an argument, and without them a BERT is a BERT.

What an encoder computes is held against a few lines of plain tensor algebra (`by_formula`).
"""

import tomllib
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import tiny_config, tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import _least_parameters, load_folder, save_folder
from unmask.checkpoint.names import differences_from_bert
from unmask.model.attention import Attention, recording
from unmask.model.block import FeedForward, norm_of
from unmask.model.config import ModelConfig
from unmask.model.decoding.unpacking import texts_of
from unmask.model.encoder import Encoder
from unmask.model.init import init_weights
from unmask.model.kernels.int8 import Int8Linear, observing, quantized
from unmask.model.network import Network, count_parameters
from unmask.model.positions import Positions
from unmask.model.shape import DecoderConfig, Shape
from unmask.system.errors import SettingsError
from unmask.system.settings import validate, write_toml
from unmask.train.recipe import ModelSettings

TORCH = ".".join(torch.__version__.split(".")[:2])
RECORDED = "2.13"  # the version of torch with which operations were counted
VARIANTS = {
    "BERT": {},
    "rms norms": {"norm_kind": "rms"},
    "norms without bias": {"norm_bias": False},
    "no biases": {"bias": False},
    "wide heads": {"head_size": 12},
    "narrow heads": {"head_size": 3},
    "heads of an odd width": {"head_size": 5},
    "all of it": {"norm_kind": "rms", "bias": False, "head_size": 12, "gated": True, "norm": "pre"},
}
every_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)


@dataclass
class Texts:
    """Rows of random tokens: two texts and padding, one text."""

    tokens: torch.Tensor
    segments: torch.Tensor
    index: torch.Tensor
    owner: torch.Tensor


def texts():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(5, 23, (2, 9), generator=generator)
    owner = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1, -1], [0] * 9])
    index = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 0], list(range(9))])
    return Texts(tokens, (index > 2).long(), index, owner)


def states_of(encoder, rows):
    return encoder(rows.tokens, rows.segments, rows.index, rows.owner)


def by_formula(encoder, rows):
    """The states of an encoder with learned positions, from its weights alone."""
    config, state = encoder.config, encoder.state_dict()

    def linear(x, name):
        out = x @ state[f"{name}.weight"].T
        return out + state[f"{name}.bias"] if f"{name}.bias" in state else out

    def norm(x, name):
        centred = x if config.norm_kind == "rms" else x - x.mean(-1, keepdim=True)
        length = (centred.square().mean(-1, keepdim=True) + config.norm_epsilon).sqrt()
        out = centred / length * state[f"{name}.weight"]
        return out + state[f"{name}.bias"] if f"{name}.bias" in state else out

    def attention(x, name):
        size = config.head_size or config.width // config.heads
        q, k, v = (
            part.view(*x.shape[:2], config.heads, size).transpose(1, 2)
            for part in linear(x, f"{name}.qkv").split(config.heads * size, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) / size**0.5
        same = rows.owner[:, :, None] == rows.owner[:, None, :]
        weights = scores.masked_fill(~same[:, None], float("-inf")).softmax(-1)
        return linear((weights @ v).transpose(1, 2).flatten(2), f"{name}.output")

    def feed(x, name):
        inner = linear(x, f"{name}.inner")
        bent = F.gelu(inner[..., : config.inner_width])
        inner = bent * inner[..., config.inner_width :] if config.gated else bent
        return linear(inner, f"{name}.outer")

    x = state["embeddings.tokens.weight"][rows.tokens]
    x = x + state["embeddings.segments.weight"][rows.segments]
    x = norm(x + state["embeddings.positions.table.weight"][rows.index], "embeddings.norm")
    for layer in range(config.layers):
        for part, name in ((attention, "attention"), (feed, "feed")):
            at, of = f"blocks.{layer}.{name}", f"blocks.{layer}.{name}_norm"
            x = x + part(norm(x, of), at) if config.norm == "pre" else norm(x + part(x, at), of)
    return norm(x, "last_norm") if config.norm == "pre" else x


# A BERT is what it was


def bert_parameters(layers):
    """What the parameters of a BERT encoder have always been called."""
    yield from (f"embeddings.{table}.weight" for table in ("tokens", "segments", "positions.table"))
    yield from ("embeddings.norm.weight", "embeddings.norm.bias")
    parts = ("attention.qkv", "attention.output", "feed.inner", "feed.outer")
    for layer in range(layers):
        for part in (*parts, "attention_norm", "feed_norm"):
            yield from (f"blocks.{layer}.{part}.{kind}" for kind in ("weight", "bias"))


def test_a_bert_has_the_parameters_that_it_always_had():
    assert set(tiny_network().encoder.state_dict()) == set(bert_parameters(2))


@pytest.mark.parametrize(
    "same",
    [
        {"norm_kind": "layer", "bias": True, "norm_bias": True},
        {"head_size": 8},
        {"layer_settings": ({},), "layer_cycle": 1},
        {"layer_settings": ({}, {"attention_norm": True})},
        {"layer_groups": 2},
    ],
    ids=str,
)
def test_settings_that_say_what_bert_is_change_no_bit(same):
    bert, other = tiny_network().encoder, tiny_network(**same).encoder
    ours, theirs = bert.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for training in (True, False):
        found = []
        for encoder in (bert, other):
            torch.manual_seed(3)
            states = states_of(encoder.train(training), texts())
            states.square().sum().backward()
            found.append([states, *(p.grad for p in encoder.parameters())])
            encoder.zero_grad()
        assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


class Counting(TorchDispatchMode):
    """Count operations by name, but not the profiler's marks."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func)] += func.namespace != "profiler"
        return func(*args, **(kwargs or {}))


def counted(layers, *, training):
    """The operations of a forward pass and, in training, of its backward pass."""
    encoder, rows = tiny_network(layers=layers).encoder.train(training), texts()
    with Counting() as forward, torch.set_grad_enabled(training):
        total = states_of(encoder, rows).sum()
    if not training:
        return [forward.counts]
    with Counting() as backward:
        total.backward()
    return [forward.counts, backward.counts]


@pytest.mark.skipif(TORCH != RECORDED, reason=f"recorded with torch {RECORDED}")
@pytest.mark.parametrize(
    ("training", "expected"), [(False, [(18, 31)]), (True, [(28, 67), (15, 90)])]
)
def test_a_bert_takes_as_many_operations_as_before_it_had_these_settings(training, expected):
    """Outside the layers and in each of them, forward and backward; counted at commit 7de46de."""
    one, two = counted(1, training=training), counted(2, training=training)
    found = []
    for first, second in zip(one, two, strict=True):
        layer = (second - first).total()
        found.append((first.total() - layer, layer))
    assert found == expected


def test_a_layer_of_bert_is_four_products_two_norms_and_one_attention():
    (one,), (two,) = counted(1, training=False), counted(2, training=False)
    layer = two - one
    assert layer["aten.addmm.default"] == 4
    assert layer["aten.native_layer_norm.default"] == 2
    assert layer["aten._scaled_dot_product_flash_attention_for_cpu.default"] == 1
    assert layer["aten.gelu.default"] == 1


# Every variant


@every_variant
def test_an_encoder_computes_its_formula(changes):
    encoder = tiny_network(**changes).encoder
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if parameter.ndim == 1:  # biases are zero at first, and norms neutral
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=seeded(name)))
    expected = by_formula(encoder, texts())
    real = texts().owner >= 0
    with torch.no_grad():
        found = states_of(encoder, texts())
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)
    training = states_of(encoder, texts())  # by our own kernels
    torch.testing.assert_close(training[real], expected[real], atol=1e-5, rtol=1e-5)


def seeded(name):
    return torch.Generator().manual_seed(sum(map(ord, name)))


@every_variant
def test_every_parameter_gets_the_gradient_of_the_formula(changes):
    encoder = tiny_network(**changes, dropout=0.0, attention_dropout=0.0).encoder.train()
    wanted = torch.randn(2, 9, 16) * (texts().owner >= 0)[..., None]
    (states_of(encoder, texts()) * wanted).sum().backward()
    found = {name: p.grad.clone() for name, p in encoder.named_parameters()}
    encoder.zero_grad()
    plain = {name: p.detach().requires_grad_() for name, p in encoder.named_parameters()}
    encoder.state_dict = lambda: plain
    (by_formula(encoder, texts()) * wanted).sum().backward()
    for name, gradient in found.items():
        assert gradient.abs().sum() > 0, name
        torch.testing.assert_close(gradient, plain[name].grad, atol=1e-4, rtol=1e-4)


@every_variant
def test_attention_that_is_listened_to_is_the_same(changes):
    encoder = tiny_network(**changes).encoder
    expected = states_of(encoder, texts())
    with recording(encoder) as heard:
        found = states_of(encoder, texts())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert [weights.shape[1] for weights in heard] == [encoder.config.heads] * 2


@every_variant
def test_reading_a_text_that_is_itself_is_self_attention(changes):
    attention = Attention(tiny_config(**changes)).eval()
    init_weights(attention.qkv, 0.5)
    x, index = torch.randn(2, 6, 16), torch.arange(6).expand(2, -1)
    own = attention(x, added=None, positions=Positions(), index=index)
    torch.testing.assert_close(attention.read(x, attention.keep(x), None), own)


@every_variant
def test_a_translator_has_them_on_both_sides_and_says_word_by_word_what_it_says_at_once(changes):
    heads = bert_heads(pooler=False, decoder=DecoderConfig(vocab_size=19, layers=2, max_length=8))
    network = tiny_network(heads, **changes)
    decoder, table = network.heads["decoder"], network.words()
    ours, theirs = (dict(half.blocks[1].named_parameters()) for half in (network.encoder, decoder))
    assert all(theirs[name].shape == own.shape for name, own in ours.items())

    index = torch.arange(5).expand(2, -1)
    words, states = torch.randint(5, 19, (2, 5)), torch.randn(2, 7, 16)
    owner, source = torch.zeros(2, 5).long(), torch.zeros(2, 7).long()
    expected = decoder(words, index, owner, states, source, table)
    said = decoder.begin(states, texts_of(source, torch.arange(7).expand(2, -1)))
    for at in range(5):
        found, said = decoder.step(said, words[:, at], table)
        torch.testing.assert_close(found, expected[:, at], atol=1e-5, rtol=1e-5)


# By hand


def test_norms_by_hand():
    x = torch.tensor([3.0, 4.0])
    layer = norm_of(tiny_config(), 2)
    torch.testing.assert_close(layer(x), torch.tensor([-1.0, 1.0]))
    rms = norm_of(tiny_config(norm_kind="rms"), 2)
    torch.testing.assert_close(rms(x), torch.tensor([3.0, 4.0]) / 12.5**0.5)
    assert isinstance(rms, nn.RMSNorm)
    assert [name for name, _ in rms.named_parameters()] == ["weight"]
    assert rms.eps == layer.eps == 1e-12


@pytest.mark.parametrize(
    ("changes", "fewer"),
    [
        # A layer of width 16 and inner width 32 has 3 * 16 + 16 + 32 + 16 biases.
        ({"bias": False}, 2 * 112),
        # Norms: of the embeddings, two in each layer, and that of the token head.
        ({"norm_bias": False}, 6 * 16),
        ({"norm_kind": "rms"}, 6 * 16),
        # Heads of 3 channels instead of 8: 2 * 5 fewer in each of four matrices and three biases.
        ({"head_size": 3}, 2 * (4 * 16 * 10 + 3 * 10)),
        ({"head_size": 12}, -2 * (4 * 16 * 8 + 3 * 8)),
    ],
)
def test_the_parameters_that_a_setting_adds_or_removes(changes, fewer):
    heads = bert_heads(tokens=True)
    bert, other = tiny_network(heads), tiny_network(heads, **changes)
    assert count_parameters(bert) - count_parameters(other) == fewer


def test_heads_have_their_own_width_inside_and_the_models_outside():
    block = tiny_network(head_size=12).encoder.blocks[0]
    assert block.attention.qkv.weight.shape == (3 * 2 * 12, 16)
    assert block.attention.output.weight.shape == (16, 2 * 12)
    assert tiny_config(head_size=12).head_width == 12
    assert tiny_config(heads=4).head_width == 4


def test_heads_of_a_width_of_their_own_need_not_share_the_models():
    with pytest.raises(SettingsError, match="not a multiple of heads 3.*or set head_size"):
        validate(ModelConfig, tiny_config().model_dump() | {"heads": 3}, where="it")
    assert tiny_config(heads=3, head_size=4).head_width == 4


def test_what_is_absent_is_an_identity():
    network = tiny_network(bert_heads(pair=True), dropout=0.0, layer_settings=(NO_NORM, {}))
    encoder = network.encoder
    for part in (encoder.embeddings, *encoder.blocks, network.heads["pair"]):
        assert isinstance(part.dropout, nn.Identity)
    assert isinstance(encoder.last_norm, nn.Identity)
    norms = [isinstance(block.attention_norm, nn.Identity) for block in encoder.blocks]
    assert norms == [True, False]
    assert isinstance(tiny_network().encoder.blocks[0].dropout, nn.Dropout)


NO_NORM = {"attention_norm": False}


def test_an_absent_attention_norm_is_left_out_of_the_formula():
    encoder = tiny_network(layers=1, norm="pre", layer_settings=(NO_NORM,)).encoder
    block, rows = encoder.blocks[0], texts()
    x = torch.randn(2, 9, 16)
    alone = {"added": None, "positions": Positions(), "index": rows.index}
    y = x + block.attention(x, **alone)
    expected = y + block.feed(block.feed_norm(y))
    torch.testing.assert_close(block(x, **alone), expected)


# 8 bits


def test_without_biases_the_channels_of_a_feed_forward_part_still_add_up():
    feed = FeedForward(tiny_config(bias=False, gated=True))
    init_weights(feed.inner, 0.5)
    x, some = torch.randn(3, 16), torch.tensor([0, 5, 31])
    others = torch.tensor([n for n in range(32) if n not in some])
    torch.testing.assert_close(feed.part(some)(x) + feed.part(others)(x), feed(x))


@every_variant
@torch.no_grad()
def test_in_8_bits_it_is_nearly_the_same(changes):
    network = tiny_network(**changes)
    with observing(network) as seen:
        expected = states_of(network.encoder, texts())
    small = quantized(network, seen)
    assert isinstance(small.encoder.blocks[1].attention.qkv, Int8Linear)
    found = states_of(small.encoder, texts())
    real = texts().owner >= 0
    assert F.cosine_similarity(found[real], expected[real]).min() > 0.98


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_kind": "rms", "norm_bias": False}, "norm_bias is set, but RMS norm has no bias"),
        ({"norm_kind": "batch"}, "'norm_kind' is 'batch'; input should be 'layer' or 'rms'"),
        ({"head_size": 0}, "'head_size' is 0"),
        ({"head_size": 2**13}, "'head_size' is 8192; input should be less than"),
        ({"head_size": 3, "positions": "rotary"}, "there are 3; .*Change width, heads or head_siz"),
        ({"bias": 1}, "'bias' is 1; input should be a valid boolean"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_by_name(changes, message):
    with pytest.raises(SettingsError, match=message):
        validate(ModelConfig, tiny_config().model_dump() | changes, where="mini.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": False}, "bias is set, but gru layers do not use it"),
        ({"head_size": 8}, "head_size is 8, but gru layers do not use it; need None"),
        ({"layer_settings": ({"window": 3},)}, "layer_settings is set, but gru layers"),
    ],
)
def test_a_recurrent_layer_has_no_heads_and_always_biases(changes, message):
    with pytest.raises(SettingsError, match=message):
        validate(ModelConfig, tiny_config(cell="gru").model_dump() | changes, where="mini.toml")


def test_the_embeddings_of_a_recurrent_encoder_may_have_another_norm():
    encoder = tiny_network(cell="gru", norm_kind="rms").encoder
    assert isinstance(encoder.embeddings.norm, nn.RMSNorm)


# Folders and recipes


@every_variant
def test_it_comes_back_from_a_folder_bit_for_bit(changes, tokenizer, tmp_path):
    network = tiny_network(bert_heads(tokens=True), **changes)
    save_folder(tmp_path / "model", network, tokenizer)
    loaded = load_folder(tmp_path / "model").network
    assert loaded.shape == network.shape
    assert torch.equal(states_of(loaded.encoder, texts()), states_of(network.encoder, texts()))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"head_size": 8, "layer_groups": 2, "layer_settings": ({}, {})}, []),
        ({"head_size": 12}, ["head_size = 12"]),
        ({"bias": False}, ["bias = False"]),
        ({"norm_bias": False}, ["norm_bias = False"]),
        ({"norm_kind": "rms"}, ["norm_kind = 'rms'"]),
        ({"layer_groups": 1}, ["layer_groups = 1"]),
        ({"layer_settings": (NO_NORM,)}, ["layer_settings = [{'attention_norm': False}]"]),
    ],
)
def test_what_is_not_in_a_bert_is_not_called_one(changes, expected):
    assert differences_from_bert(Shape.of(tiny_config(**changes), bert_heads())) == expected


@pytest.mark.parametrize(
    "changes",
    [
        *VARIANTS.values(),
        {"layers": 7, "layer_groups": 2},
        {"layers": 7, "layer_groups": 1, "bias": False, "norm_kind": "rms", "inner_width": 1},
        {"positions": "none", "embedding_width": 1, "head_size": 1, "bias": False},
        *({"cell": cell, "causal": causal} for cell in ("gru", "lstm") for causal in (True, False)),
    ],
    ids=str,
)
def test_a_config_never_implies_more_parameters_than_there_are(changes):
    config = tiny_config(**changes)
    assert _least_parameters(config) <= count_parameters(Encoder(config))


def test_layers_that_share_their_weights_do_not_count_twice():
    # A block of width 16 is taken for 3 * 16 * 16 numbers; 23 tokens and 32 positions of width 16.
    assert _least_parameters(tiny_config(layers=6)) == 6 * 768 + 55 * 16
    assert _least_parameters(tiny_config(layers=6, layer_groups=2)) == 2 * 768 + 55 * 16
    assert _least_parameters(tiny_config(layers=6, head_size=12)) == 6 * 3 * 16 * 24 + 55 * 16


def test_a_recipe_may_set_whatever_an_encoder_has():
    known = {*ModelSettings.model_fields}
    assert {*ModelConfig.model_fields} - known == {"vocab_size", "borrows"}


@pytest.mark.parametrize("group", [{}, {"layer_groups": 1}], ids=str)
def test_a_recipe_that_is_spelled_out_is_the_same_model(group):
    own = {"head_size": 12, "bias": False, "norm_bias": False, "positions": "rotary", **group}
    own |= {"layer_settings": [{"window": 3}, {"rotary_base": 500.0}, {}], "layer_cycle": 2}
    sizes = {"width": 16, "layers": 6, "heads": 2, "inner_width": 32}
    settings = validate(ModelSettings, sizes | own, where="recipe [model]")
    config = settings.config(23)
    assert [config.layer(n).window for n in range(6)] == [3, None, None, None, None, None]
    assert [config.layer(n).rotary_base for n in range(4)] == [None, 500.0, None, 500.0]
    spelled_out = settings.spelled_out(config)
    text = write_toml({"model": spelled_out.model_dump(exclude_none=True)})
    again = validate(ModelSettings, tomllib.loads(text)["model"], where="recipe [model]")
    assert again.config(23) == spelled_out.config(23) == config


def test_a_wrong_setting_of_a_layer_is_named_in_a_recipe():
    table = {"size": "tiny", "layer_settings": [{"windo": 3}]}
    with pytest.raises(SettingsError, match="layer_settings.*unknown key 'windo'.*'window'"):
        validate(ModelSettings, table, where="recipe [model]")


def test_a_network_of_a_shape_without_weights_has_the_same_parameters():
    with torch.device("meta"):
        shape = Shape.of(tiny_config(**VARIANTS["all of it"]), bert_heads())
        assert count_parameters(Network(shape)) == count_parameters(
            tiny_network(**VARIANTS["all of it"])
        )
