"""Every text of a request is tokenised once, whatever the route makes of it."""

from collections import Counter
from collections.abc import Callable

import pytest

from unmask.text.tokenizer import Tokenizer

TEXT, SECOND = "the cat sat on a mat", "dog"  # no word twice: some tasks tokenise words
BODIES = {
    "/": {"inputs": TEXT},
    "/v1/embeddings": {"input": [TEXT, SECOND]},
    "/embed": {"inputs": [TEXT, SECOND]},
    "/similarity": {"inputs": {"source_sentence": TEXT, "sentences": [SECOND]}},
    "/tokenize": {"inputs": [TEXT, SECOND]},
    "/predict": {"inputs": [[TEXT, SECOND]]},
    "/fill": {"text": f"{TEXT} [MASK]"},
    "/next": {"first": TEXT, "second": SECOND},
    "/classify": {"texts": [[TEXT, SECOND]]},
    "/score": {"texts": [TEXT, SECOND]},
    "/answer": {"question": SECOND, "context": TEXT},
    "/entities": {"texts": [TEXT, SECOND]},
    "/translate": {"texts": [TEXT, SECOND], "alignment": True, "beams": 2},
    "/attention": {"text": TEXT, "second": SECOND, "mute": {"1": [0]}},
    "/ask/classify": {"items": [{"text": TEXT, "second": SECOND}]},
    "/ask/regress": {"items": [{"text": TEXT}]},
    "/ask/ner": {"items": [{"text": TEXT}]},
    "/ask/qa": {"items": [{"question": SECOND, "context": TEXT}]},
    "/ask/translate": {"items": [{"text": TEXT, "alignment": True}]},
}


@pytest.fixture
def tokenised(monkeypatch) -> Counter[str]:
    """How often each text is given to the engine; an empty one is no work."""
    found: Counter[str] = Counter()

    def counting(plain: Callable) -> Callable:
        def count(self: Tokenizer, texts):
            texts = list(texts)
            found.update(text for text in texts if text)
            return plain(self, texts)

        return count

    for name in ("tokenize", "ids"):  # all others go through these
        monkeypatch.setattr(Tokenizer, name, counting(getattr(Tokenizer, name)))
    return found


def test_every_route_that_asks_a_model_is_counted(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {path for path, methods in paths.items() if "post" in methods} == set(BODIES)


@pytest.mark.parametrize("path", BODIES)
def test_a_text_is_tokenised_once(client, tokenised, path):
    response = client.post(path, json=BODIES[path])
    assert response.status_code == 200, response.text
    assert tokenised
    assert set(tokenised.values()) == {1}


def test_a_streamed_text_is_tokenised_once(client, tokenised):
    body = BODIES["/ask/translate"] | {"stream": True}
    assert client.post("/ask/translate", json=body).status_code == 200
    assert tokenised == {TEXT: 1}
