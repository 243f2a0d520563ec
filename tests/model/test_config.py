"""The shape of a network: BERT's sizes to the last parameter, and errors that help."""

import pytest
import torch

from tests.shapes import bert_heads
from unmask.model.config import ModelConfig, sized
from unmask.model.network import Network, count_parameters
from unmask.model.shape import DecoderConfig, LabelsConfig, PoolerConfig, Shape
from unmask.system.errors import SettingsError
from unmask.system.settings import validate


@pytest.mark.parametrize(
    ("size", "encoder_and_pooler", "with_token_and_pair_heads"),
    [
        ("tiny", 4_385_920, 4_433_468),
        ("mini", 11_170_560, 11_267_900),
        ("small", 28_763_648, 29_058_876),
        ("medium", 41_373_184, 41_668_412),
        ("base", 109_482_240, 110_106_428),
        ("large", 335_141_888, 336_226_108),
    ],
)
def test_named_sizes_have_the_published_number_of_parameters(
    size, encoder_and_pooler, with_token_and_pair_heads
):
    with torch.device("meta"):
        plain = Network(Shape.of(sized(size), bert_heads()))
        pretraining = Network(Shape.of(sized(size), bert_heads(tokens=True, pair=True)))
    assert count_parameters(plain) == encoder_and_pooler
    assert count_parameters(pretraining) == with_token_and_pair_heads


def test_an_unknown_size_is_answered_with_the_nearest():
    with pytest.raises(SettingsError, match="unknown size 'lage'; did you mean 'large'?"):
        sized("lage")


def table(**changes):
    return {"vocab_size": 10, "width": 8, "layers": 1, "heads": 2, "inner_width": 16, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widht": 8}, "mini.toml: unknown key 'widht'; did you mean 'width'"),
        ({"heads": 3}, "width 8 is not a multiple of heads 3"),
        ({"heads": 0}, "'heads' is 0; input should be greater than or equal to 1"),
        ({"layers": 10**9}, "'layers' is 1000000000; input should be less than"),
        ({"width": "8"}, "'width' is '8'; input should be a valid integer"),
        ({"width": 8.0}, r"'width' is 8.0; input should be a valid integer"),
        ({"layers": True}, "'layers' is True"),
        ({"dropout": 1.0}, "'dropout' is 1.0; input should be less than 1"),
        ({"activation": "gelo"}, "'activation' is 'gelo'; input should be 'gelu'"),
        ({"heads": 8, "positions": "rotary"}, "rotary positions use pairs of channels"),
        ({"rotary_base": 500.0}, "rotary_base is set, but learned positions do not use it"),
        ({"positions": "t5", "reach": 16, "buckets": 32}, "reach 16 with 32 buckets"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_should_be(changes, message):
    with pytest.raises(SettingsError, match=message):
        validate(ModelConfig, table(**changes), where="mini.toml")


def test_a_missing_setting_is_named():
    given = table()
    del given["layers"]
    with pytest.raises(SettingsError, match="mini.toml: 'layers' is missing"):
        validate(ModelConfig, given, where="mini.toml")


@pytest.mark.parametrize("name", ["pair", "labels", "mood"])
def test_heads_that_read_the_pooler_need_one(name):
    config, own = validate(ModelConfig, table(), where="model"), LabelsConfig(names=("a", "b"))
    with pytest.raises(SettingsError, match=f"'{name}' needs a pooler on the encoder 'main'"):
        Shape.of(config, {name: own})
    assert Shape.of(config, {**bert_heads(), name: own}).heads[name] == own


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"on": "text"}, "'{}' is missing"),
        ({"names": ()}, r"'{}' is \(\); tuple should have at least 1 item"),
        ({"on": "token", "names": ("a", "b"), "answer": "several"}, 'set on = "text"'),
        ({"names": ("a", "b"), "answer": "number"}, '"number" needs exactly one name; names has 2'),
    ],
)
def test_each_of_several_heads_is_checked_as_one_alone(own, message):
    with pytest.raises(SettingsError, match=message.format("names")):
        validate(LabelsConfig, own, where="labels")
    heads = {"pooler": {"kind": "pooler"}, "mood": {"kind": "labels", **own}}
    with pytest.raises(SettingsError, match=message.format("heads.mood.names")):
        validate(Shape, {"encoders": {"main": table()}, "heads": heads}, where="network")


def labels(**changes):
    return {"kind": "labels", "on": "token", "names": ("a", "b"), **changes}


def speaking(**changes):
    return {"kind": "decoder", "vocab_size": 10, "layers": 1, **changes}


WAVES = {"width": 64, "heads": 1, "max_length": 2**17, "positions": "sinusoidal"}


@pytest.mark.parametrize(
    ("encoders", "heads", "message"),
    [
        ({"one": {}}, {}, "encoders: need one called 'main'"),
        ({"main": {"layers": 0}}, {}, "'encoders.main.layers' is 0; input should be greater"),
        ({"main": {"widht": 8}}, {}, r"\[encoders\]: unknown key 'widht'; did you mean 'width'"),
        ({"main": {}, "a.b": {}}, {}, "'encoders.a.b' is 'a.b'; string should match pattern"),
        (
            {"main": {}},
            {"a": labels(encoder="b")},
            "'a' reads the encoder 'b', which does not exist",
        ),
        (
            {"main": {}},
            {"a": labels(mix=(1, 2))},
            "'a' reads layer 2, but its encoder only has layers -2",
        ),
        (
            {"main": {}},
            {"a": labels(mix=(-3,))},
            "'a' reads layer -3, but its encoder only has layers",
        ),
        ({"main": {}}, {"a": labels(mix="all")}, "'heads.a.mix' is 'all'; .*'weighted'; or need a"),
        (
            {"main": {}},
            {"a": {"kind": "x"}},
            "'heads.a' is {'kind': 'x'}; need a kind of 'pooler', ",
        ),
        (
            {"main": {}},
            {"a": labels(nmes=1)},
            r"\[heads\]: unknown key 'nmes'; did you mean 'names'",
        ),
        ({"main": {}}, {"a": speaking(mix=(0,))}, "a decoder always reads the last layer"),
        ({"main": {}}, {"a": labels(encoder="\ud800")}, "'heads.a.encoder' is .*a valid string"),
        ({"main": {"borrows": "\ud800"}}, {}, "'encoders.main.borrows' is .*a valid string"),
        ({"main": {}, "b": {"borrows": "c"}}, {}, "'b' borrows the token embeddings of 'c', which"),
        (
            {"main": {}, "b": {"borrows": "main", "vocab_size": 9}},
            {},
            "'b' borrows the token embeddings of 'main', but its vocab_size",
        ),
        (
            {"main": {}, "b": {"borrows": "main", "width": 4}},
            {},
            "'b' borrows token embeddings of width 8, .* width 4; set its embedding_width to 8",
        ),
        ({f"e{n}": {} for n in range(65)}, {}, "'encoders' is .*at most 64"),
        (
            {"main": {"layers": 512}, "b": {"layers": 500}},
            {"a": speaking(layers=13)},
            "1,025 layers in total; at most 1,024",
        ),
        (
            {"main": WAVES, "b": WAVES, "c": WAVES},
            {"a": speaking(max_length=2**17), "d": speaking(max_length=2)},
            "position tables of 33,554,560 numbers in total; at most 33,554,432",
        ),
    ],
)
def test_what_does_not_fit_together_in_a_network_is_named(encoders, heads, message):
    tables = {name: table(**changes) for name, changes in encoders.items()}
    with pytest.raises(SettingsError, match=message):
        validate(Shape, {"encoders": tables, "heads": heads}, where="network")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("training", "'heads.training' is 'training'; 'training' is an attribute of every"),
        ("a.b", "'heads.a.b' is 'a.b'; string should match"),
        ("a b", "'heads.a b' is 'a b'; string should match"),
        ("", "'heads.' is ''; string should match"),
    ],
)
def test_a_name_that_a_part_of_a_network_cannot_have_is_refused(name, message):
    config = validate(ModelConfig, table(), where="model")
    with pytest.raises(SettingsError, match=message):
        Shape.of(config, {name: PoolerConfig()})


def recurrent(**changes):
    fixed = {"cell": "gru", "heads": 1, "inner_width": 8, "positions": "none"}
    return table(**{**fixed, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 2}, "heads is 2, but gru layers do not use it; need 1"),
        ({"inner_width": 16}, "inner_width is 16, but gru layers do not use it; need 8"),
        (
            {"positions": "rotary"},
            "positions is 'rotary', but gru layers do not use it; need 'none'",
        ),
        ({"window": 4}, "window is 4, but gru layers do not use it; need None"),
        ({"gated": True}, "gated is True, but gru layers do not use it; need False"),
        ({"norm": "pre", "cell": "lstm"}, "norm is 'pre', but lstm layers do not use it"),
        ({"width": 9, "inner_width": 9}, "width 9 is odd, but each of the two directions"),
        ({"cell": "rnn"}, "'cell' is 'rnn'; input should be 'attention', 'lstm' or 'gru'"),
    ],
)
def test_a_setting_that_a_recurrent_layer_does_not_have_is_refused(changes, message):
    with pytest.raises(SettingsError, match=message):
        validate(ModelConfig, recurrent(**changes), where="mini.toml")


def test_one_direction_may_have_an_odd_width():
    assert validate(ModelConfig, recurrent(width=9, inner_width=9, causal=True), where="it").causal


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"context": "all"},
            "context is set, but Transformer decoders do not use it; only lstm and",
        ),
        ({"feeds": "word"}, "feeds is set, but Transformer decoders do not use it"),
        ({"attention": "dot"}, "attention is set, but Transformer decoders do not use it"),
        (
            {"cell": "gru", "attention": "dot", "feeds": "context"},
            'attention with feeds = "context": .*Set feeds to "word" or "both"',
        ),
        ({"cell": "lstm", "attention": "dot", "feeds": "nothing"}, 'feeds = "nothing"'),
        ({"layers": 0}, "'layers' is 0; input should be greater than or equal to 1"),
        ({"max_length": 2**18}, "'max_length' is 262144; input should be less than"),
        ({"feed": "word"}, "unknown key 'feed'; did you mean 'feeds'"),
    ],
)
def test_a_wrong_setting_of_a_decoder_is_named_with_what_it_should_be(changes, message):
    with pytest.raises(SettingsError, match=message):
        validate(
            DecoderConfig, {"vocab_size": 10, "layers": 1, **changes}, where="recipe [decoder]"
        )
