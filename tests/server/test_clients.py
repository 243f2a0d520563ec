"""Other people's clients, unchanged."""

import importlib

import numpy as np
import pytest

from tests.server.conftest import running


def test_openai(server, served):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    texts = ["the cat sat", "a dog"]
    answer = client.embeddings.create(model="pretrained", input=texts)
    found = np.array([row.embedding for row in answer.data])
    np.testing.assert_allclose(found, served["pretrained"].embed(texts), atol=1e-6)
    assert answer.usage.total_tokens == 9
    floats = client.embeddings.create(model="pretrained", input="a dog", encoding_format="float")
    np.testing.assert_allclose(floats.data[0].embedding, found[1], atol=1e-6)
    assert "sentiment" in [model.id for model in client.models.list()]
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.embeddings.create(model="other", input="a")


def test_hugging_face(server, served, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # of the hub; this is our own
    client = hub.InferenceClient(model=server.url)
    found = client.feature_extraction("the cat sat")
    np.testing.assert_allclose(found, served["pretrained"].embed(["the cat sat"]), atol=1e-6)
    near = hub.InferenceClient(model=f"{server.url}/similarity").sentence_similarity(
        "the cat", other_sentences=["a dog", "the cat"]
    )
    assert near[1] == pytest.approx(1.0, abs=1e-5)
    with running({"sentiment": served["sentiment"]}) as other:
        labels = hub.InferenceClient(model=other.url).text_classification("the cat sat")
    truth = served["sentiment"].classify(["the cat sat"])[0]
    assert labels[0].label == truth.label
    assert labels[0].score == pytest.approx(truth.probabilities[truth.label], abs=1e-6)
