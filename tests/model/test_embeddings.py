"""Embeddings: a listener of token vectors, narrow ones, and the table of another encoder."""

from dataclasses import dataclass
from typing import get_args

import pytest
import torch

from tests.conftest import tiny_config, tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.names import differences_from_bert
from unmask.model.config import Scheme
from unmask.model.embeddings import listening_to_tokens
from unmask.model.factory import make_network, part_of
from unmask.model.network import Network, count_parameters
from unmask.model.shape import (
    DecoderConfig,
    LabelsConfig,
    PoolerConfig,
    Shape,
    TokensConfig,
    VectorConfig,
)
from unmask.system.errors import SettingsError
from unmask.system.settings import validate

SCHEMES = get_args(Scheme)


@dataclass
class Rows:
    """A text in each of two rows, one of them with padding."""

    tokens: torch.Tensor
    segments: torch.Tensor
    index: torch.Tensor
    owner: torch.Tensor


def rows():
    tokens = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]])
    index = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 0, 0]])
    owner = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, -1, -1]])
    return Rows(tokens, (index > 2).long(), index, owner)


def unchanged(vectors):
    return vectors


# A listener


@pytest.mark.parametrize(("changes", "width"), [({}, 16), ({"embedding_width": 6}, 6)], ids=str)
def test_a_listener_sees_the_vectors_of_the_tokens_and_nothing_added_to_them(changes, width):
    network, seen = tiny_network(**changes), []

    def listener(vectors):
        seen.append(vectors)
        return vectors

    expected = network.encode(rows())
    with listening_to_tokens(network, listener):
        found = network.encode(rows())
    assert torch.equal(found, expected)
    (vectors,) = seen
    assert vectors.shape == (2, 5, width)
    assert torch.equal(vectors, network.table()[rows().tokens])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("changes", [{}, {"embedding_width": 6}], ids=str)
def test_what_a_listener_returns_is_what_is_read(scheme, changes):
    """The vectors of other tokens give the states of other tokens."""
    reach = {"reach": 20} if scheme in ("shaw", "t5") else {}
    network = tiny_network(positions=scheme, **reach, **changes)
    other = rows()
    other.tokens = torch.tensor([[5, 6, 21, 8, 9], [10, 20, 12, 0, 0]])
    with listening_to_tokens(network, lambda _: network.table()[other.tokens]):
        found = network.encode(rows())
    assert torch.equal(found, network.encode(other))
    assert not torch.allclose(found, network.encode(rows()))


def test_a_listener_may_ask_for_the_gradient_of_the_vectors():
    """As adversarial training does: a step against the gradient makes the sum smaller."""
    network, seen = tiny_network(), []

    def listener(vectors):
        seen.append(vectors.detach().requires_grad_())
        return seen[-1]

    with listening_to_tokens(network, listener):
        before = network.encode(rows())[..., 0].sum()
    before.backward()
    assert seen[0].grad.shape == (2, 5, 16)
    with listening_to_tokens(network, lambda vectors: vectors - 0.001 * seen[0].grad):
        assert network.encode(rows())[..., 0].sum() < before


def test_nothing_is_left_behind_even_after_an_error():
    network = tiny_network()
    expected = network.encode(rows())
    with listening_to_tokens(network, torch.zeros_like):
        assert not torch.allclose(network.encode(rows()), expected)
    assert network.encoder.embeddings.listener is None
    with pytest.raises(RuntimeError, match="stop"), listening_to_tokens(network, unchanged):
        raise RuntimeError("stop")
    assert network.encoder.embeddings.listener is None
    assert torch.equal(network.encode(rows()), expected)


def test_a_listener_in_another_block_is_there_again_afterwards():
    embeddings = tiny_network().encoder.embeddings
    with listening_to_tokens(embeddings, unchanged):
        with listening_to_tokens(embeddings, torch.zeros_like):
            assert embeddings.listener is torch.zeros_like
        assert embeddings.listener is unchanged


def test_every_encoder_of_a_network_is_listened_to():
    network, seen = two_encoders(), []

    def listener(vectors):
        seen.append(vectors.shape)
        return vectors

    with listening_to_tokens(network, listener):
        network.encode(rows())
        network.encode(rows(), encoder="generator")
    assert seen == [(2, 5, 16), (2, 5, 16)]


# Factorised


@pytest.mark.parametrize("scheme", ["learned", "sinusoidal", "none"])
def test_narrow_embeddings_are_summed_normed_and_only_then_widened(scheme):
    embeddings = tiny_network(embedding_width=6, positions=scheme).encoder.embeddings
    batch = rows()
    x = embeddings.table[batch.tokens]
    if scheme == "sinusoidal":
        x = x * 6**0.5
    x = x + embeddings.segments.weight[batch.segments]
    if scheme != "none":
        table = embeddings.positions.table
        x = x + (table.weight if scheme == "learned" else table)[batch.index]
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-12).sqrt()
    expected = x @ embeddings.project.weight.T + embeddings.project.bias
    found = embeddings(batch.tokens, batch.segments, batch.index)
    assert found.shape == (2, 5, 16)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_narrow_embeddings_are_fewer_parameters():
    """23 tokens, 32 positions, 2 segments and a norm with two, 10 narrower; a map of 6 to 16."""
    heads = bert_heads(pooler=False)
    wide, narrow = tiny_network(heads), tiny_network(heads, embedding_width=6)
    added = 6 * 16 + 16
    assert count_parameters(wide) - count_parameters(narrow) == (23 + 32 + 2 + 2) * 10 - added
    assert tiny_network(embedding_width=16).encoder.state_dict().keys() == set(
        tiny_network().encoder.state_dict()
    )


def test_masked_tokens_are_predicted_among_narrow_vectors():
    network = tiny_network(bert_heads(tokens=True), embedding_width=6)
    states, answers = torch.randn(4, 16), torch.tensor([5, 6, 7, 8])
    head = network.heads["tokens"]
    assert head.dense.weight.shape == (6, 16)
    scores = network.token_scores(states)
    torch.testing.assert_close(scores, head(states) @ network.table().T + head.bias)
    loss = torch.nn.functional.cross_entropy(scores, answers, reduction="sum")
    torch.testing.assert_close(network.token_loss(states, answers), loss)


def test_narrow_embeddings_are_no_bert():
    assert differences_from_bert(Shape.of(tiny_config(embedding_width=6))) == [
        "embedding_width = 6"
    ]
    assert differences_from_bert(Shape.of(tiny_config(embedding_width=None))) == []


# Borrowed


def two_shapes(**generator):
    """ELECTRA: a discriminator, and a smaller generator that has the same token embeddings."""
    main = tiny_config(init_std=0.2)
    sizes = {"width": 8, "inner_width": 16, "layers": 1, "embedding_width": 16, "borrows": "main"}
    small = tiny_config(init_std=0.2, **{**sizes, **generator})
    heads = {"tokens": TokensConfig(encoder="generator"), "pooler": PoolerConfig()}
    return {"encoders": {"main": main, "generator": small}, "heads": heads}


def two_encoders(**generator):
    torch.manual_seed(0)
    return Network(validate(Shape, two_shapes(**generator), where="network")).eval()


def test_a_table_that_is_borrowed_exists_once():
    network = two_encoders()
    tables = [name for name in network.state_dict() if name.endswith("embeddings.tokens.weight")]
    assert tables == ["encoders.main.embeddings.tokens.weight"]
    assert network.encoder_of("generator").embeddings.tokens is None
    assert network.table("generator") is network.table("main")
    assert network.words("tokens") is network.table()
    with pytest.raises(AssertionError, match="borrow the table of another encoder"):
        _ = network.encoder_of("generator").embeddings.table


def test_an_encoder_reads_the_tokens_that_it_borrows():
    """It computes what an encoder with a copy of the table would."""
    network = two_encoders()
    config = network.shape.encoders["generator"].model_copy(update={"borrows": None})
    other = Network(Shape.of(config)).eval()
    state = network.encoder_of("generator").state_dict()
    other.encoder.load_state_dict({**state, "embeddings.tokens.weight": network.table()})
    found = network.encode(rows(), encoder="generator")
    assert found.shape == (2, 5, 8)
    assert torch.equal(found, other.encode(rows()))


def test_both_encoders_train_the_one_table():
    network = two_encoders()
    parts = []
    for names in (["generator"], ["main"], ["main", "generator"]):
        network.zero_grad()
        sum(network.encode(rows(), encoder=name).square().sum() for name in names).backward()
        parts.append(network.table().grad.clone())
    torch.testing.assert_close(parts[0] + parts[1], parts[2])
    assert all(part.abs().sum() > 0 for part in parts)


def test_the_values_of_a_part_do_not_depend_on_what_borrows_from_it():
    shape = validate(Shape, two_shapes(), where="network")
    alone = make_network(Shape.of(shape.main), seed=1)
    both = make_network(shape, seed=1)
    for name, tensor in alone.encoder.state_dict().items():
        assert torch.equal(both.encoder.state_dict()[name], tensor)


def test_a_part_that_borrows_takes_the_table_along():
    network = two_encoders()
    part = part_of(network, ["generator", "tokens"])
    assert list(part.encoders) == ["main"]
    assert part.config.borrows is None
    assert part.table() is network.table(), "nothing is copied"
    assert torch.equal(part.encode(rows()), network.encode(rows(), encoder="generator"))
    states = part.encode(rows())
    assert torch.equal(part.token_scores(states), network.token_scores(states))
    assert not any(tensor.is_meta for tensor in part.state_dict().values())


def test_a_part_without_the_borrower_is_the_lender():
    network = two_encoders()
    part = part_of(network, ["main", "pooler"])
    assert set(part.encoder.state_dict()) == set(network.encoder.state_dict())
    assert list(part.heads) == ["pooler"]
    assert torch.equal(part.encode(rows()), network.encode(rows()))


def test_a_part_of_both_still_has_one_table():
    network = two_encoders()
    part = part_of(network, ["main", "generator"])
    assert part.shape.encoders["generator"].borrows == "main"
    assert part.table("generator") is network.table()
    assert torch.equal(
        part.encode(rows(), encoder="generator"), network.encode(rows(), encoder="generator")
    )


def test_a_head_keeps_its_name_in_a_part_also_beside_an_encoder_of_that_name():
    heads = {"query": VectorConfig(encoder="query", width=3)}
    encoders = {"main": tiny_config(), "query": tiny_config(layers=1)}
    network = make_network(Shape(encoders=encoders, heads=heads), 0)
    part = part_of(network, ["query"])
    assert list(part.encoders) == ["main"]
    assert list(part.heads) == ["query"]
    assert part.heads["query"] is network.heads["query"]


@pytest.mark.parametrize("names", [["one", "two"], ["nobody"]])
def test_a_part_without_a_main_encoder_is_refused(names):
    encoders = {name: tiny_config() for name in ("main", "one", "two")}
    network = make_network(Shape(encoders=encoders, heads={}), 0)
    with pytest.raises(SettingsError, match="need one called 'main', or a single one"):
        part_of(network, names)


def test_a_part_that_borrows_is_written_and_read_as_a_model_of_its_own(tokenizer, tmp_path):
    network = two_encoders()
    save_folder(tmp_path / "model", part_of(network, ["generator", "tokens"]), tokenizer)
    loaded = load_folder(tmp_path / "model").network
    assert torch.equal(loaded.encode(rows()), network.encode(rows(), encoder="generator"))


def test_a_network_that_borrows_comes_back_from_a_folder_bit_for_bit(tokenizer, tmp_path):
    network = two_encoders()
    save_folder(tmp_path / "model", network, tokenizer)
    loaded = load_folder(tmp_path / "model").network
    assert loaded.shape == network.shape
    for name in ("main", "generator"):
        found = loaded.encode(rows(), encoder=name)
        assert torch.equal(found, network.encode(rows(), encoder=name))
    assert loaded.table("generator") is loaded.table()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"borrows": "teacher"},
            "'generator' borrows the token embeddings of 'teacher', which does not",
        ),
        (
            {"borrows": "generator"},
            "'generator' borrows the token embeddings of 'generator', which does not",
        ),
        ({"vocab_size": 24}, "but its vocab_size is 24 instead of 23"),
        (
            {"embedding_width": None},
            "of width 16, but expects width 8; set its embedding_width to 16",
        ),
    ],
    ids=str,
)
def test_a_table_that_cannot_be_borrowed_is_refused(changes, message):
    with pytest.raises(SettingsError, match=message):
        two_encoders(**changes)


def test_what_is_borrowed_is_not_lent_again():
    table = two_shapes()
    third = table["encoders"]["generator"].model_copy(update={"borrows": "generator"})
    table["encoders"] = {**table["encoders"], "third": third}
    with pytest.raises(
        SettingsError, match="'third' borrows the token embeddings of 'generator', which"
    ):
        validate(Shape, table, where="network")


def test_a_decoder_cannot_share_narrow_tokens():
    heads = bert_heads(decoder=DecoderConfig(vocab_size=23, layers=1, shared=True))
    message = r"its token embeddings have width 16, but the encoder's have 6 \(embedding_width"
    with pytest.raises(SettingsError, match=message):
        Network(Shape.of(tiny_config(embedding_width=6), heads))


def test_heads_find_their_encoder_by_its_name():
    table = two_shapes()
    labels = LabelsConfig(on="token", names=("a", "b", "c"), encoder="generator")
    table["heads"] = {"labels": labels, "vectors": VectorConfig(width=5, encoder="generator")}
    network = Network(validate(Shape, table, where="network"))
    assert network.heads["labels"].dense.weight.shape == (3, 8)
    assert network.heads["vectors"].dense.weight.shape == (5, 8)
    table["heads"] = {"labels": labels.model_copy(update={"encoder": "teacher"})}
    with pytest.raises(
        SettingsError, match="'labels' reads the encoder 'teacher', which does not exist"
    ):
        validate(Shape, table, where="network")
