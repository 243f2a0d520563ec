"""A user's own tasks: trained, asked on the command line, over HTTP and on the page."""

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.browser import browser, page_of, wait_for_texts
from tests.extension.conftest import command, environment, plugin, settings

ANIMALS = {"cat", "dog", "bird"}
COLOURS = {"red", "big", "old", "quiet"}
STARTS = 60  # seconds that a server may take


def write_topics(path: Path, count: int) -> None:
    """Texts with a topic, and the words about it."""
    rows = []
    for i in range(count):
        words = ["the", sorted(COLOURS)[i // 2 % 4], sorted(ANIMALS)[i // 8 % 3], "sleeps", "."]
        topic, known = (("animal", ANIMALS), ("colour", COLOURS))[i % 2]
        row = {"text": " ".join(words), "topic": topic, "words": [w for w in words if w in known]}
        rows.append(json.dumps(row) + "\n")
    path.write_text("".join(rows))


@pytest.fixture(scope="module")
def trained(world) -> Path:
    """A model of each task."""
    write_topics(world / "topics.train.jsonl", 64)
    write_topics(world / "topics.dev.jsonl", 12)
    words, draw = sorted(ANIMALS | COLOURS), random.Random(0)
    lines = [" ".join(draw.choices(words, k=draw.randint(1, 4))) + "\n" for _ in range(120)]
    (world / "words.train.txt").write_text("".join(lines))
    (world / "words.dev.txt").write_text("".join(lines[::10]))
    small = settings("optimizer.learning_rate=5e-3", "loop.precision=fp32", "evaluate.times=2")
    for task, files, epochs in (("highlight", "topics", 20), ("spell", "words", 40)):
        ending = "jsonl" if files == "topics" else "txt"
        data = ["--train", f"{files}.train.{ending}", "--dev", f"{files}.dev.{ending}"]
        flags = ["--out", task, "--epochs", str(epochs), "--batch-size", "16", "--threads", "1"]
        own = [*data, *flags, "--no-preflight", *small]
        command(world, "finetune", task, "bert/model", *own, *plugin(task))
    return world


def predicted(world: Path, task: str, *questions: dict[str, str]) -> list[dict]:
    """The answers of `unmask predict` to JSON lines."""
    path = world / "asked.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in questions))
    printed = command(world, "predict", f"{task}/model", path.name, *plugin(task)).stdout
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.slow
def test_a_question_of_its_own_is_learned_and_answered_by_predict(trained):
    text = "the old dog sleeps ."
    animal, colour = predicted(
        trained, "highlight", {"text": text, "topic": "animal"}, {"text": text, "topic": "colour"}
    )
    assert [text[a:b] for a, b, _ in animal["spans"]] == ["dog"]
    assert [text[a:b] for a, b, _ in colour["spans"]] == ["old"]


@pytest.mark.slow
def test_its_fields_are_listed_by_info_and_their_columns_can_be_named(trained):
    own = plugin("highlight")
    printed = " ".join(command(trained, "info", "highlight/model", *own).stdout.split())
    assert "field topic text, required. What to look for." in printed
    assert '{"text": "the cat ate fish", "topic": "animals"}' in printed
    (trained / "asked.csv").write_text("text,subject\nthe old dog sleeps .,animal\n")
    asked = ["predict", "highlight/model", "asked.csv", *own, "--column"]
    ((start, end, _),) = json.loads(command(trained, *asked, "topic=subject").stdout)["spans"]
    assert (start, end) == (8, 11)
    refused = command(trained, *asked, "topik=subject", code=2).stderr
    assert "unknown field 'topik'; did you mean 'topic'? The fields are text, topic." in refused
    lines = (trained / "topics.dev.jsonl").read_text().replace('"topic"', '"subject"')
    (trained / "renamed.jsonl").write_text(lines)
    data = ["evaluate", "highlight/model", "renamed.jsonl", *own, "--column", "topic=subject"]
    assert "words_right      1.0000" in command(trained, *data).stdout


@pytest.mark.slow
def test_a_question_that_lacks_a_field_is_refused_by_its_name(trained):
    (trained / "bad.jsonl").write_text('{"text": "the dog"}\n')
    printed = command(
        trained, "predict", "highlight/model", "bad.jsonl", *plugin("highlight"), code=2
    ).stderr
    assert "bad.jsonl:1: 'topic' is None; expected a text. The fields are text, to" in printed


@pytest.mark.slow
def test_a_model_of_a_task_that_is_not_known_says_what_is_missing(trained):
    printed = command(trained, "predict", "highlight/model", "asked.jsonl", code=2).stderr
    assert "trained for an unknown task, 'highlight'" in printed
    assert "--plugin FILE.py" in printed
    assert "Traceback" not in printed


@pytest.mark.slow
def test_evaluate_scores_it(trained):
    printed = command(
        trained, "evaluate", "highlight/model", "topics.dev.jsonl", *plugin("highlight")
    ).stdout
    assert "words_right      1.0000" in printed


@contextmanager
def serving(world: Path, *words: str) -> Iterator[str]:
    """`unmask serve`, as a user starts it; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", "serve", *words, "--port", str(port)],
        cwd=world,
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + STARTS
        while not answers(f"{address}/health"):
            assert process.poll() is None, "it has ended"
            assert time.monotonic() < until, "it does not answer"
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def server(trained) -> Iterator[str]:
    """Both models, served."""
    words = ["highlight=highlight/model", "spell=spell/model"]
    with serving(trained, *words, *plugin("highlight"), *plugin("spell")) as address:
        yield address


@pytest.mark.slow
def test_it_is_answered_over_http_and_described_in_the_docs(server, trained):
    text = "the old dog sleeps ."
    body = {"items": [{"text": text, "topic": "animal"}]}
    (found,) = httpx.post(f"{server}/ask/highlight", json=body, timeout=60).json()
    ((start, end, share),) = found["answer"]["spans"]
    assert text[start:end] == "dog"
    assert found["view"]["kind"] == "spans"
    assert found["view"]["spans"] == [
        {"start": start, "end": end, "label": "animal", "share": share}
    ]
    described = httpx.get(f"{server}/openapi.json", timeout=60).json()
    assert "/ask/highlight" in described["paths"]
    schemas = described["components"]["schemas"]
    assert schemas["AskTopic"]["required"] == ["text", "topic"]
    assert schemas["AskTopic"]["properties"]["topic"]["description"] == "What to look for."
    wrong = httpx.post(f"{server}/ask/highlight", json={"items": [{"text": text}]}, timeout=60)
    assert wrong.status_code == 422
    assert "topic" in wrong.json()["error"]


@pytest.mark.slow
def test_it_is_answered_on_the_page_in_a_form_of_its_own(server):
    with browser() as launched, page_of(launched) as page:
        page.goto(server)
        page.get_by_role("tab", name="Highlight").click()
        panel = page.get_by_role("tabpanel")
        panel.get_by_label("Text", exact=True).fill("the old dog sleeps .")
        panel.get_by_label("Topic").fill("colour")
        panel.get_by_role("button", name="Ask").click()
        wait_for_texts(panel.locator("mark"), ["old colour"])


def events(address: str, text: str) -> list[dict]:
    """The events of a streamed answer, in their order."""
    body = {"items": [{"text": text}], "stream": True}
    with httpx.stream("POST", f"{address}/ask/spell", json=body, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.slow
def test_an_answer_that_grows_is_streamed_token_by_token(server, trained):
    *views, last = events(server, "old big dog")
    assert last == {"done": True}
    texts = [view["text"] for view in views]
    (whole,) = predicted(trained, "spell", {"text": "old big dog"})
    assert texts[-1] == whole["text"]
    assert [len(text.split()) for text in texts] == list(range(1, len(texts) + 1))
    assert len(texts) >= 2
    for shorter, longer in zip(texts, texts[1:], strict=False):
        assert longer.startswith(shorter)
    body = {"items": [{"text": "old big dog"}]}
    (found,) = httpx.post(f"{server}/ask/spell", json=body, timeout=60).json()
    assert found["answer"] == whole
    assert found["view"]["kind"] == "text"


@pytest.mark.slow
def test_an_answer_that_grows_is_drawn_on_the_page(server, trained):
    (whole,) = predicted(trained, "spell", {"text": "old big dog"})
    with browser() as launched, page_of(launched) as page:
        page.goto(server)
        page.get_by_role("tab", name="Spell").click()
        panel = page.get_by_role("tabpanel")
        panel.get_by_label("Text", exact=True).fill("old big dog")
        panel.get_by_role("button", name="Ask").click()
        panel.get_by_text("answered").wait_for(state="attached")
        assert panel.locator(".verdict").inner_text() == whole["text"]


@pytest.mark.slow
def test_only_one_question_can_be_streamed(server):
    body = {"items": [{"text": "a"}, {"text": "b"}], "stream": True}
    response = httpx.post(f"{server}/ask/spell", json=body, timeout=60)
    assert response.status_code == 422
    assert "stream: got 2 items; need exactly one" in response.json()["error"]


def test_a_request_can_name_no_plugin_and_no_file():
    """What is registered comes from the command line of the server alone."""
    source = Path(__file__).parents[2] / "src" / "unmask"
    callers = [
        path.relative_to(source).as_posix()
        for path in sorted(source.rglob("*.py"))
        if "load_plugin" in path.read_text() and path.name != "plugins.py"
    ]
    assert callers == ["cli/__init__.py"]
