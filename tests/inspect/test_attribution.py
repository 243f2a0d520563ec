"""Inspection: gradients, ablated heads and head statistics agree with what the model computes."""

import json

import numpy as np
import pytest
import torch

import unmask
from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import save_folder
from unmask.inspect.attribution import (
    PATTERNS,
    HeadStatistic,
    answer,
    gradient_times_input,
    head_statistics,
)
from unmask.inspect.html import WINDOW, payload, self_contained
from unmask.model.attention import ablating, listening
from unmask.model.encoder import Encoder
from unmask.system.errors import SettingsError

HEADS = {
    "encoder": bert_heads(),
    "masked tokens": bert_heads(tokens=True),
    "labels": bert_heads(labels="text", label_names=("bad", "good", "so")),
    "several labels": bert_heads(
        labels="text", label_names=("bad", "good"), label_answer="several"
    ),
    "number": bert_heads(labels="text", label_names=("score",), label_answer="number"),
    "names": bert_heads(pooler=False, labels="token", label_names=("O", "B-PER", "I-PER")),
    "answers": bert_heads(pooler=False, labels="span", label_names=("start", "end")),
    "layers": bert_heads(labels="text", label_names=("bad", "good"), layers=(1, 2)),
}
TEXT = "the cat [MASK] on the mat"


@pytest.fixture(scope="module", params=HEADS)
def model(request, tmp_path_factory, tokenizer):
    place = tmp_path_factory.mktemp("look") / "model"
    save_folder(place, tiny_network(HEADS[request.param]), tokenizer)
    return unmask.load(place)


def test_the_answer_is_what_the_model_says(model):
    said = answer(model, TEXT)
    assert len(said.names) == len(said.values) == len(said.without)
    assert said.without == said.values, "nothing is mute"
    labels = model.network.shape.labels
    if "tokens" in model.network.heads:
        (guesses,) = model.fill(TEXT)
        assert said.names == [guess.token for guess in guesses]
        np.testing.assert_allclose(said.values, [g.probability for g in guesses], atol=1e-6)
    elif labels and labels.on == "text" and labels.answer == "number":
        assert said.values == pytest.approx(model.score([TEXT]), abs=1e-5)
    elif labels and labels.on == "text":
        (found,) = model.classify([TEXT])
        truth = [found.probabilities[name] for name in said.names]
        np.testing.assert_allclose(said.values, truth, atol=1e-5)
    elif labels is None:
        assert said.values == pytest.approx([1.0])


def test_a_mute_head_changes_the_answer_as_silencing_it_by_hand_does(model):
    said = answer(model, TEXT, mute={1: [0]})
    assert said.without != said.values
    labels = model.network.shape.labels
    if labels and labels.on == "text" and labels.mix == "last":
        with listening(model.network, ablating({1: [0]})):
            again = answer(model, TEXT)
        np.testing.assert_allclose(said.without, again.values, atol=1e-6)


def test_gradient_times_input_is_the_slope_towards_the_token(model):
    """Shrink one token's embedding a little: the score moves by that share of its importance."""
    from unmask.inspect.attribution import AttributedText

    importance = gradient_times_input(model, TEXT)
    assert all(weight.grad is None for weight in model.network.parameters())
    row = AttributedText(model, TEXT, None)
    asked, embedded = row.asked, row.embedded()
    with torch.no_grad():
        for place in (0, 2, len(importance) - 1):
            sides = []
            for scale in (1.01, 0.99):
                changed = embedded.clone()
                changed[0, place] *= scale
                sides.append(float(asked.score(row.trace(changed))))
            slope = (sides[0] - sides[1]) / 0.02
            assert slope == pytest.approx(importance[place], rel=0.05, abs=2e-3)


def test_integrated_gradients_sum_to_what_the_words_change(model):
    pytest.importorskip("captum")
    from unmask.inspect.attribution import AttributedText, integrated_gradients

    row = AttributedText(model, TEXT, None)
    asked = row.asked
    with torch.no_grad():
        full, empty = (
            float(asked.score(row.trace(row.embedded(baseline=blank)))) for blank in (False, True)
        )
    found = integrated_gradients(model, TEXT)
    assert found.sum() == pytest.approx(full - empty, rel=0.05, abs=5e-3)
    assert found[0] == pytest.approx(0.0, abs=1e-6), "[CLS] is the same in both"


def test_habits_are_shares_of_all_attention(model):
    found = head_statistics(model, ["the cat sat on the mat", "a dog", ""])
    config = model.network.config
    assert [(h.layer, h.head) for h in found] == [
        (layer, head) for layer in range(config.layers) for head in range(config.heads)
    ]
    for habit in found:
        assert tuple(habit.shares) == PATTERNS
        assert all(0.0 <= share <= 1.0 for share in habit.shares.values())
        assert 0.0 <= habit.entropy <= habit.even


def test_a_head_is_named_after_what_it_does():
    def habit(entropy=1.0, **shares):
        return HeadStatistic(0, 0, {**dict.fromkeys(PATTERNS, 0.0), **shares}, entropy, 3.0).name

    assert habit(previous=0.7) == "previous"
    assert habit(separators=0.5, previous=0.3) == "separators"
    assert habit(2.9, previous=0.1) == "everywhere"
    assert habit(1.5, previous=0.1) == "mixed"


def test_habits_by_hand(tokenizer, tmp_path):
    """A network whose heads look evenly: of four tokens, three have one before them."""
    network = tiny_network()
    for block in network.encoder.blocks:
        torch.nn.init.zeros_(block.attention.qkv.weight)
        torch.nn.init.zeros_(block.attention.qkv.bias)
    save_folder(tmp_path / "even", network, tokenizer)
    even = head_statistics(unmask.load(tmp_path / "even"), ["the cat"])[0]
    assert even.shares == pytest.approx(
        {"previous": 3 / 16, "next": 3 / 16, "itself": 1 / 4, "same word": 0, "separators": 1 / 2}
    )
    assert even.entropy == pytest.approx(2.0)
    assert even.even == pytest.approx(2.0)


def test_the_page_carries_the_very_weights(model):
    data = payload(model, TEXT, "a dog", each_head=True)
    import base64

    weights = np.frombuffer(base64.b64decode(data["weights"]), "<f4")
    truth = model.attention(TEXT, "a dog")
    np.testing.assert_array_equal(weights, truth.weights.ravel())
    assert data["tokens"] == truth.tokens
    assert np.array(data["muted"]).shape[:2] == (data["layers"], data["heads"])
    html = self_contained([data], "<title> & more")
    assert "<title> & more" not in html
    assert "import " not in html.split('<script type="module">')[1]
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    inside = html.split('id="data">')[1].split("</script>")[0]
    assert json.loads(inside)[0]["tokens"] == truth.tokens


def test_the_page_needs_one_pass_and_one_for_each_head(model, monkeypatch):
    passes, run = [], Encoder.run

    def counting(self, *given, **how):
        passes.append(self)
        return run(self, *given, **how)

    monkeypatch.setattr(Encoder, "run", counting)
    config = model.network.config
    payload(model, TEXT, "a dog", each_head=True)
    assert len(passes) == 1 + config.layers * config.heads
    passes.clear()
    payload(model, TEXT)
    assert len(passes) == 1


def test_a_text_that_is_cut_is_counted_once(model):
    before = model.cut_texts
    payload(model, "the cat " * 400)
    assert model.cut_texts == before + 1


def test_a_long_text_is_shown_in_a_window(model):
    long = "the cat sat " * 30
    limit = model.network.config.max_length
    assert limit < WINDOW or payload(model, long)["window"]
    with pytest.raises(SettingsError, match="need 0 to"):
        payload(model, TEXT, start=500)


def test_the_rollout_of_a_window_is_that_of_the_whole_text(model, monkeypatch):
    from unmask.inspect import html

    whole = model.attention(TEXT).rollout()[0]
    monkeypatch.setattr(html, "WINDOW", 3)
    shown = payload(model, TEXT, start=2)["importance"]["rollout to [CLS]"]
    np.testing.assert_allclose(shown, whole[2:5], atol=1e-7)


def test_a_head_that_is_not_there_is_refused(model):
    with pytest.raises(SettingsError, match="layer 9, heads \\[0\\]: the model has layers 0 to 1"):
        answer(model, TEXT, mute={9: [0]})
