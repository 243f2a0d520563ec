"""The routes of tasks: what the library answers, described by each task's own questions."""

import json

import httpx
import pytest

from unmask.serve.work import guessed_tokens
from unmask.tasks.asks import Ask
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
    assert beams["answer"]["text"] == served["translator"].translate([TEXT], beams=4)[0]


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
    assert "text 2: 202 tokens" in refused.json()["error"]
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
    assert guessed_tokens([three]) - guessed_tokens([one]) == 2 * int(len(TEXT) / 3)
