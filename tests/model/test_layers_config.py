"""Settings that differ by layer, and layers that share their weights: ModernBERT and ALBERT."""

from dataclasses import dataclass
from typing import get_args

import pytest
import torch

from tests.conftest import tiny_config, tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.model import masks
from unmask.model.attention import ablating, listening, recording
from unmask.model.config import LayerConfig, ModelConfig, Scheme
from unmask.model.factory import freeze
from unmask.model.network import Network, count_parameters
from unmask.model.positions import Rotary
from unmask.model.shape import DecoderConfig, LabelsConfig, Shape
from unmask.system.errors import SettingsError
from unmask.system.settings import validate
from unmask.train.optim.optimizers import place_parameters

SCHEMES = get_args(Scheme)
# Near and far in turn; a base of its own in every third layer.
MIXED = ({"rotary_base": 500.0}, {"window": 2}, {"window": 1})


def mixed(scheme):
    """Settings of layers for a scheme: only rotary positions have a base."""
    return tuple(own for own in MIXED if scheme == "rotary" or "rotary_base" not in own)


@dataclass
class Rows:
    """Texts in rows, one behind the other; the rest is padding."""

    tokens: torch.Tensor
    index: torch.Tensor
    owner: torch.Tensor

    @classmethod
    def of(cls, *rows):
        """[[1, 2, 3], [4, 5]] is a row of two texts."""
        width = max(sum(map(len, row)) for row in rows)
        tokens, index, owner = [], [], []
        for row in rows:
            rest = width - sum(map(len, row))
            tokens.append([token for text in row for token in text] + [0] * rest)
            index.append([at for text in row for at in range(len(text))] + [0] * rest)
            owner.append([n for n, text in enumerate(row) for _ in text] + [-1] * rest)
        return cls(*map(torch.tensor, (tokens, index, owner)))


def states_of(encoder, rows, **how):
    return encoder(rows.tokens, torch.zeros_like(rows.tokens), rows.index, rows.owner, **how)


def words(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 23, (count,), generator=generator).tolist()


# The rule: an entry for each layer; if there are fewer, the last ones repeat


def windows_of(entries, cycle, layers):
    own = tuple({"window": n} for n in entries)
    config = tiny_config(layers=layers, layer_settings=own, layer_cycle=cycle)
    return [config.layer(number).window for number in range(layers)]


@pytest.mark.parametrize(
    ("entries", "cycle", "expected"),
    [
        ([1], None, [1, 1, 1, 1, 1, 1, 1, 1]),
        ([1, 2, 3], None, [1, 2, 3, 1, 2, 3, 1, 2]),
        ([1, 2, 3], 3, [1, 2, 3, 1, 2, 3, 1, 2]),
        ([1, 2, 3], 2, [1, 2, 3, 2, 3, 2, 3, 2]),
        ([1, 2, 3], 1, [1, 2, 3, 3, 3, 3, 3, 3]),
        ([9, 1, 2, 3], 3, [9, 1, 2, 3, 1, 2, 3, 1]),
        ([1, 2, 3, 4, 5, 6, 7, 8], None, [1, 2, 3, 4, 5, 6, 7, 8]),
        ([1, 2, 3, 4, 5, 6, 7, 8], 2, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_the_last_entries_repeat(entries, cycle, expected):
    assert windows_of(entries, cycle, 8) == expected


def test_without_entries_all_layers_are_alike():
    assert tiny_config().layer(1) == LayerConfig()
    assert LayerConfig() == LayerConfig(window=None, rotary_base=None, attention_norm=True)


@pytest.mark.parametrize(
    ("layers", "groups", "expected"),
    [
        (4, None, [0, 1, 2, 3]),
        (4, 1, [0, 0, 0, 0]),
        (6, 2, [0, 0, 0, 1, 1, 1]),
        (5, 2, [0, 0, 0, 1, 1]),
        (12, 5, [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4]),
        (3, 3, [0, 1, 2]),
    ],
)
def test_neighbours_are_in_a_group(layers, groups, expected):
    config = tiny_config(layers=layers, layer_groups=groups)
    assert [config.group_of(layer) for layer in range(layers)] == expected
    assert config.groups == len(set(expected))


MODERN = {
    "norm": "pre",
    "norm_bias": False,
    "bias": False,
    "gated": True,
    "positions": "rotary",
    "norm_epsilon": 1e-5,
    "layer_settings": (
        {"rotary_base": 160_000.0, "attention_norm": False},
        {"window": 64},
        {"window": 64},
        {"rotary_base": 160_000.0},
    ),
    "layer_cycle": 3,
}


def test_modern_bert_in_four_entries():
    """Every third layer is global with a base of its own, the first one has no attention norm."""
    config = tiny_config(layers=22, max_length=256, **MODERN)
    layers = [config.layer(number) for number in range(22)]
    assert [n for n, own in enumerate(layers) if own.window is None] == [0, 3, 6, 9, 12, 15, 18, 21]
    assert {own.window for own in layers} == {None, 64}
    assert all((own.rotary_base == 160_000.0) == (own.window is None) for own in layers)
    assert [n for n, own in enumerate(layers) if not own.attention_norm] == [0]
    assert config.rotary_bases == [10_000.0, 160_000.0]
    each = validate(ModelConfig, {**config.model_dump(), "layer_settings": layers}, where="it")
    assert [each.layer(number) for number in range(22)] == layers


# Against the models of transformers


def copy(ours, theirs):
    with torch.no_grad():
        for name, tensor in ours.items():
            tensor.copy_(theirs[name])


def paired(rows, heads):
    """Rows of queries or keys: their channels c and c + d/2 turn together, ours 2c and 2c + 1."""
    parts = rows.unflatten(0, (heads, 2, -1)).transpose(1, 2)
    return parts.flatten(0, 2)


def test_it_computes_what_modern_bert_of_transformers_does():
    theirs = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    marks = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    model = theirs.ModernBertModel(
        theirs.ModernBertConfig(
            **sizes, **marks, vocab_size=23, num_hidden_layers=7, local_attention=6
        )
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    near = tuple(
        {**own, "window": 3} if "window" in own else own for own in MODERN["layer_settings"]
    )
    encoder = tiny_network(layers=7, segments=1, **{**MODERN, "layer_settings": near}).encoder
    state = model.state_dict()
    given = {
        "embeddings.tokens.weight": state["embeddings.tok_embeddings.weight"],
        "embeddings.segments.weight": torch.zeros(1, 16),  # it has none
        "embeddings.norm.weight": state["embeddings.norm.weight"],
        "last_norm.weight": state["final_norm.weight"],
    }
    for layer in range(7):
        ours, at = f"blocks.{layer}", f"layers.{layer}"
        q, k, v = state[f"{at}.attn.Wqkv.weight"].chunk(3)
        given[f"{ours}.attention.qkv.weight"] = torch.cat([paired(q, 2), paired(k, 2), v])
        given[f"{ours}.attention.output.weight"] = state[f"{at}.attn.Wo.weight"]
        if layer:
            given[f"{ours}.attention_norm.weight"] = state[f"{at}.attn_norm.weight"]
        given[f"{ours}.feed_norm.weight"] = state[f"{at}.mlp_norm.weight"]
        given[f"{ours}.feed.inner.weight"] = state[f"{at}.mlp.Wi.weight"]
        given[f"{ours}.feed.outer.weight"] = state[f"{at}.mlp.Wo.weight"]
    assert set(given) == set(encoder.state_dict())
    copy(encoder.state_dict(), given)
    rows = Rows.of([words(20)], [words(12)])
    with torch.no_grad():
        expected = model(rows.tokens, attention_mask=(rows.owner >= 0).long()).last_hidden_state
        found = states_of(encoder, rows)
    real = rows.owner >= 0
    torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=1e-4)
    alike = {**MODERN, "layer_settings": (), "layer_cycle": None}
    alike = tiny_network(layers=7, segments=1, **alike).encoder
    alike.load_state_dict(encoder.state_dict(), strict=False)
    assert not torch.allclose(states_of(alike, rows)[real], expected[real], atol=1e-2)


def test_it_computes_what_albert_of_transformers_does():
    theirs = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    model = theirs.AlbertModel(
        theirs.AlbertConfig(
            **sizes,
            vocab_size=23,
            embedding_size=8,
            max_position_embeddings=32,
            num_hidden_layers=5,
            num_hidden_groups=2,
        )
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    encoder = tiny_network(
        layers=5, layer_groups=2, embedding_width=8, activation="gelu_tanh"
    ).encoder
    state = model.state_dict()
    names = {
        "embeddings.tokens": "embeddings.word_embeddings",
        "embeddings.segments": "embeddings.token_type_embeddings",
        "embeddings.positions.table": "embeddings.position_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "embeddings.project": "encoder.embedding_hidden_mapping_in",
    }
    for group in range(2):
        ours, at = f"blocks.{group}", f"encoder.albert_layer_groups.{group}.albert_layers.0"
        names |= {
            f"{ours}.attention.output": f"{at}.attention.dense",
            f"{ours}.attention_norm": f"{at}.attention.LayerNorm",
            f"{ours}.feed.inner": f"{at}.ffn",
            f"{ours}.feed.outer": f"{at}.ffn_output",
            f"{ours}.feed_norm": f"{at}.full_layer_layer_norm",
        }
        for kind in ("weight", "bias"):
            parts = [state[f"{at}.attention.{part}.{kind}"] for part in ("query", "key", "value")]
            state[f"{at}.attention.qkv.{kind}"] = torch.cat(parts)
        names[f"{ours}.attention.qkv"] = f"{at}.attention.qkv"
    given = {}
    for name in encoder.state_dict():
        part, _, kind = name.rpartition(".")
        given[name] = state[f"{names[part]}.{kind}"]
    copy(encoder.state_dict(), given)
    rows = Rows.of([words(20)], [words(12)])
    with torch.no_grad():
        expected = model(rows.tokens, attention_mask=(rows.owner >= 0).long()).last_hidden_state
        found = states_of(encoder, rows)
    real = rows.owner >= 0
    torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=1e-4)


# Windows


def test_each_layer_sees_as_far_as_its_own_window():
    encoder = tiny_network(layers=3, layer_settings=({}, {"window": 2}, {"window": 1})).encoder
    with recording(encoder) as heard:
        states_of(encoder, Rows.of([words(6)]))
    index = torch.arange(6)
    apart = (index[:, None] - index[None]).abs()
    for weights, reach in zip(heard, (5, 2, 1), strict=True):
        assert torch.equal(weights[0, 0] > 0, apart <= reach)


def test_a_window_in_every_layer_is_the_window_of_all():
    rows = Rows.of([words(5), words(3)], [words(7)])
    one = tiny_network(window=2).encoder
    each = tiny_network(layer_settings=({"window": 2},)).encoder
    assert torch.equal(states_of(one, rows), states_of(each, rows))
    assert not torch.allclose(states_of(one, rows), states_of(tiny_network().encoder, rows))


def test_a_mask_is_made_once_for_each_distinct_window(monkeypatch):
    made, plain = [], masks.as_scores

    def counting(allowed, bias, dtype):
        made.append(allowed is None)
        return plain(allowed, bias, dtype)

    monkeypatch.setattr(masks, "as_scores", counting)
    encoder = tiny_network(layers=7, layer_settings=({}, {"window": 2}, {"window": 1})).encoder
    states_of(encoder, Rows.of([words(6)]))
    assert made == [True, False, False]  # no mask at all for the layers that see everything


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("changes", [{}, {"layer_groups": 2}, {"causal": True, "norm": "pre"}])
@pytest.mark.parametrize("training", [True, False])  # our own kernel, or torch's
def test_sharing_a_row_changes_nothing(scheme, changes, training):
    encoder = tiny_network(
        layers=4, positions=scheme, layer_settings=mixed(scheme), **far(scheme), **changes
    ).encoder
    texts = [words(n, seed=n) for n in (7, 3, 5)]
    with torch.set_grad_enabled(training):
        alone = [states_of(encoder, Rows.of([text]))[0] for text in texts]
        packed = states_of(encoder, Rows.of(texts[:2], texts[2:]))
    found = [packed[0, :7], packed[0, 7:10], packed[1, :5]]
    for one, two in zip(found, alone, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def far(scheme):
    """A reach beyond every text, where the scheme has one."""
    return {"reach": 20} if scheme in ("shaw", "t5") else {}


# Rotary positions


def test_each_layer_turns_by_its_own_base_and_equal_ones_share_a_table():
    own = ({"rotary_base": 500.0}, {}, {"rotary_base": 10_000.0})
    encoder = tiny_network(layers=5, positions="rotary", layer_settings=own).encoder
    x, index = torch.randn(1, 2, 4, 8), torch.arange(4)[None]
    for layer, base in enumerate((500.0, 10_000.0, 10_000.0, 500.0, 10_000.0)):
        expected = Rotary(tiny_config(positions="rotary", rotary_base=base))
        assert torch.equal(encoder.positions.at(layer).rotate(x, index), expected.rotate(x, index))
    assert encoder.positions.at(0) is encoder.positions.at(3)
    assert encoder.positions.at(1) is encoder.positions.at(2)


def test_one_base_in_all_layers_is_that_of_the_model():
    rows = Rows.of([words(7)])
    one = tiny_network(positions="rotary", rotary_base=500.0).encoder
    each = tiny_network(positions="rotary", layer_settings=({"rotary_base": 500.0},)).encoder
    assert isinstance(each.positions, Rotary)
    assert torch.equal(states_of(one, rows), states_of(each, rows))


# Shared weights


def unshared(encoder):
    """An encoder whose layers have copies of the weights that the layers of another share."""
    config = encoder.config.model_copy(update={"layer_groups": None})
    network = Network(Shape.of(config, {})).eval()
    state = {}
    for name, tensor in encoder.state_dict().items():
        part, _, rest = name.partition(".")
        for stem in ("blocks.", "embeddings.positions.layers."):
            if name.startswith(stem):
                number, _, rest = name.removeprefix(stem).partition(".")
                of = [n for n in range(config.layers) if encoder.config.group_of(n) == int(number)]
                state |= {f"{stem}{layer}.{rest}": tensor for layer in of}
                break
        else:
            state[name] = tensor
    network.encoder.load_state_dict(state)
    return network.encoder


def test_shared_blocks_exist_once():
    encoder = tiny_network(layers=6, layer_groups=2).encoder
    blocks = {name.split(".")[1] for name in encoder.state_dict() if name.startswith("blocks.")}
    assert blocks == {"0", "1"}
    two = tiny_network(layers=2).encoder
    assert set(encoder.state_dict()) == set(two.state_dict())
    assert count_parameters(encoder) == count_parameters(two)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_layers_that_share_their_weights_are_layers_with_the_same_weights(scheme, groups):
    changes = {"positions": scheme, "layer_settings": mixed(scheme), **far(scheme)}
    encoder = tiny_network(layers=5, layer_groups=groups, **changes).encoder
    other, rows = unshared(encoder), Rows.of([words(5), words(3)], [words(8)])
    ours, theirs = [], []
    found, expected = states_of(encoder, rows, trace=ours), states_of(other, rows, trace=theirs)
    assert len(ours) == 6
    assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))
    found.square().sum().backward()
    expected.square().sum().backward()
    summed = {}
    for name, parameter in other.named_parameters():
        stem, _, rest = name.partition(".")
        if stem == "blocks":
            number, _, rest = rest.partition(".")
            name = f"blocks.{encoder.config.group_of(int(number))}.{rest}"
        if name.startswith("embeddings.positions.layers."):
            *_, number, kind, _ = name.split(".")
            group = encoder.config.group_of(int(number))
            name = f"embeddings.positions.layers.{group}.{kind}.weight"
        summed[name] = summed.get(name, 0) + parameter.grad
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, summed[name], atol=1e-4, rtol=1e-4)


def test_recurrent_layers_may_share_their_weights():
    encoder = tiny_network(layers=3, cell="gru", layer_groups=1).encoder
    assert len(encoder.blocks) == 1
    rows = Rows.of([words(5)])
    assert torch.equal(states_of(encoder, rows), states_of(unshared(encoder), rows))


def test_a_listener_hears_the_number_of_the_layer_and_not_that_of_the_block():
    encoder = tiny_network(layers=5, layer_groups=2).encoder
    numbers, rows = [], Rows.of([words(6)])

    def note(layer, weights):
        numbers.append(layer)
        return weights

    with listening(encoder, note):
        states_of(encoder, rows)
    assert numbers == [0, 1, 2, 3, 4]
    other = unshared(encoder)
    with listening(encoder, ablating({1: [0]})), listening(other, ablating({1: [0]})):
        torch.testing.assert_close(states_of(encoder, rows), states_of(other, rows))


def test_a_shared_block_stands_as_high_as_the_highest_of_its_layers():
    """Where the rates of an optimizer differ by layer."""
    encoder = tiny_network(layers=6, layer_groups=2).encoder
    places = {name.partition(".attention")[0]: at for name, _, at in place_parameters(encoder)}
    assert places["blocks.0"].depth == 3
    assert places["blocks.1"].depth == 6


@pytest.mark.parametrize(
    ("frozen", "expected"), [(0, [False, False]), (2, [True, False]), (4, [True, True])]
)
def test_a_group_of_layers_is_frozen_as_a_whole(frozen, expected):
    network = tiny_network(layers=4, layer_groups=2)
    freeze(network, frozen, pooler=False)
    still = [not block.feed.outer.weight.requires_grad for block in network.encoder.blocks]
    assert still == expected


def test_a_group_of_layers_is_not_frozen_in_part():
    network = tiny_network(layers=4, layer_groups=2)
    message = "model.frozen is 3, but layers 2 and 3 share their weights"
    with pytest.raises(SettingsError, match=message):
        freeze(network, 3, pooler=False)


def test_a_group_that_a_head_reads_in_part_is_still_trained():
    labels = LabelsConfig(on="token", names=("a", "b"), mix=(1,))
    network = tiny_network({"labels": labels}, layers=6, layer_groups=3)
    freeze(network, 0, pooler=False)
    trained = [block.feed.outer.weight.requires_grad for block in network.encoder.blocks]
    assert trained == [True, False, False]


def test_a_decoder_has_layers_of_its_own():
    heads = bert_heads(pooler=False, decoder=DecoderConfig(vocab_size=19, layers=3))
    changes = {"positions": "rotary", "layer_settings": MIXED, "embedding_width": 8}
    network = tiny_network(heads, layers=4, layer_groups=1, **changes)
    decoder = network.heads["decoder"]
    assert len(network.encoder.blocks) == 1
    assert len(decoder.blocks) == 3
    assert isinstance(decoder.positions, Rotary)
    assert network.words().shape == (19, 16)


# Folders


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 5, "layer_groups": 2},
        {"layers": 7, **MODERN},
        {"layers": 5, "layer_groups": 2, "positions": "shaw", "layer_settings": mixed("shaw")},
    ],
    ids=["ALBERT", "ModernBERT", "both"],
)
def test_it_comes_back_from_a_folder_bit_for_bit(changes, tokenizer, tmp_path):
    network, rows = tiny_network(bert_heads(tokens=True), **changes), Rows.of([words(9)])
    save_folder(tmp_path / "model", network, tokenizer)
    loaded = load_folder(tmp_path / "model").network
    assert loaded.config == network.config
    assert torch.equal(states_of(loaded.encoder, rows), states_of(network.encoder, rows))


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_settings": [{}] * 3}, "layer_settings has 3 entries, but there are 2 layers"),
        (
            {"layer_settings": [{}], "layer_cycle": 2},
            "layer_cycle is 2, but layer_settings has only 1",
        ),
        ({"layer_cycle": 1}, "layer_cycle is 1, but layer_settings has only 0 entries"),
        ({"layer_cycle": 0}, "'layer_cycle' is 0"),
        ({"layer_groups": 3}, "layer_groups is 3, but there are only 2 layers"),
        ({"layer_groups": 0}, "'layer_groups' is 0"),
        ({"window": 3, "layer_settings": [{"window": 2}]}, "window is set for the whole model and"),
        (
            {"layer_settings": [{"rotary_base": 500.0}]},
            "layer_settings: rotary_base is set, but learned positions do not use it",
        ),
        (
            {"layer_groups": 1, "layer_settings": [{"attention_norm": False}, {}]},
            r"attention_norm differs between layers 0 and 1, which share .*layer_groups = 1",
        ),
        ({"layer_settings": [{"window": 0}]}, "'layer_settings.0.window' is 0"),
        ({"layer_settings": [{}, {"windows": 1}]}, "unknown key 'windows'; did you mean 'window'"),
        (
            {"layers": 40, "layer_settings": [{"window": n} for n in range(1, 18)]},
            "layer_settings has more than 16 different windows",
        ),
        (
            {
                "positions": "rotary",
                "width": 256,
                "max_length": 2**16,
                "layer_settings": [{"rotary_base": 500.0}, {}],
            },
            "max_length 65536 times 128 channels, in 2 tables",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_refused_by_name(changes, message):
    with pytest.raises(SettingsError, match=message):
        validate(ModelConfig, tiny_config().model_dump() | changes, where="mini.toml")
