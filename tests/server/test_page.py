"""The served page, in a real browser: each tab says what its route says; keyboard; both themes."""

import json

import pytest

from tests.browser import PATIENCE, barriers, browser, page_of, wait_for_count, wait_for_texts
from tests.server.conftest import running
from unmask.inspect.attribution import answer
from unmask.model.config import SearchSettings
from unmask.server.limits import Limits

TABS = [
    "Fill",
    "Next sentence",
    "Classify",
    "Score",
    "Named entities",
    "Question answering",
    "Translate",
]
TABS += ["Similarity", "Attention", "Training", "Models"]


@pytest.fixture(scope="module")
def launched():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def watched(served, tmp_path_factory):
    """A server that also shows a run."""
    run = tmp_path_factory.mktemp("runs") / "first"
    run.mkdir()
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, 6):
            file.write(json.dumps({"kind": "train", "step": step, "loss": 5.0 - step}) + "\n")
        file.write('{"kind": "eval", "st')  # being written
    with running(served, runs={"first": run}) as found:
        yield found, run


def tab(page, url, name):
    page.goto(url)
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel")


def all_tabs(page, url):
    """Open the page of a server that shows a run, and find every tab it should have."""
    page.goto(url)
    tabs = page.get_by_role("tab")
    wait_for_texts(tabs, TABS)
    return tabs.all()


def test_a_click_on_a_word_hides_it_and_shows_the_candidates(launched, server, served):
    (truth,) = served["pretrained"].fill("the [MASK] sat on the mat.", top=8)
    with page_of(launched) as page:
        panel = tab(page, server.url, "Fill")
        panel.get_by_label("Text").fill("the cat sat on the mat.")
        panel.get_by_role("button", name="cat", exact=True).click()
        tokens = [guess.token for guess in truth]
        wait_for_texts(panel.locator(".answer tbody td:first-child"), tokens)
        assert panel.get_by_label("Text").input_value() == "the [MASK] sat on the mat."


def test_next_sentence_and_labels(launched, server, served):
    with page_of(launched) as page:
        panel = tab(page, server.url, "Next sentence")
        panel.get_by_role("button", name="Does it follow?").click()
        panel.locator(".verdict").wait_for()
        share = served["pretrained"].next("She opened the door.", "Nobody was there.")
        assert f"{100 * share:.1f} %" in panel.locator(".verdict").inner_text()
        panel = tab(page, server.url, "Classify")
        panel.get_by_label("Text", exact=True).fill("the cat")
        panel.get_by_role("button", name="Ask").click()
        panel.locator(".verdict").wait_for()
        assert (
            panel.locator(".verdict").inner_text()
            == served["sentiment"].classify(["the cat"])[0].label
        )


def test_the_answer_is_marked_in_the_passage(launched, server, served):
    passage = "𝒜 dog sat on the mat"
    truth = served["answers"].answer("the cat", passage)
    with page_of(launched) as page:
        panel = tab(page, server.url, "Question answering")
        panel.get_by_label("Question").fill("the cat")
        panel.get_by_label("Passage").fill(passage)
        panel.get_by_role("button", name="Ask").click()
        wait_for_texts(panel.locator("mark"), [f"{truth.text} answer"])


def test_a_translation_comes_with_where_its_words_looked(launched, server, served):
    speaker = served["translator"].translator
    (truth,) = speaker.translate(["the cat sat"], SearchSettings(beam_size=4), alignment=True)
    with page_of(launched) as page:
        panel = tab(page, server.url, "Translate")
        panel.get_by_label("Text").fill("the cat sat")
        panel.get_by_label("Beams").fill("4")
        panel.get_by_label("Alignment").check()
        panel.get_by_role("button", name="Ask").click()
        panel.locator(".answer table").wait_for()
        assert panel.locator(".verdict").inner_text() == (truth.text or "(nothing)")
        assert panel.locator(".score").inner_text() == f"score {truth.score:.3f}"
        shares = [f"{share:.2f}" for row in truth.alignment.weights for share in row]
        wait_for_texts(panel.locator(".answer tbody .heat"), shares)


def test_the_form_allows_as_much_as_the_server(launched, server):
    with page_of(launched) as page:
        panel = tab(page, server.url, "Translate")
        beams = panel.get_by_label("Beams")
        assert (beams.get_attribute("min"), beams.get_attribute("max")) == ("1", "8")


def test_a_stream_that_comes_late_does_not_replace_a_newer_answer(launched, server, served):
    (truth,) = served["translator"].translate(["the cat sat"])
    with page_of(launched) as page:
        panel = tab(page, server.url, "Translate")
        release = hold_first(page, "**/ask/translate")
        panel.get_by_label("Text").fill("a dog")
        panel.get_by_label("Alignment").check()
        panel.get_by_role("button", name="Ask").click()
        panel.get_by_label("Text").fill("the cat sat")
        panel.get_by_label("Alignment").uncheck()
        panel.get_by_role("button", name="Ask").click()
        panel.get_by_text("answered").wait_for()
        release()
        page.wait_for_timeout(500)  # time enough to draw what must not be drawn
        wait_for_texts(panel.locator(".verdict"), [truth or "(nothing)"])
        assert panel.locator(".answer table").count() == 0


def test_a_refusal_in_a_stream_is_shown(launched, served):
    with (
        running(served, limits=Limits(request_seconds=60, tokens=4)) as found,
        page_of_401(launched) as page,
    ):
        panel = tab(page, found.url, "Translate")
        panel.get_by_role("button", name="Ask").click()
        says = "the request has about 13 tokens; at most 4 are allowed. Split it into several "
        says += "requests, or shorten its texts."
        wait_for_texts(panel.get_by_role("alert"), [says])


def test_names_are_marked_where_they_stand(launched, server, served):
    text = "the cat sat on the mat"
    truth = served["names"].entities(text).entities
    with page_of(launched) as page:
        panel = tab(page, server.url, "Named entities")
        panel.get_by_label("Text").fill(text)
        panel.get_by_role("button", name="Ask").click()
        wait_for_texts(panel.locator("mark"), [f"{name.text} {name.label}" for name in truth])


def test_similarity_is_the_cosine(launched, server, served):
    with page_of(launched) as page:
        panel = tab(page, server.url, "Similarity")
        panel.get_by_label("Sentences").fill("the cat\na dog")
        panel.get_by_role("button", name="Compare").click()
        wait_for_count(panel.locator(".heat"), 2 * 2)
        shown = [float(text) for text in panel.locator(".heat").all_inner_texts()]
    vectors = served["pretrained"].embed(["the cat", "a dog"])
    assert shown == [round(float(v), 2) for v in (vectors @ vectors.T).ravel()]


def test_attention_in_its_tab_with_a_mute_head_from_the_server(launched, server, served):
    truth = served["pretrained"].attention("the cat sat")
    with page_of(launched) as page:
        panel = tab(page, server.url, "Attention")
        panel.get_by_label("Text", exact=True).fill("the cat sat")
        panel.get_by_role("button", name="Show attention", exact=True).click()
        wait_for_texts(panel.locator(".from .token"), truth.tokens)
        panel.locator(".from .token").nth(1).click()
        weights = [float(text) for text in panel.locator(".to .weight").all_inner_texts()]
        assert weights == pytest.approx(truth.weights[0, 0, 1].tolist(), abs=6e-5)
        panel.get_by_role("button", name="show the effect").click()
        panel.get_by_text("with the heads ablated").wait_for()


def test_curves_grow_while_a_run_writes(launched, watched):
    found, run = watched
    with page_of(launched) as page:
        panel = tab(page, found.url, "Training")
        panel.locator("figure").first.wait_for()
        assert "training: 2" in panel.locator("figcaption").first.inner_text()
        with (run / "metrics.jsonl").open("a") as file:
            file.write('ep": 5, "loss": 1.5}\n')
        panel.get_by_text("held out: 1.5").wait_for()


def test_the_keyboard_is_enough(launched, server):
    with page_of(launched) as page:
        page.goto(server.url)
        page.get_by_role("tab", name="Fill").focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == "Next sentence"
        wait_for_count(page.get_by_role("tabpanel"), 1)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"


def hold_first(page, pattern):
    """Keep back the first request to a route until the returned function is called."""
    held = []

    def handle(route):
        if held:
            route.continue_()
        else:
            held.append(route)

    def release():
        with page.expect_response(pattern):
            held[0].continue_()

    page.route(pattern, handle)
    return release


def test_an_answer_that_comes_late_does_not_replace_a_newer_one(launched, server, served):
    (truth,) = served["pretrained"].fill("the [MASK] sat on the [MASK].", top=8)[1:]
    with page_of(launched) as page:
        panel = tab(page, server.url, "Fill")
        release = hold_first(page, "**/fill")
        panel.get_by_label("Text").fill("the cat sat on the mat.")
        panel.get_by_role("button", name="cat", exact=True).click()
        panel.get_by_role("button", name="mat", exact=True).click()
        wait_for_texts(panel.locator(".answer h2"), ["[MASK] 1", "[MASK] 2"])
        release()
        page.wait_for_timeout(500)  # time enough to draw what must not be drawn
        wait_for_texts(panel.locator(".answer h2"), ["[MASK] 1", "[MASK] 2"])
        shown = panel.locator(".answer table").nth(1).locator("tbody td:first-child")
        wait_for_texts(shown, [guess.token for guess in truth])


def test_names_are_marked_in_the_text_that_was_sent_whatever_is_typed_since(
    launched, server, served
):
    truth = served["names"].entities("the cat sat on the mat").entities
    with page_of(launched) as page:
        panel = tab(page, server.url, "Named entities")
        release = hold_first(page, "**/ask/ner")
        panel.get_by_label("Text").fill("the cat sat on the mat")
        panel.get_by_role("button", name="Ask").click()
        panel.get_by_label("Text").fill("a dog")
        release()
        wait_for_texts(panel.locator("mark"), [f"{name.text} {name.label}" for name in truth])


def test_curves_that_come_late_do_not_replace_those_of_the_run_chosen_since(
    launched, served, tmp_path
):
    runs = {}
    for name, loss in (("first", 1.0), ("second", 2.0)):
        runs[name] = tmp_path / name
        runs[name].mkdir()
        entry = {"kind": "train", "step": 1, "loss": loss}
        (runs[name] / "metrics.jsonl").write_text(json.dumps(entry) + "\n")
    with running(served, runs=runs) as found, page_of(launched) as page:
        release = hold_first(page, "**/runs/first")
        panel = tab(page, found.url, "Training")
        panel.get_by_label("run").select_option("second")
        panel.get_by_text("training: 2").wait_for()
        release()
        page.wait_for_timeout(500)  # time enough to draw what must not be drawn
        assert "training: 2" in panel.locator("figcaption").first.inner_text()


def test_a_muted_head_that_is_answered_late_does_not_replace_a_newer_one(launched, server, served):
    truth = answer(served["pretrained"], "the cat sat", mute={1: [1]})
    with page_of(launched) as page:
        panel = tab(page, server.url, "Attention")
        panel.get_by_label("Text", exact=True).fill("the cat sat")
        panel.get_by_role("button", name="Show attention", exact=True).click()
        panel.locator(".from .token").first.wait_for()
        release = hold_first(page, "**/attention")
        panel.get_by_role("button", name="show the effect").click()
        panel.get_by_label("ablate layer").select_option("1")
        panel.get_by_label("head", exact=True).select_option("1")
        panel.get_by_role("button", name="show the effect").click()
        panel.get_by_text("with the heads ablated").wait_for()
        release()
        page.wait_for_timeout(500)  # time enough to draw what must not be drawn
        shown = panel.locator("section[aria-label^='Prediction'] tbody td:nth-child(3)")
        wait_for_texts(shown, [f"{value:.4f}" for value in truth.without])


def test_every_field_and_button_has_a_name(launched, watched):
    with page_of(launched) as page:
        for own in all_tabs(page, watched[0].url):
            own.click()
        fields = page.locator("input, select, textarea, button")
        assert fields.count() > 2 * len(TABS), "a tab has fields besides its own button"
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("input, select, textarea, button")].filter(
                (e) => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)
            ).map((e) => e.outerHTML)"""
        )
        assert nameless == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(launched, server, theme):
    with page_of(launched, color_scheme=theme) as page:
        page.goto(server.url)
        page.get_by_role("tab").first.wait_for()
        front, back = page.evaluate(
            "() => [getComputedStyle(document.body)].flatMap((s) => [s.color, s.backgroundColor])"
        )

    def light(colour):
        channels = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    one, two = sorted((light(front), light(back)))
    assert (two + 0.05) / (one + 0.05) > 7
    assert (light(back) < 0.1) == (theme == "dark")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_barrier_in_any_tab(launched, watched, theme):
    """Each tab as it opens, and with its answer."""
    with page_of(launched, color_scheme=theme) as page:
        found = []
        for own in all_tabs(page, watched[0].url):
            own.click()
            panel = page.get_by_role("tabpanel")
            if own.inner_text() == "Training":
                panel.locator("figure").first.wait_for()
            found += barriers(page)
            if own.inner_text() in ("Training", "Models"):
                continue  # it shows something without being asked
            for box in panel.locator("form.ask input[type=checkbox]").all():
                box.check()
            panel.locator(".word, form.ask > button").first.click()
            panel.get_by_text("answered").wait_for()
            if own.inner_text() == "Translate":
                panel.get_by_role("region", name="Alignment").wait_for()
            found += barriers(page)
        page.get_by_role("tab", name="Attention").click()
        for view in ("grid", "matrix", "importance"):
            page.get_by_role("button", name=view, exact=True).click()
            found += barriers(page)
        page.goto(f"{watched[0].url}/docs")
        page.get_by_role("heading", level=2).first.wait_for()
        found += barriers(page)
    assert found == []


def test_axe_finds_no_barrier_where_a_token_is_asked_for(launched, served):
    with running(served, token="let me in") as found, page_of_401(launched) as page:
        page.goto(found.url)
        page.get_by_label("This server needs a token").fill("another")
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("alert").wait_for()
        assert barriers(page) == []


def test_a_token_is_asked_for_once(launched, served):
    with running(served, token="let me in") as found, page_of_401(launched) as page:
        page.goto(found.url)
        page.get_by_label("This server needs a token").fill("let me in")
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("tab").first.wait_for()


def page_of_401(launched):
    """A page that is refused at first logs it on the console, which is no fault."""
    from contextlib import contextmanager

    @contextmanager
    def opened():
        context = launched.new_context()
        context.set_default_timeout(PATIENCE)
        try:
            yield context.new_page()
        finally:
            context.close()

    return opened()


def test_the_routes_are_listed_without_help_from_elsewhere(launched, server):
    with server.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert "POST /v1/embeddings" in routes
    with page_of(launched) as page:
        page.goto(f"{server.url}/docs")
        wait_for_texts(page.get_by_role("heading", level=2), routes)
