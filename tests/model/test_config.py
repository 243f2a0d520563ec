"""The shape of a network: BERT's sizes to the last parameter, and errors that help."""

import pytest
import torch

from unmask.errors import SettingsError
from unmask.model.config import HeadsConfig, ModelConfig, sized
from unmask.model.network import Network, count_parameters
from unmask.settings import build


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
        plain = Network(sized(size), HeadsConfig())
        pretraining = Network(sized(size), HeadsConfig(tokens=True, pair=True))
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
        ({"rotary_base": 500.0}, "rotary_base is set, but learned positions do not read it"),
        ({"positions": "t5", "reach": 16, "buckets": 32}, "reach 16 with 32 buckets"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_should_be(changes, message):
    with pytest.raises(SettingsError, match=message):
        build(ModelConfig, table(**changes), where="mini.toml")


def test_a_missing_setting_is_named():
    given = table()
    del given["layers"]
    with pytest.raises(SettingsError, match="mini.toml: 'layers' is missing"):
        build(ModelConfig, given, where="mini.toml")


def test_heads_that_read_the_pooler_need_one():
    with pytest.raises(SettingsError, match="need pooler = true"):
        build(HeadsConfig, {"pooler": False, "pair": True}, where="heads")
    with pytest.raises(SettingsError, match="labels and label_names go together"):
        build(HeadsConfig, {"labels": "text"}, where="heads")
