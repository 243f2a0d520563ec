"""Model folders both ways: transformers reads ours, we read theirs, the numbers are the same."""

import json

import pytest
import torch

from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.model.config import SIZES, sized
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

transformers = pytest.importorskip("transformers")

HEADS = {
    "BertModel": bert_heads(),
    "BertForPreTraining": bert_heads(tokens=True, pair=True),
    "BertForMaskedLM": bert_heads(pooler=False, tokens=True),
    "BertForNextSentencePrediction": bert_heads(pair=True),
    "BertForSequenceClassification": bert_heads(labels="text", label_names=("no", "yes", "?")),
    "BertForTokenClassification": bert_heads(
        pooler=False, labels="token", label_names=("O", "B-X", "I-X")
    ),
    "BertForQuestionAnswering": bert_heads(
        pooler=False, labels="span", label_names=("start", "end")
    ),
}


def rows():
    """Two full rows, a pair each: nothing that one of the two libraries could pad differently."""
    tokens = torch.randint(5, 1000, (2, 40), generator=torch.Generator().manual_seed(3))
    segments = (torch.arange(40) >= 25).long().expand(2, -1)
    return tokens, segments


@torch.inference_mode()
def our_numbers(network: Network) -> dict[str, torch.Tensor]:
    """What a network computes, under the names of transformers' outputs."""
    tokens, segments = rows()
    index = torch.arange(tokens.shape[1]).expand_as(tokens)
    hidden = network.encoder(tokens, segments, index, torch.zeros_like(tokens))
    heads, labels = network.heads, network.shape.labels
    pooled = network.pool(hidden[:, 0]) if "pooler" in heads else None
    if labels and labels.on == "text":
        return {"logits": heads["labels"](pooled)}
    if labels and labels.on == "token":
        return {"logits": heads["labels"](hidden)}
    if labels and labels.on == "span":
        start, end = heads["labels"](hidden).unbind(-1)
        return {"start_logits": start, "end_logits": end}
    found = {}
    if "tokens" in heads:
        found["prediction_logits" if "pair" in heads else "logits"] = network.token_scores(hidden)
    if "pair" in heads:
        name = "seq_relationship_logits" if "tokens" in heads else "logits"
        found[name] = heads["pair"](pooled)
    return found or {"last_hidden_state": hidden, "pooler_output": pooled}


@torch.inference_mode()
def compare(network: Network, theirs) -> None:
    tokens, segments = rows()
    answer = theirs.eval()(input_ids=tokens, token_type_ids=segments)
    for name, ours in our_numbers(network).items():
        torch.testing.assert_close(ours, answer[name], atol=1e-5, rtol=1e-5)


def sizes_and_heads():
    """Every size with every head; in every run the smallest two, and BERT as it was published."""
    found = []
    for size in SIZES:
        for name in HEADS:
            marks = [pytest.mark.full]
            if size in ("tiny", "mini"):
                marks = []
            elif size == "base" and name == "BertForPreTraining":
                marks = [pytest.mark.slow]
            found.append(pytest.param(size, name, marks=marks))
    return found


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return Tokenizer(Vocabulary([*SPECIALS, *"abcdefghij"]))


@pytest.mark.parametrize(("size", "name"), sizes_and_heads())
def test_random_weights_of_every_size_and_head_give_the_same_numbers(tmp_path, size, name, letters):
    config = sized(size, vocab_size=1000 if size in ("base", "large") else 30_522)
    network = Network(Shape.of(config, HEADS[name])).eval()
    save_folder(tmp_path / "ours", network, letters)
    theirs, report = getattr(transformers, name).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values()), report
    compare(network, theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    back = load_folder(tmp_path / "theirs")
    assert back.network.config == config
    assert back.network.shape.heads == HEADS[name]
    for key, tensor in network.state_dict().items():
        assert torch.equal(back.network.state_dict()[key], tensor), key


@pytest.mark.parametrize("name", HEADS)
def test_what_transformers_writes_from_its_own_start_we_read(tmp_path, name):
    own = HEADS[name].get("labels")
    labels = own.names if own else ("a", "b")
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.2,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )
    theirs = getattr(transformers, name)(config)
    theirs.save_pretrained(tmp_path)
    network = load_folder(tmp_path).network
    compare(network, theirs)
    if own and own.on in ("text", "token"):
        assert network.shape.labels.names == own.names


@pytest.mark.parametrize(
    "changes",
    [{"activation": "relu"}, {"activation": "gelu_tanh"}, {"activation": "silu"}, {"causal": True}],
    ids=str,
)
def test_other_settings_that_transformers_knows_give_the_same_numbers(tmp_path, letters, changes):
    heads = bert_heads(tokens=True, pair=True)
    network = tiny_network(heads, vocab_size=1000, max_length=64, **changes)
    save_folder(tmp_path / "ours", network, letters)
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "ours")
    compare(network, theirs)


def test_auto_classes_find_model_and_tokenizer(tmp_path, letters):
    save_folder(tmp_path / "m", tiny_network(vocab_size=1000, max_length=64), letters)
    assert type(transformers.AutoModel.from_pretrained(tmp_path / "m")).__name__ == "BertModel"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    assert tokenizer("a b c [MASK]")["input_ids"] == letters.encode("a b c [MASK]").ids
    assert tokenizer.model_max_length == 64


def test_old_names_gamma_and_beta_are_read(tmp_path, letters):
    from safetensors.torch import load_file, save_file

    network = tiny_network()
    save_folder(tmp_path / "m", network, letters)
    weights = tmp_path / "m" / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(weights).items()
    }
    assert sum(name.endswith("gamma") for name in old) == 5
    save_file(old, weights)
    (tmp_path / "m" / "unmask.json").unlink()
    back = load_folder(tmp_path / "m").network
    for key, tensor in network.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor)


@pytest.mark.parametrize("scheme", ["sinusoidal", "shaw", "t5", "rotary", "none"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_network_that_is_no_plain_bert_is_not_passed_off_as_one(tmp_path, letters, scheme, norm):
    network = tiny_network(positions=scheme, norm=norm, vocab_size=1000, max_length=64)
    save_folder(tmp_path / "m", network, letters)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["model_type"] == "unmask"
    with pytest.raises(ValueError, match="unmask"):
        transformers.AutoModel.from_pretrained(tmp_path / "m")
    back = load_folder(tmp_path / "m").network
    assert back.config == network.config
    ours, theirs = our_numbers(network), our_numbers(back)
    for name in ours:
        assert torch.equal(ours[name], theirs[name])


def test_half_precision_on_disk_is_read_as_single(tmp_path, letters):
    network = tiny_network(vocab_size=1000, max_length=64)
    save_folder(tmp_path / "ours", network, letters)
    theirs = transformers.BertModel.from_pretrained(tmp_path / "ours", dtype=torch.float16)
    theirs.save_pretrained(tmp_path / "half")
    back = load_folder(tmp_path / "half").network
    for key, tensor in network.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor.half().float())


def test_weights_in_several_files_are_read(tmp_path):
    config = transformers.BertConfig(vocab_size=1000, hidden_size=32, num_hidden_layers=2)
    config.num_attention_heads, config.intermediate_size = 4, 64
    theirs = transformers.BertModel(config)
    theirs.save_pretrained(tmp_path, max_shard_size="50KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    compare(load_folder(tmp_path).network, theirs)
