"""Real weights: hidden states and pooled vectors equal transformers', packed or alone."""

import random

import numpy as np
import pytest
import torch

from unmask.data import packing
from unmask.data.batch import collate
from unmask.data.packing import pack
from unmask.infer.model import Model

transformers = pytest.importorskip("transformers")

ENGLISH = (
    "The river had risen in the night and by morning the bridge was gone. Nobody had slept, and "
    "the miller counted his sacks again, as if there might be more; it's 1893, he said, not 1066!"
).split()
CHINESE = (
    "天下大势，分久必合，合久必分。周末七国分争，并入于秦。及秦灭之后，楚、汉分争，又并入于汉。"
)
EMOJI = "👩‍👩‍👧 🎉🇫🇷 ☕️ naïve café Ⅷ ﬁne"


def mixed_texts(count=300):
    """English, Chinese, emoji, empty ones, and some far longer than the model holds."""
    rng = random.Random(0)
    texts = ["", " ", "[MASK]", EMOJI, CHINESE, " ".join(ENGLISH * 20), CHINESE * 15]
    while len(texts) < count:
        kind, length = rng.random(), rng.choice([1, 3, 8, 20, 60, 150])
        if kind < 0.6:
            texts.append(" ".join(rng.choices(ENGLISH, k=length)))
        elif kind < 0.85:
            texts.append("".join(rng.choices(CHINESE, k=length)))
        else:
            texts.append(" ".join(rng.choices(EMOJI.split(), k=min(length, 20))))
    return texts


@pytest.fixture(autouse=True)
def one_thread():
    """Not here: real weights take all cores, and no figure below depends on the last digit."""


@pytest.fixture(scope="module")
def model(minilm):
    return Model.load(minilm)


@pytest.fixture(scope="module")
def examples(model):
    return list(model.tokenizer.encode_many(([t] for t in mixed_texts()), limit=512))


@torch.inference_mode()
def hidden_of(model, examples, rows):
    """The hidden states [S, D] and the pooled vector of each text."""
    network = model.network
    found = [None] * len(examples)
    for row in rows:
        batch = collate([examples[i] for i in row], [list(range(len(row)))], pad_id=0)
        hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
        pooled = network.pool(hidden[batch.row, batch.start])
        for i, start, length, vector in zip(row, batch.start, batch.length, pooled, strict=True):
            found[i] = (hidden[0, start : start + length], vector)
    return found


@pytest.fixture(scope="module")
def alone(model, examples):
    return hidden_of(model, examples, [[i] for i in range(len(examples))])


@pytest.fixture(scope="module")
def packed(model, examples):
    return hidden_of(model, examples, pack([len(example) for example in examples], 512))


@pytest.mark.slow
def test_hidden_states_and_pooled_vectors_equal_transformers(minilm, examples, alone, packed):
    theirs = transformers.BertModel.from_pretrained(minilm).eval()
    worst = {"alone": 0.0, "packed": 0.0}
    for example, *ours in zip(examples, alone, packed, strict=True):
        with torch.inference_mode():
            answer = theirs(
                torch.tensor([example.ids]), token_type_ids=torch.tensor([example.segments])
            )
        for how, (hidden, pooled) in zip(worst, ours, strict=True):
            states = (hidden - answer.last_hidden_state[0]).abs().max().item()
            vector = (pooled - answer.pooler_output[0]).abs().max().item()
            worst[how] = max(worst[how], states, vector)
    print(f"largest difference from transformers: {worst}")
    assert max(worst.values()) < 1e-5
    assert {len(example) for example in examples} >= {2, 3, 512}


@pytest.mark.slow
def test_who_shares_a_row_changes_nothing(alone, packed):
    states = vectors = 0.0
    for (hidden, pooled), (other, vector) in zip(alone, packed, strict=True):
        scale = hidden.abs().max()  # states reach 6.5, where the last digit of fp32 is 5e-7
        states = max(states, ((hidden - other).abs().max() / scale).item())
        vectors = max(vectors, (pooled - vector).abs().max().item())
    print(f"largest difference by row mates: states {states:.2e}, pooled vectors {vectors:.2e}")
    assert states < 1e-6
    assert vectors < 1e-6


@pytest.mark.slow
def test_embeddings_do_not_depend_on_company_order_or_rows(model, monkeypatch):
    texts = mixed_texts(120)
    together = model.embed(texts)
    for row in (16, 512):  # hardly any text shares a row; most of them do
        with monkeypatch.context() as changed:
            changed.setattr(packing, "ROW_TOKENS", row)
            assert np.abs(together - model.embed(texts)).max() < 1e-6
    backwards = model.embed(texts[::-1])[::-1]
    alone = np.concatenate([model.embed([text]) for text in texts])
    assert np.abs(together - alone).max() < 1e-6
    assert np.abs(together - backwards).max() < 1e-6
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


def test_attention_weights_equal_those_of_transformers(model, minilm):
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    attention = model.attention("The bridge was gone.", "Nobody had slept.")
    example = model.tokenizer.encode("The bridge was gone.", "Nobody had slept.")
    with torch.inference_mode():
        answer = theirs(
            torch.tensor([example.ids]),
            token_type_ids=torch.tensor([example.segments]),
            output_attentions=True,
        )
    expected = torch.stack([layer[0] for layer in answer.attentions]).numpy()
    assert attention.tokens[0] == "[CLS]"
    assert np.abs(attention.weights - expected).max() < 1e-5
