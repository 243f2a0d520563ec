"""The routes of tasks: what the library answers, described by each task's own questions."""

import json

import httpx
import pytest

from tests.server.conftest import running
from unmask.server.limits import Limits
from unmask.server.service import estimated_tokens
from unmask.system.errors import DataError
from unmask.tasks.asks import Ask, AskText
from unmask.tasks.growing import GrowingAnswers
from unmask.tasks.views import LabelsView, NumberView, SpansView, TextView

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def client(server):
    with server.client() as found:
        yield found


def asked(client, task: str, *items: dict, **more) -> list[dict]:
    response = client.post(f"/ask/{task}", json={"items": list(items), **more})
    assert response.status_code == 200, response.text
    return response.json()


def test_labels_are_those_of_the_library_with_a_view(client, served):
    first, second = asked(client, "classify", {"text": TEXT}, {"text": "a dog", "second": TEXT})
    truth = served["sentiment"].classify([TEXT, ("a dog", TEXT)])
    for found, expected in zip((first, second), truth, strict=True):
        assert tuple(found["answer"]["labels"]) == expected.labels
        assert found["answer"]["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
        view = LabelsView.model_validate(found["view"])
        assert view.chosen == list(expected.labels)


def test_every_task_has_a_view_of_its_kind(client, served):
    (number,) = asked(client, "regress", {"text": TEXT})
    assert NumberView.model_validate(number["view"]).value == number["answer"]["score"]
    (names,) = asked(client, "ner", {"text": TEXT})
    assert SpansView.model_validate(names["view"]).text == TEXT
    (answer,) = asked(client, "qa", {"question": "the cat", "context": TEXT})
    span = SpansView.model_validate(answer["view"]).spans
    assert [TEXT[own.start : own.end] for own in span] == [answer["answer"]["text"]] * len(span)
    (said,) = asked(client, "translate", {"text": TEXT})
    assert TextView.model_validate(said["view"]).text == said["answer"]["text"]


def test_questions_with_other_options_are_answered_apart_and_in_their_order(client, served):
    items = [{"text": TEXT, "beams": beams} for beams in (1, 4, 1)]
    greedy, beams, again = asked(client, "translate", *items)
    assert (
        greedy["answer"]["text"]
        == again["answer"]["text"]
        == served["translator"].translate([TEXT])[0]
    )
    assert beams["answer"]["text"] == served["translator"].translate([TEXT], beam_size=4)[0]


@pytest.mark.parametrize("beams", [8, 9, 64])
def test_the_limit_of_beams_is_the_same_on_every_route(client, beams):
    bodies = {
        "/translate": {"texts": [TEXT], "beams": beams},
        "/ask/translate": {"items": [{"text": "a"}, {"text": TEXT, "beams": beams}]},
    }
    answers = [client.post(path, json=body) for path, body in bodies.items()]
    body = {"items": [{"text": TEXT, "beams": beams}], "stream": True}
    answers.append(client.post("/ask/translate", json=body))
    assert [answer.status_code for answer in answers] == [200 if beams == 8 else 422] * 3
    if beams > 8:
        said = f"beams is {beams}; this server allows at most 8. Lower it."
        assert [answer.json()["error"] for answer in answers] == [said] * 3


def test_the_limit_of_beams_is_the_servers(served):
    with running(served, limits=Limits(options={"beams": 2})) as found, found.client() as client:
        body = {"texts": [TEXT], "beams": 3}
        assert client.post("/translate", json=body).status_code == 422
        (task,) = [
            own["task"] for own in client.get("/cards").json() if own["name"] == "translator"
        ]
        assert task["ask"]["properties"]["beams"]["maximum"] == 2


class AskChosen(AskText):
    """A question with an option that cannot be hashed."""

    wanted: list[str] = []

    options = frozenset({"wanted"})


def test_an_option_may_be_a_list(served, monkeypatch):
    monkeypatch.setattr(type(served["sentiment"].task), "Ask", AskChosen)
    items = [{"text": TEXT, "wanted": wanted} for wanted in (["a"], ["b"], ["a"], [])]
    with running(served) as found, found.client() as client:
        answers = asked(client, "classify", *items)
    (truth,) = served["sentiment"].classify([TEXT])
    assert [tuple(own["answer"]["labels"]) for own in answers] == [truth.labels] * 4


def test_alignments_are_in_the_view_and_in_the_answer(client, served):
    items = {"text": TEXT, "alignment": True}, {"text": TEXT}
    found, plain = asked(client, "translate", *items)
    (truth,) = served["translator"].translator.translate([TEXT], alignment=True)
    view = TextView.model_validate(found["view"])
    assert view.alignment.target == truth.alignment.target
    assert view.score == pytest.approx(truth.score, abs=1e-5)
    assert found["answer"]["alignment"] == found["view"]["alignment"]
    assert plain["view"]["alignment"] is None


def test_what_goes_wrong_in_a_stream_is_its_last_event(server, monkeypatch):
    def step(self):
        raise DataError("the text is too odd.")

    monkeypatch.setattr(GrowingAnswers, "step", step)
    body = {"items": [{"text": TEXT}], "stream": True}
    with server.client() as client:
        response = client.post("/ask/translate", json=body)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line]
    assert events == [{"error": "the text is too odd.", "error_type": "validation"}]


def test_a_stream_ends_with_the_whole_answer(server, served):
    body = {"items": [{"text": TEXT}], "stream": True}
    with httpx.stream("POST", f"{server.url}/ask/translate", json=body, timeout=60) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line]
    *views, last = events
    assert last == {"done": True}
    assert views[-1]["text"] == served["translator"].translate([TEXT])[0]
    assert len({view["text"] for view in views}) == len(views) or views[0]["text"] == ""


def test_a_text_that_is_too_long_is_refused_unless_it_may_be_cut(client):
    long = {"text": "cat " * 200}
    refused = client.post("/ask/classify", json={"items": [{"text": "a"}, long]})
    assert refused.status_code == 413
    assert "text 2 has 202 tokens" in refused.json()["error"]
    assert len(asked(client, "classify", long, truncate=True)) == 1


@pytest.mark.parametrize(
    ("task", "body", "status"),
    [
        ("classify", {"items": [{"text": 7}]}, 422),
        ("classify", {"items": [{"text": "a", "thrid": "b"}]}, 422),
        ("classify", {"items": [{"text": "a"}], "stream": True}, 422),
        ("translate", {"items": [{"text": "a", "beams": 0}]}, 422),
        ("qa", {"items": [{"question": "a"}]}, 422),
        ("poems", {"items": [{"text": "a"}]}, 404),
        ("classify", {"items": [{"text": "a"}], "model": "names"}, 422),
        ("classify", {"items": [{"text": "a"}] * 33}, 422),
    ],
)
def test_what_cannot_be_asked_is_refused(client, task, body, status):
    response = client.post(f"/ask/{task}", json=body)
    assert response.status_code == status
    assert response.json()["error"]


def test_no_question_has_no_answer(client):
    assert asked(client, "classify") == []


def test_cards_have_the_schema_that_the_page_makes_its_form_of(client):
    cards = {card["name"]: card["task"] for card in client.get("/cards").json()}
    assert cards["pretrained"] is None
    assert cards["sentiment"]["title"] == "Classify"
    assert cards["answers"]["ask"]["required"] == ["question", "context"]
    assert cards["answers"]["ask"]["properties"]["context"]["title"] == "Passage"
    assert [name for name, task in cards.items() if task and task["generates"]] == ["translator"]


def test_texts_in_a_list_of_a_question_count():
    class Rank(Ask):
        query: str
        candidates: list[str]

    one, three = (Rank(query="cats", candidates=[TEXT] * count) for count in (1, 3))
    assert estimated_tokens([three]) - estimated_tokens([one]) == 2 * int(len(TEXT) / 3)
