"""Which layers a head reads: the last one, some side by side, or a learned weighted mean of all."""

from dataclasses import dataclass

import pytest
import torch

from tests.conftest import tiny_config, tiny_network
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.names import differences_from_bert
from unmask.model.factory import freeze, make_network, with_layers
from unmask.model.heads import ChosenLayers, WeightedMix, mixed_layers, mixed_width
from unmask.model.network import Network
from unmask.model.shape import (
    PAIRS,
    DecoderConfig,
    LabelsConfig,
    PoolerConfig,
    Shape,
    TokensConfig,
    VectorConfig,
)
from unmask.system.errors import SettingsError
from unmask.system.settings import validate

# The states of three layers (the embeddings and two blocks), for two tokens of width 2.
LAYERS = [
    torch.tensor([[1.0, 0.0], [2.0, 2.0]]),
    torch.tensor([[0.0, 1.0], [4.0, 0.0]]),
    torch.tensor([[2.0, 2.0], [0.0, 8.0]]),
]
TAGS = LabelsConfig(on="token", names=("a", "b"))


@dataclass
class Rows:
    """One text."""

    tokens: torch.Tensor
    segments: torch.Tensor
    index: torch.Tensor
    owner: torch.Tensor


def rows():
    nothing = torch.zeros(1, 4, dtype=torch.long)
    return Rows(torch.tensor([[5, 6, 7, 8]]), nothing, torch.arange(4)[None], nothing)


# By hand


def test_the_last_layer_is_the_last():
    mix = mixed_layers(tiny_config(), "last")
    assert mix(LAYERS) is LAYERS[2]
    assert not list(mix.parameters())


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0,), [[1, 0], [2, 2]]),
        ((-1,), [[2, 2], [0, 8]]),
        ((1, 2), [[0, 1, 2, 2], [4, 0, 0, 8]]),
        ((-1, 0), [[2, 2, 1, 0], [0, 8, 2, 2]]),
        ((1, 1), [[0, 1, 0, 1], [4, 0, 4, 0]]),
    ],
)
def test_some_layers_stand_side_by_side_in_the_order_of_their_numbers(numbers, expected):
    mix = mixed_layers(tiny_config(), numbers)
    assert isinstance(mix, ChosenLayers)
    assert mix(LAYERS).tolist() == expected
    assert mixed_width(tiny_config(), numbers) == 16 * len(numbers)


def test_the_weighted_mean_by_hand():
    """Weights log 1, log 2, log 1 are shares of 1/4, 1/2, 1/4; the mean is doubled."""
    mix = mixed_layers(tiny_config(), "weighted")
    assert isinstance(mix, WeightedMix)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([1.0, 2.0, 1.0]).log())
        mix.scale.fill_(2.0)
    expected = [[2 * (0.25 + 0.5), 2 * (0.5 + 0.5)], [2 * (0.5 + 2.0), 2 * (0.5 + 2.0)]]
    torch.testing.assert_close(mix(LAYERS), torch.tensor(expected))
    assert mixed_width(tiny_config(), "weighted") == 16


def test_at_first_all_layers_weigh_the_same():
    mix = WeightedMix(3)
    torch.testing.assert_close(mix(LAYERS), sum(LAYERS) / 3)


def test_the_gradient_of_the_weights_by_hand():
    """d/dw_l of the sum of s * mean is s * p_l * (sum of layer l - mean of the sums)."""
    mix = WeightedMix(3)
    mix(LAYERS).sum().backward()
    sums = torch.tensor([5.0, 5.0, 12.0])
    torch.testing.assert_close(mix.weights.grad, (sums - sums.mean()) / 3)
    torch.testing.assert_close(mix.scale.grad, sums.mean()[None])


def test_a_mean_has_a_weight_for_every_layer_and_for_the_embeddings():
    network = tiny_network({"tokens": TokensConfig(mix="weighted")}, layers=5, layer_groups=2)
    assert network.heads["tokens"].mix.weights.shape == (6,)


# Heads


@pytest.mark.parametrize(
    ("head", "weight"),
    [
        (PoolerConfig(mix=(0, 1)), (16, 32)),
        (TokensConfig(mix=(0, 1, 2)), (16, 48)),
        (TAGS.model_copy(update={"mix": (-1,)}), (2, 16)),
        (TAGS.model_copy(update={"mix": "weighted"}), (2, 16)),
        (VectorConfig(width=5, mix=(1, 2)), (5, 32)),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_a_head_is_as_wide_as_what_it_reads(head, weight):
    network = tiny_network({"own": head})
    assert tuple(network.heads["own"].dense.weight.shape) == weight


def test_a_vector_head_is_a_linear_map_of_what_it_reads():
    network = tiny_network({"own": VectorConfig(width=5, mix=(0, 2), bias=False)})
    head, trace = network.heads["own"], []
    network.encode(rows(), trace=trace)
    both = torch.cat([trace[0], trace[2]], dim=-1)
    torch.testing.assert_close(head(head.mix(trace)), both @ head.dense.weight.T)
    assert [name for name, _ in head.named_parameters()] == ["dense.weight"]
    assert network.heads["own"](head.mix(trace)).shape == (1, 4, 5)


@pytest.mark.parametrize("mix", ["last", "weighted", (0,), (1, -1)], ids=str)
def test_labels_are_read_from_the_layers_of_their_head(mix):
    network = tiny_network({"labels": TAGS.model_copy(update={"mix": mix})})
    trace = []
    network.encode(rows(), trace=trace)
    head = network.heads["labels"]
    chosen = {
        "last": trace[-1],
        "weighted": (trace[0] + trace[1] + trace[2]) / 3,
        (0,): trace[0],
        (1, -1): torch.cat([trace[1], trace[2]], dim=-1),
    }[mix]
    found = network.scores_of_labels(trace)
    torch.testing.assert_close(found, chosen @ head.dense.weight.T + head.dense.bias)


def test_labels_of_a_text_with_layers_of_their_own_need_no_pooler():
    labels = LabelsConfig(names=("a", "b", "c"), mix=(1, 2))
    network = tiny_network({"labels": labels})
    trace = []
    network.encode(rows(), trace=trace)
    assert not labels.pooled
    first = torch.cat([trace[1], trace[2]], dim=-1)[:, 0]
    head = network.heads["labels"]
    expected = first @ head.dense.weight.T + head.dense.bias
    torch.testing.assert_close(network.scores_of_labels(trace), expected)


def test_the_layers_above_those_that_a_head_reads_are_not_trained():
    network = tiny_network({"labels": TAGS.model_copy(update={"mix": (0, 1)})}, layers=3)
    freeze(network, 0, pooler=False)
    trained = [block.feed.outer.weight.requires_grad for block in network.encoder.blocks]
    assert trained == [True, False, False]
    network = tiny_network({"labels": TAGS.model_copy(update={"mix": "weighted"})}, layers=3)
    freeze(network, 0, pooler=False)
    assert all(block.feed.outer.weight.requires_grad for block in network.encoder.blocks)


def test_the_first_values_of_a_weighted_mean_are_the_same_from_any_seed():
    shape = Shape.of(tiny_config(), {"labels": TAGS.model_copy(update={"mix": "weighted"})})
    one, two = (make_network(shape, seed).heads["labels"] for seed in (1, 2))
    assert torch.equal(one.mix.weights, two.mix.weights)
    assert torch.equal(one.mix.scale, torch.ones(1))
    assert not torch.equal(one.dense.weight, two.dense.weight)


# Folders, and what is refused


@pytest.mark.parametrize("mix", ["weighted", (1, -1)], ids=str)
def test_it_comes_back_from_a_folder_bit_for_bit(mix, tokenizer, tmp_path):
    heads = {"labels": TAGS.model_copy(update={"mix": mix}), "tokens": TokensConfig(mix=mix)}
    network = tiny_network(heads)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if ".mix." in name:
                parameter.normal_()
    save_folder(tmp_path / "model", network, tokenizer)
    loaded = load_folder(tmp_path / "model").network
    assert loaded.shape == network.shape
    found, expected = [], []
    loaded.encode(rows(), trace=found)
    network.encode(rows(), trace=expected)
    assert torch.equal(loaded.scores_of_labels(found), network.scores_of_labels(expected))


@pytest.mark.parametrize("name", ["labels", "tokens", "pooler"])
def test_a_head_that_reads_other_layers_is_not_in_a_bert(name):
    heads = {"labels": TAGS, "tokens": TokensConfig(), "pooler": PoolerConfig()}
    assert differences_from_bert(Shape.of(tiny_config(), heads)) == []
    heads[name] = heads[name].model_copy(update={"mix": (1,)})
    expected = [f"layers of the heads = {{'{name}': (1,)}}"]
    assert differences_from_bert(Shape.of(tiny_config(), heads)) == expected


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            {"kind": "tokens", "mix": [3]},
            "'own' reads layer 3, but its encoder only has layers -3 to 2",
        ),
        ({"kind": "vector", "width": 4, "mix": [0, -4]}, "'own' reads layer -4, but its encoder"),
        ({"kind": "tokens", "mix": []}, "mix"),
        ({"kind": "tokens", "mix": "first"}, "mix"),
        ({"kind": "labels", "names": ["a"]}, "'own' needs a pooler on the encoder 'main'"),
        (
            {"kind": "decoder", "vocab_size": 9, "layers": 1, "mix": "weighted"},
            "a decoder always reads the last layer",
        ),
    ],
    ids=str,
)
def test_layers_that_a_head_cannot_read_are_refused(head, message):
    table = {"encoders": {"main": tiny_config()}, "heads": {"own": head}}
    with pytest.raises(SettingsError, match=message):
        validate(Shape, table, where="network")


def test_layers_in_a_recipe_are_those_of_the_labels():
    heads = {"labels": TAGS, "tokens": TokensConfig()}
    assert with_layers(heads, "last", 2) is heads
    (labels,) = with_layers(heads, (0, -1), 2).values()
    assert labels.mix == (0, -1)
    with pytest.raises(SettingsError, match="model.head_layers has 3, but the model has 2 layers"):
        with_layers(heads, (3,), 2)


def test_a_pair_head_and_a_decoder_read_the_last_layer():
    assert PAIRS.mix == "last"
    assert DecoderConfig(vocab_size=9, layers=1).mix == "last"
    with torch.device("meta"):
        network = Network(Shape.of(tiny_config(), {"pooler": PoolerConfig(), "pair": PAIRS}))
    assert not network.heads["pair"].mix.numbers
