"""Every route says what Python says, and refuses what it cannot answer in one clear line."""

import base64
from dataclasses import asdict

import numpy as np
import pytest

from tests.conftest import tiny_network
from tests.server.conftest import HEADS, running
from unmask.checkpoint.folder import save_folder
from unmask.infer.model import Model
from unmask.model.config import SearchSettings
from unmask.tasks.ner import NerSettings

TEXTS = ["the cat sat on the mat", "a dog", ""]


def ask(client, path, **body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_openai_embeddings_are_those_of_python_as_floats_and_as_base64(client, served):
    truth = served["pretrained"].embed(TEXTS)
    floats = ask(client, "/v1/embeddings", input=TEXTS, model="pretrained")
    found = [row["embedding"] for row in floats["data"]]
    np.testing.assert_allclose(found, truth, atol=1e-6)
    assert [row["index"] for row in floats["data"]] == [0, 1, 2]
    assert floats["usage"] == {"prompt_tokens": 14, "total_tokens": 14}
    coded = ask(client, "/v1/embeddings", input=TEXTS, encoding_format="base64")
    vectors = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in coded["data"]]
    np.testing.assert_array_equal(np.stack(vectors), np.array(found, np.float32))


def test_no_text_is_the_context_of_another_one(tmp_path, tokenizer):
    """Sentences of a document see each other, and texts of clients are documents of their own."""
    task = {"name": "ner", **NerSettings(context=8).model_dump()}
    save_folder(tmp_path / "names", tiny_network(HEADS["names"]), tokenizer, task=task)
    model = Model.load(tmp_path / "names")
    texts = ["the cat sat on the mat", "a dog", "the mat"]
    alone = [model.entities(text).tags for text in texts]
    with running({"names": model}) as server, server.client() as client:
        found = [tuple(names["tags"]) for names in ask(client, "/entities", texts=texts)]
    assert found == alone


def test_models_are_listed(client):
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert names == ["pretrained", "sentiment", "nearness", "names", "answers", "translator"]
    assert client.get("/v1/models/names").json()["id"] == "names"
    assert client.get("/v1/models/other").status_code == 404
    info = client.get("/info").json()
    assert info["model_id"] == "pretrained"
    assert info["models"][0]["can"] == ["embed", "tokenize", "fill", "next", "attention"]


def test_embed_and_similarity(client, served):
    truth = served["pretrained"].embed(TEXTS)
    np.testing.assert_allclose(ask(client, "/embed", inputs=TEXTS), truth, atol=1e-6)
    plain = served["pretrained"].embed(TEXTS[:1], normalize=False)
    found = ask(client, "/embed", inputs=TEXTS[0], normalize=False)
    np.testing.assert_allclose(found, plain, atol=1e-5)
    near = ask(client, "/similarity", inputs={"source_sentence": TEXTS[0], "sentences": TEXTS[:2]})
    np.testing.assert_allclose(near, truth[:2] @ truth[0], atol=1e-6)


def test_predict_in_each_way_of_writing_it(client, served):
    pairs = [TEXTS[0], (TEXTS[0], TEXTS[1])]
    one, two = served["sentiment"].classify(pairs)

    def shares(answer):
        ordered = sorted(answer.probabilities.items(), key=lambda pair: -pair[1])
        return [{"label": a, "score": pytest.approx(b, abs=1e-6)} for a, b in ordered]

    assert ask(client, "/predict", inputs=TEXTS[0]) == shares(one)
    assert ask(client, "/predict", inputs=TEXTS[:1]) == shares(one)
    assert ask(client, "/predict", inputs=TEXTS[:2]) == shares(two)
    batch = ask(client, "/predict", inputs=[[TEXTS[0]], TEXTS[:2]])
    assert batch == [shares(one), shares(two)]


def test_tokens_stand_where_they_say(client):
    (tokens,) = ask(client, "/tokenize", inputs=TEXTS[0])
    assert tokens[0] == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
    inside = [token for token in tokens if not token["special"]]
    assert "".join(TEXTS[0][t["start"] : t["stop"]] for t in inside) == TEXTS[0].replace(" ", "")
    (bare,) = ask(client, "/tokenize", inputs=TEXTS[0], add_special_tokens=False)
    assert bare == inside


def test_our_verbs_say_what_python_says(client, served):
    text = "the cat [MASK] on the [MASK]"
    found = ask(client, "/fill", text=text, top=3)
    truth = served["pretrained"].fill(text, top=3)
    assert [[guess["token"] for guess in own] for own in found] == [
        [guess.token for guess in own] for own in truth
    ]
    said = ask(client, "/next", first="the cat", second="sat")
    assert said["probability"] == pytest.approx(
        served["pretrained"].next("the cat", "sat"), abs=1e-6
    )
    (labels,) = ask(client, "/classify", texts=[TEXTS[0]])
    assert labels["labels"] == list(served["sentiment"].classify(TEXTS[:1])[0].labels)
    (number,) = ask(client, "/score", texts=[["the cat", "a dog"]])
    assert number == pytest.approx(served["nearness"].score([("the cat", "a dog")])[0], abs=1e-5)
    answer = ask(client, "/answer", question="the cat", context="a dog sat on the mat")
    truth = asdict(served["answers"].answer("the cat", "a dog sat on the mat"))
    assert (answer["text"], answer["start"], answer["end"]) == (
        truth["text"],
        truth["start"],
        truth["end"],
    )
    (names,) = ask(client, "/entities", texts=[TEXTS[0]])
    assert tuple(names["tags"]) == served["names"].entities(TEXTS[0]).tags


def test_attention_is_the_very_tensor(client, served):
    data = ask(client, "/attention", text="the cat", second="a dog", mute={"1": [0]})
    truth = served["pretrained"].attention("the cat", "a dog")
    weights = np.frombuffer(base64.b64decode(data["weights"]), "<f4")
    np.testing.assert_array_equal(weights, truth.weights.ravel())
    assert data["answer"]["without"] != data["answer"]["values"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/embed", {"inputs": ["a"] * 33}, 422, "33 texts; at most 32"),
        ("/embed", {"inputs": "cat " * 400}, 413, "the model reads at most"),
        ("/embed", {"inputs": "cat " * 50_000, "truncate": True}, 413, "about 66,668 tokens"),
        ("/embed", {"inputs": 3}, 422, "inputs"),
        (
            "/embed",
            {"inputs": "a", "model": "other"},
            404,
            "not served here. Available models: pre",
        ),
        ("/fill", {"text": "no mask"}, 422, "[MASK]"),
        ("/fill", {"text": "[MASK]", "tops": 3}, 422, "tops"),
        ("/fill", {"text": "[MASK]", "top": 10**30}, 422, "top"),
        ("/fill", {"text": "[MASK]", "model": "names"}, 422, "does not support 'fill'; need a"),
        ("/fill", {"text": "[MASK] " + "cat " * 400}, 413, "truncate: true"),
        ("/next", {"first": "cat " * 400, "second": "a"}, 413, "truncate: true"),
        ("/classify", {"texts": ["a", "cat " * 400]}, 413, "text 2 has 402 tokens"),
        ("/attention", {"text": "cat " * 400}, 413, "the model reads at most"),
        ("/answer", {"question": "a", "context": "中" * 40_000}, 413, "about 40,002 tokens"),
        ("/predict", {"inputs": ["a", "b", "c"]}, 422, "need [text] or [text, second]"),
        ("/classify", {"texts": [" "], "model": "sentiment"}, 200, ""),
        ("/attention", {"text": "the cat", "mute": {"7": [0]}}, 422, "layers 0 to 1"),
        ("/attention", {"text": "the cat", "start": 400}, 422, "need 0 to 3"),
        ("/v1/embeddings", {"input": []}, 422, "input is empty"),
        ("/v1/embeddings", {"input": "a", "dimensions": 7}, 422, "dimensions is 7; the model's"),
        ("/nowhere", {}, 404, "/nowhere: no such route"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(client, path, body, status, said):
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    if status == 200:
        return
    problem = response.json()["error"]
    message = problem["message"] if path.startswith("/v1/") else problem
    assert said in message
    assert "Traceback" not in message
    assert response.headers["x-request-id"]


def test_half_a_character_in_a_name_is_no_error_of_the_server(client):
    body = b'{"inputs": "a", "model": "\\ud800"}'
    response = client.post("/embed", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 404


def test_a_mistake_of_ours_is_json_without_details(served, monkeypatch):
    model = served["pretrained"]

    class Panic(BaseException):
        pass

    def broken(*arguments, **options):
        raise Panic("/secret/path")

    with running({"one": model}) as found, found.client() as client:
        monkeypatch.setattr(model, "vectors", broken)
        response = client.post("/embed", json={"inputs": "a"})
        assert response.status_code == 500
        assert response.json()["error_type"] == "internal"
        assert "secret" not in response.text
        monkeypatch.undo()
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200, "it lives on"


def test_half_a_character_is_no_error(client):
    body = b'{"inputs": "a \\ud83d cat", "truncate": true}'
    headers = {"content-type": "application/json"}
    assert client.post("/embed", content=body, headers=headers).status_code == 200
    assert client.post("/tokenize", content=body, headers=headers).status_code == 200


def test_metrics_count_requests_by_route(client):
    before = client.get("/metrics").text
    ask(client, "/embed", inputs="a")
    after = client.get("/metrics").text

    def count(text):
        lines = [
            x for x in text.splitlines() if x.startswith('unmask_requests_total{route="/embed"')
        ]
        return sum(float(line.split()[-1]) for line in lines)

    assert count(after) == count(before) + 1
    assert "unmask_waiting_texts 0.0" in after


def test_the_page_and_its_files_come_with_a_policy_that_allows_nothing_else(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    for name in ("app.js", "maps.js", "style.css"):
        assert client.get(f"/page/{name}").status_code == 200
    assert client.get("/page/..%2Fapp.py").status_code == 404
    assert client.get("/docs").status_code == 200


def test_translations_are_those_of_python_with_where_their_words_looked(client, served):
    texts = ["the cat sat", "", "a dog"]
    found = ask(client, "/translate", texts=texts, beams=2, alignment=True)
    speaker = served["translator"].translator
    truth = list(speaker.translate(texts, SearchSettings(beam_size=2), alignment=True))
    assert [own["text"] for own in found] == [own.text for own in truth]
    assert [own["score"] for own in found] == pytest.approx([own.score for own in truth], abs=1e-5)
    assert found[1]["alignment"] is None
    looked = truth[0].alignment
    assert found[0]["alignment"]["source"] == looked.source
    np.testing.assert_allclose(found[0]["alignment"]["weights"], looked.weights, atol=1e-5)
    assert ask(client, "/translate", texts=["a dog"])[0]["alignment"] is None


def test_a_model_that_says_nothing_cannot_translate(client):
    response = client.post("/translate", json={"texts": ["a"], "model": "names"})
    assert response.status_code == 422
    assert "does not support 'translate'; need a model fine-tuned for translate" in response.text


def test_the_curves_of_a_run_end_with_the_last_whole_line(served, tmp_path):
    """A run that is being written may end in the middle of a character."""
    line = '{"kind": "train", "step": 1, "text": "a\u2028b"}\n'.encode()
    (tmp_path / "metrics.jsonl").write_bytes(line + '{"kind": "eval", "text": "é'.encode()[:-1])
    models = {"one": served["pretrained"]}
    with running(models, runs={"run": tmp_path}) as found, found.client() as client:
        assert [entry["step"] for entry in client.get("/runs/run").json()] == [1]


def test_a_width_that_the_model_does_not_have_is_refused_before_anything_is_computed(
    client, served, monkeypatch
):
    computed = []
    vectors = Model.vectors

    def noting(self, *given):
        computed.append(self)
        return vectors(self, *given)

    monkeypatch.setattr(Model, "vectors", noting)
    body = {"input": "a", "model": "pretrained"}
    assert client.post("/v1/embeddings", json=body | {"dimensions": 7}).status_code == 422
    assert not computed
    assert client.post("/v1/embeddings", json=body | {"dimensions": 16}).status_code == 200
    assert computed == [served["pretrained"]], "the server computes vectors in another way"
