"""Model folders: what is written is what is read, whole or not at all."""

import json
import shutil

import pytest
import torch

from tests.conftest import tiny_network, tiny_translator
from tests.shapes import bert_heads
from unmask.checkpoint.convert import convert
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.model.shape import PoolerConfig, VectorConfig
from unmask.system.errors import FolderError
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

CASED = Casing(lowercase=False, strip_accents=False)


def test_everything_comes_back_bit_for_bit(tmp_path, tokenizer):
    heads = bert_heads(tokens=True, pair=True, labels="text", label_names=("no", "yes"))
    network = tiny_network(heads, dropout=0.2, activation="relu", norm_epsilon=1e-7)
    save_folder(tmp_path / "m", network, tokenizer, recipe={"steps": 3}, provenance={"by": "me"})
    back = load_folder(tmp_path / "m")
    assert back.network.config == network.config
    assert back.network.shape.heads == heads
    assert back.tokenizer.vocabulary == tokenizer.vocabulary
    assert back.manifest["recipe"] == {"steps": 3}
    assert back.manifest["provenance"] == {"by": "me"}
    for key, tensor in network.state_dict().items():
        assert torch.equal(back.network.state_dict()[key], tensor), key


@pytest.mark.parametrize("name", ["half", "keys", "forward", "_modules", "my-task", "7"])
def test_a_head_may_be_called_as_something_that_torch_has(tmp_path, tokenizer, name):
    network = tiny_network({name: VectorConfig(width=3), "pooler": PoolerConfig()})
    save_folder(tmp_path / "m", network, tokenizer)
    back = load_folder(tmp_path / "m").network.half().float().eval()
    assert list(back.heads.keys()) == [name, "pooler"]
    assert back.shape == network.shape
    assert back.heads[name](torch.zeros(2, 16)).shape == (2, 3)
    assert not back.heads[name].training
    assert back.state_dict().keys() == network.state_dict().keys()


def test_a_model_of_very_many_labels_can_be_read_again(tmp_path, tokenizer):
    names = tuple(f"{number:0>60}" for number in range(9000))
    network = tiny_network(bert_heads(labels="text", label_names=names))
    save_folder(tmp_path / "m", network, tokenizer, task={"names": list(names)})
    assert load_folder(tmp_path / "m").network.shape.labels.names == names


def test_writing_twice_gives_the_same_bytes(tmp_path, tokenizer):
    for name in ("one", "two"):
        save_folder(tmp_path / name / "m", tiny_network(), tokenizer)
    for path in (tmp_path / "one" / "m").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / "m" / path.name).read_bytes(), path.name


def test_the_folder_has_hugging_faces_files_and_our_manifest(tmp_path, tokenizer):
    save_folder(tmp_path / "m", tiny_network(), tokenizer)
    names = {path.name for path in (tmp_path / "m").iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "unmask.json",
        "vocab.txt",
    }
    manifest = json.loads((tmp_path / "m" / "unmask.json").read_text())
    assert set(manifest["files"]) == names - {"unmask.json"}


def test_a_vocabulary_too_large_for_the_model_is_refused_when_written(tmp_path):
    large = Tokenizer(Vocabulary([*SPECIALS, *(f"word{i}" for i in range(30))]))
    with pytest.raises(FolderError, match="has 35 tokens, but the model has only 23"):
        save_folder(tmp_path / "m", tiny_network(), large)
    assert not (tmp_path / "m").exists()


def test_a_model_may_have_more_rows_than_tokens(tmp_path, tokenizer):
    save_folder(tmp_path / "m", tiny_network(vocab_size=64), tokenizer)
    assert load_folder(tmp_path / "m").network.config.vocab_size == 64


def test_a_folder_without_vocabulary_is_read_without_tokenizer(tmp_path, tokenizer):
    save_folder(tmp_path / "m", tiny_network(), tokenizer)
    for name in ("vocab.txt", "tokenizer.json", "unmask.json"):
        (tmp_path / "m" / name).unlink()
    assert load_folder(tmp_path / "m").tokenizer is None


def test_another_architecture_is_named(tmp_path, tokenizer):
    save_folder(tmp_path / "m", tiny_network(), tokenizer)
    (tmp_path / "m" / "unmask.json").unlink()
    path = tmp_path / "m" / "config.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps(table | {"model_type": "gpt2", "architectures": ["GPT2Model"]}))
    with pytest.raises(FolderError, match="model type 'gpt2' .*GPT2Model.* is not BERT"):
        load_folder(tmp_path / "m")


TRANSLATORS = {
    "transformer": ({}, {}),
    "transformer with t5 positions": ({}, {"positions": "t5", "norm": "pre"}),
    "transformer on a gru": ({}, {"cell": "gru"}),
    "lstm that hears words": ({"cell": "lstm", "feeds": "word"}, {"cell": "lstm"}),
    "gru that hears nothing": (
        {"cell": "gru", "feeds": "nothing", "context": "all"},
        {"cell": "gru"},
    ),
    "lstm that hears the context": (
        {"cell": "lstm", "feeds": "context", "context": "all"},
        {"cell": "gru"},
    ),
    "gru with additive attention": ({"cell": "gru", "attention": "additive"}, {"cell": "gru"}),
    "gru with general attention": ({"cell": "gru", "attention": "general", "feeds": "word"}, {}),
    "gru that reads one way": (
        {"cell": "gru", "attention": "dot"},
        {"cell": "gru", "causal": True},
    ),
}


@pytest.fixture
def target():
    return Tokenizer(Vocabulary([*SPECIALS, *"eins zwei drei vier . , ##n Äh".split()]), CASED)


def write_translator(path, tokenizer, target, kind="transformer", *, shared=False):
    own, changes = TRANSLATORS[kind]
    said = tokenizer if shared else target
    own = {**own, "shared": shared, "vocab_size": len(said.vocabulary)}
    network = tiny_translator(own, **changes)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter))  # none is what it began as
    save_folder(path, network, tokenizer, target=said)
    return network


@pytest.mark.parametrize("kind", TRANSLATORS)
@pytest.mark.parametrize("shared", [False, True])
def test_every_kind_of_translator_comes_back_bit_for_bit(tmp_path, tokenizer, target, kind, shared):
    network = write_translator(tmp_path / "m", tokenizer, target, kind, shared=shared)
    back = load_folder(tmp_path / "m")
    assert back.network.shape == network.shape
    assert back.tokenizer.digest() == tokenizer.digest()
    assert back.target.digest() == (tokenizer if shared else target).digest()
    assert (tmp_path / "m" / "target").exists() != shared
    mine, theirs = network.state_dict(), back.network.state_dict()
    assert mine.keys() == theirs.keys()
    for key, tensor in mine.items():
        assert torch.equal(theirs[key], tensor), key


def test_a_converted_translator_keeps_both_vocabularies(tmp_path, tokenizer, target):
    write_translator(tmp_path / "m", tokenizer, target)
    convert(tmp_path / "m", tmp_path / "n")
    assert load_folder(tmp_path / "n").target.digest() == target.digest()


def test_a_changed_word_of_the_target_is_noticed(tmp_path, tokenizer, target):
    write_translator(tmp_path / "m", tokenizer, target)
    path = tmp_path / "m" / "target" / "vocab.txt"
    path.write_text(path.read_text().replace("zwei", "zwo!"))
    with pytest.raises(FolderError, match=r"target/vocab\.txt: was changed since it was written"):
        load_folder(tmp_path / "m")


VERSIONS = pytest.mark.parametrize("version", ["0.1", "today"])


def unsealed(path, version, **changes):
    """A folder that somebody else has written, with other settings of its decoder."""
    (path / "unmask.json").unlink(missing_ok=True)
    table = json.loads((path / "config.json").read_text())
    own = table["unmask"]["heads"]["decoder"]
    own = {**own, **changes} if changes else "a decoder"
    table["unmask"]["heads"]["decoder"] = own
    if version == "0.1":
        table["unmask_decoder"] = own
        table["unmask"] = table["unmask"]["encoders"]["main"]
    (path / "config.json").write_text(json.dumps(table))


@VERSIONS
def test_another_version_reads_the_same_of_a_translator(tmp_path, tokenizer, target, version):
    network = write_translator(tmp_path / "m", tokenizer, target)
    unsealed(tmp_path / "m", version, vocab_size=13)
    back = load_folder(tmp_path / "m").network
    assert back.shape == network.shape
    for key, tensor in network.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor), key


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.1", "'unmask_decoder' is 'a decoder'; need a table"),
        ("today", "'heads.decoder' is 'a decoder'; "),
    ],
)
def test_a_decoder_that_is_no_table_is_refused(tmp_path, tokenizer, target, version, message):
    write_translator(tmp_path / "m", tokenizer, target)
    unsealed(tmp_path / "m", version)
    with pytest.raises(FolderError, match=message):
        load_folder(tmp_path / "m")


@VERSIONS
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 99}, r"has shape \[13.*config\.json implies \[99"),
        ({"layers": 3}, "tensors are missing, the first is 'unmask.heads.decoder.blocks.2"),
        ({"shared": True}, r"config\.json: decoder: its vocab_size is 13, but the encoder's is 23"),
        (
            {"max_length": 2**18},
            r"json: 'heads.decoder.max_length' is 262144|"
            r"json \[unmask_decoder\]: 'max_length' is 262144",
        ),
        ({"feeds": "nothing"}, "feeds is set, but Transformer decoders do not use it"),
        (
            {"cells": "gru"},
            r"\[(heads|unmask_decoder)\]: unknown key 'cells'; did you mean 'cell'\?",
        ),
        ({"layerz": 1}, r"unknown key 'layerz'; did you mean 'layers'\?"),
    ],
)
def test_a_decoder_that_is_not_the_one_of_the_weights_is_refused(
    tmp_path, tokenizer, target, changes, message, version
):
    write_translator(tmp_path / "m", tokenizer, target)
    unsealed(tmp_path / "m", version, **changes)
    with pytest.raises(FolderError, match=message):
        load_folder(tmp_path / "m")


def test_a_vocabulary_of_another_decoder_is_refused(tmp_path, tokenizer, target):
    write_translator(tmp_path / "m", tokenizer, target)
    (tmp_path / "m" / "unmask.json").unlink()
    (tmp_path / "m" / "target" / "tokenizer.json").unlink()
    with (tmp_path / "m" / "target" / "vocab.txt").open("a") as file:
        file.write("fünf\n")
    with pytest.raises(
        FolderError, match="target vocabulary has 14 tokens, but the decoder has 13"
    ):
        load_folder(tmp_path / "m")


def test_a_translator_without_the_words_it_says_is_refused(tmp_path, tokenizer, target):
    write_translator(tmp_path / "m", tokenizer, target)
    (tmp_path / "m" / "unmask.json").unlink()
    shutil.rmtree(tmp_path / "m" / "target")
    with pytest.raises(FolderError, match="m/target: no such folder; need"):
        load_folder(tmp_path / "m")


def test_a_translator_is_not_written_without_the_words_it_says(tmp_path, tokenizer, target):
    network = tiny_translator({"vocab_size": 13})
    for said, count in ((None, 0), (tokenizer, 23)):
        with pytest.raises(FolderError, match=f"has {count} tokens, but the decoder has 13"):
            save_folder(tmp_path / "m", network, tokenizer, target=said)
    assert not (tmp_path / "m").exists()
