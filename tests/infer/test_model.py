"""A loaded model: what `unmask.load` gives to a program."""

import numpy as np
import pandas as pd
import pytest
import torch

import unmask
from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import save_folder
from unmask.system.errors import DataError, FolderError, SettingsError

LONG = "the cat sat on the mat . " * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("models") / "tiny"
    network = tiny_network(bert_heads(tokens=True, pair=True), layers=4)
    save_folder(path, network, tokenizer)
    return path


@pytest.fixture
def model(folder):
    return unmask.load(folder)


def states(model, text):
    """All layers' states of one text, without the engine."""
    example = model.tokenizer.encode(text)
    tokens = torch.tensor([example.ids])
    index = torch.arange(tokens.shape[1])[None]
    encoder, trace = model.network.encoder, []
    with torch.inference_mode():
        x = encoder.embeddings(tokens, torch.tensor([example.segments]), index)
        encoder.run(x, None, index, trace=trace)
    return [layer[0].numpy() for layer in trace]


def test_mean_pooling_is_the_mean_over_all_tokens(model):
    expected = states(model, "the cat sat")[-1].mean(axis=0)
    found = model.embed(["a dog", "the cat sat"], normalize=False)[1]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_cls_pooling_is_the_first_state(model):
    expected = states(model, "the cat sat")[-1][0]
    found = model.embed(["the cat sat"], pool="cls", normalize=False)[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("layer", [0, 1, 4, -1, -5])
def test_any_layer_can_be_pooled(model, layer):
    expected = states(model, "the cat sat")[layer].mean(axis=0)
    found = model.embed(["the cat sat"], layer=layer, normalize=False)[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_last4_lays_the_last_four_layers_side_by_side(model):
    expected = np.concatenate([s.mean(axis=0) for s in states(model, "the cat")[-4:]])
    found = model.embed(["the cat"], layer="last4", normalize=False)[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_normalized_vectors_have_length_one(model):
    np.testing.assert_allclose(np.linalg.norm(model.embed(["a", "the dog"]), axis=1), 1, atol=1e-6)


def test_no_texts_give_an_empty_table(model):
    assert model.embed([]).shape == (0, 16)
    assert model.embed([], layer="last4").shape == (0, 64)


def test_one_string_is_one_text_and_not_a_list_of_letters(model):
    vector = model.embed("the cat")
    assert vector.shape == (16,)
    np.testing.assert_array_equal(vector, model.embed(["the cat"])[0])
    np.testing.assert_array_equal([vector], list(model.embeddings("the cat")))


def test_a_mask_that_was_cut_off_is_reported_as_such(model):
    with pytest.raises(DataError, match=r"every \[MASK\] comes after the 32 tokens"):
        model.fill(LONG + "[MASK]")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "men"}, "unknown pool 'men'; did you mean 'mean'"),
        ({"layer": 5}, "layer 5: the model has 4 layers; need 0"),
        ({"layer": "last"}, "layer 'last': the model has 4"),
    ],
)
def test_a_wrong_option_is_named(model, options, message):
    with pytest.raises(SettingsError, match=message):
        model.embed(["a"], **options)


def test_guesses_are_the_softmax_of_the_token_head_best_first(model):
    ((first, *others),) = model.fill("the [MASK] sat", top=23)
    last = torch.from_numpy(states(model, "the [MASK] sat")[-1][2])
    with torch.inference_mode():
        shares = model.network.token_scores(last[None])[0].softmax(-1)
    assert first.token == model.tokenizer.vocabulary.tokens[int(shares.argmax())]
    assert first.probability == pytest.approx(shares.max().item(), abs=1e-6)
    assert sum(guess.probability for guess in (first, *others)) == pytest.approx(1)
    assert [g.probability for g in others] == sorted((g.probability for g in others), reverse=True)


def test_every_mask_is_guessed(model):
    assert [len(guesses) for guesses in model.fill("[MASK] cat [MASK]", top=3)] == [3, 3]


def test_a_text_without_a_mask_is_refused(model):
    with pytest.raises(DataError, match=r"contains no \[MASK\]"):
        model.fill("the cat sat")


def test_next_is_the_share_of_the_first_class(model):
    share = model.next("the cat", "sat")
    assert 0 < share < 1
    with torch.no_grad():
        model.network.heads["pair"].dense.weight.zero_()
        model.network.heads["pair"].dense.bias.copy_(torch.tensor([1.0, 0.0]))
    assert model.next("the cat", "sat") == pytest.approx(0.7310586)  # e / (e + 1)


def test_attention_has_a_row_of_shares_for_each_token(model):
    attention = model.attention("the cat", "sat")
    assert attention.tokens == ["[CLS]", "the", "cat", "[SEP]", "sat", "[SEP]"]
    assert attention.segments == [0, 0, 0, 0, 1, 1]
    assert attention.weights.shape == (4, 2, 6, 6)
    np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-6)


def test_a_long_text_is_cut_and_the_cut_is_counted(model):
    model.embed(["the cat", LONG])
    assert (model.cut_texts, model.cut_tokens) == (1, 140 + 2 - 32)


def test_a_long_text_is_refused_when_nothing_may_be_cut(model):
    with pytest.raises(DataError, match="text 2: 142 tokens; the model reads at most 32"):
        model.embed(["a", LONG], truncate=False)


def test_a_model_without_the_head_says_what_it_is(tmp_path, tokenizer):
    save_folder(tmp_path / "plain", tiny_network(), tokenizer)
    plain = unmask.load(tmp_path / "plain")
    message = r"a BertModel, which has no masked-token head, .* `unmask pretrain CORPUS --out RUN`"
    with pytest.raises(FolderError, match=message):
        plain.fill("the [MASK]")
    with pytest.raises(FolderError, match=r"no next-sentence head.*`unmask pretrain .*--pairs nsp"):
        plain.next("a", "b")


def test_an_unknown_model_is_answered_with_the_nearest():
    with pytest.raises(FolderError, match="did you mean 'minilm'"):
        unmask.load("minilmm")


FORMS = {
    "tuple": ("the cat", "a dog"),
    "generator": (text for text in ("the cat", "a dog")),
    "series": pd.Series(["the cat", "a dog"]),
    "array": np.array(["the cat", "a dog"]),
    "frame": pd.DataFrame({"text": ["the cat", "a dog"], "id": [1, 2]}),
}


@pytest.mark.parametrize("form", FORMS)
def test_vectors_of_texts_in_many_forms(model, form):
    np.testing.assert_array_equal(model.embed(FORMS[form]), model.embed(["the cat", "a dog"]))


def test_encode_is_embed(model):
    np.testing.assert_array_equal(model.encode("the cat"), model.embed("the cat"))
    vectors = model.encode(["the cat"], pool="cls", layer=0, normalize=False)
    np.testing.assert_array_equal(
        vectors, model.embed(["the cat"], pool="cls", layer=0, normalize=False)
    )


def test_a_text_that_is_none_is_named_by_its_index(model):
    with pytest.raises(DataError, match=r"texts\[17\] is None; need a string"):
        model.embed(["a"] * 17 + [None])
    with pytest.raises(DataError, match=r"texts\[1\] is 5 \(int\); need a string"):
        model.tokenize(["a", 5])


def test_several_texts_are_filled_in_one_call(model):
    one, other = model.fill(["the [MASK]", "[MASK] [MASK]"], top=2)
    assert one == model.fill("the [MASK]", top=2)
    assert [len(predictions) for predictions in other] == [2, 2]


def test_tokens_of_a_text_a_pair_and_a_list(model):
    one = model.tokenize("the cat")
    assert one.tokens == ["[CLS]", "the", "cat", "[SEP]"]
    assert [one.ids[0], one.ids[-1]] == [2, 3]
    assert one.offsets[1:3] == [(0, 3), (4, 7)]
    assert model.tokenize("the cat", "sat").segments == [0, 0, 0, 0, 1, 1]
    assert model.tokenize(["the cat", "a dog"]) == [one, model.tokenize("a dog")]
    assert model.tokenize(LONG).cut == 140 + 2 - 32
    with pytest.raises(SettingsError, match="second belongs to a single text"):
        model.tokenize(["the cat"], "sat")


def test_a_model_shows_itself_in_one_line(model):
    assert repr(model) == (
        "Model(tiny: BertForPreTraining, 4 layers, hidden size 16, 10,473 parameters, "
        "heads: pooler, tokens, pair, no task, cpu, float32)"
    )
    assert sum(p.numel() for p in model.network.parameters()) == 10473


def test_a_saved_model_answers_the_same_with_its_weights_of_now(model, tmp_path):
    with torch.no_grad():
        model.network.heads["pair"].dense.bias.add_(1.0)
    path = model.save(tmp_path / "saved")
    assert path == tmp_path / "saved"
    again = unmask.load(path)
    np.testing.assert_array_equal(again.embed(["the cat"]), model.embed(["the cat"]))
    assert again.next("the cat", "sat") == model.next("the cat", "sat")
    with pytest.raises(FolderError, match="saved"):
        model.save(tmp_path / "saved")


def test_a_model_moves_to_a_device_that_is_there(model, monkeypatch):
    assert model.to("cpu") is model
    with pytest.raises(SettingsError, match="cuda:9: this machine does not have it. .* cpu"):
        model.to("cuda:9")
    with pytest.raises(SettingsError, match="unknown device 'gpu'"):
        unmask.load(model.path, device="gpu")
    # "meta" is a device without memory, which every machine has.
    monkeypatch.setattr("unmask.infer.model.device_of", torch.device)
    assert model.to("meta").network.table().device.type == "meta"


def test_a_task_that_was_not_learned_is_named_with_its_command(model):
    message = "not fine-tuned for {0}. Fine-tune it with `unmask finetune {0} MODEL"
    asked = {
        "classify": lambda: model.classify("a"),
        "regress": lambda: model.score(["a"]),
        "qa": lambda: model.answer("a", "b"),
        "ner": lambda: model.entities("a"),
    }
    for name, ask in asked.items():
        with pytest.raises(FolderError, match=message.format(name)):
            ask()
    with pytest.raises(FolderError, match="has no decoder, .* `unmask translate train`"):
        model.translate("a")


def test_a_model_without_scores_has_none(model):
    assert model.scores == {}
