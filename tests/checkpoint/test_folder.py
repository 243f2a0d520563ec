"""Model folders: what is written is what is read, whole or not at all."""

import json

import pytest
import torch

from tests.conftest import tiny_network
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.errors import FolderError
from unmask.model.config import HeadsConfig
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary


def test_everything_comes_back_bit_for_bit(tmp_path, tokenizer):
    heads = HeadsConfig(tokens=True, pair=True, labels="text", label_names=("no", "yes"))
    network = tiny_network(heads, dropout=0.2, activation="relu", norm_epsilon=1e-7)
    save_folder(tmp_path / "m", network, tokenizer, recipe={"steps": 3}, provenance={"by": "me"})
    back = load_folder(tmp_path / "m")
    assert back.network.config == network.config
    assert back.network.heads == heads
    assert back.tokenizer.vocabulary == tokenizer.vocabulary
    assert back.manifest["recipe"] == {"steps": 3}
    assert back.manifest["provenance"] == {"by": "me"}
    for key, tensor in network.state_dict().items():
        assert torch.equal(back.network.state_dict()[key], tensor), key


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
    with pytest.raises(FolderError, match="35 tokens do not fit a model of 23"):
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
    with pytest.raises(FolderError, match="model type 'gpt2' .*GPT2Model.* it is not BERT"):
        load_folder(tmp_path / "m")
