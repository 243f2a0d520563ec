"""The page of `unmask look`, in a browser without a network: its numbers are the model's."""

import numpy as np
import pytest

import unmask
from tests.browser import barriers, browser, page_of, wait_for_count, wait_for_texts
from tests.conftest import tiny_network
from tests.shapes import bert_heads
from unmask.checkpoint.folder import save_folder
from unmask.inspect.attribution import head_statistics
from unmask.inspect.html import payload, self_contained

FIRST, SECOND = "the cats sat on the mat", "a dog"


@pytest.fixture(scope="module")
def look(tmp_path_factory, tokenizer):
    """A model, the page of two such models side by side, and a browser."""
    place = tmp_path_factory.mktemp("page")
    heads = bert_heads(labels="text", label_names=("bad", "good"))
    save_folder(place / "one", tiny_network(heads), tokenizer)
    save_folder(place / "two", tiny_network(heads, layers=3), tokenizer)
    models = [unmask.load(place / name) for name in ("one", "two")]
    known = [head_statistics(model, ["the cat sat"]) for model in models]
    data = [
        payload(model, FIRST, SECOND, each_head=True, habits=own)
        for model, own in zip(models, known, strict=True)
    ]
    (place / "one.html").write_text(self_contained(data[:1], "one"))
    (place / "both.html").write_text(self_contained(data, "both"))
    with browser() as launched:
        yield models[0], place, launched


def test_the_numbers_on_the_page_are_the_tensors(look):
    model, place, launched = look
    truth = model.attention(FIRST, SECOND)
    with page_of(launched, offline=True) as page:
        page.goto(f"file://{place}/one.html")
        page.get_by_role("button", name="matrix", exact=True).click()
        page.get_by_label("layer", exact=True).select_option("1")
        page.get_by_role("button", name="head 0", exact=True).click()
        page.get_by_role("button", name="head 1", exact=True).click()
        canvas = page.locator(".field canvas")
        canvas.focus()
        size = len(truth.tokens)
        for row, across in ((0, 0), (1, 2), (size - 1, size - 1)):
            for _ in range(size):
                canvas.press("ArrowUp")
                canvas.press("ArrowLeft")
            for _ in range(row):
                canvas.press("ArrowDown")
            for _ in range(across):
                canvas.press("ArrowRight")
            if row == across == 0:
                canvas.press("ArrowUp")
            said = page.locator("output").inner_text()
            a, b = truth.tokens[row], truth.tokens[across]
            assert said == f"{a} attends to {b}: {truth.weights[1, 1, row, across]:.6f}"


@pytest.mark.parametrize("way", ["plain", "hidden", "merged", "merged and hidden"])
def test_the_page_hides_and_merges_as_python_does(look, way):
    model, place, launched = look
    maps = model.attention(FIRST, SECOND)
    if "merged" in way:
        maps = maps.merged()
    if "hidden" in way:
        maps = maps.hidden()
    with page_of(launched, offline=True) as page:
        page.goto(f"file://{place}/one.html")
        if "merged" in way:
            page.get_by_label("whole words").check()
        if "hidden" in way:
            page.get_by_label("hide [CLS] and [SEP]").check()
        wait_for_texts(page.locator(".from .token"), maps.tokens)
        page.locator(".from .token").nth(1).click()
        weights = [float(text) for text in page.locator(".to .weight").all_inner_texts()]
    np.testing.assert_allclose(weights, maps.weights[0, 0, 1], atol=6e-5)


def test_rollout_and_gradients_stand_beside_the_weights_with_a_remark(look):
    model, place, launched = look
    data = payload(model, FIRST, SECOND)
    with page_of(launched, offline=True) as page:
        page.goto(f"file://{place}/one.html")
        page.get_by_role("button", name="importance").click()
        bars = page.locator(".panels td .bar")
        wait_for_count(bars, 2 * len(data["tokens"]))
        cells = bars.all_inner_texts()
        rolled = model.attention(FIRST, SECOND).rollout()[0]
        np.testing.assert_allclose([float(c) for c in cells[::2]], rolled, atol=6e-5)
        slopes = data["importance"]["gradient × input"]
        np.testing.assert_allclose([float(c) for c in cells[1::2]], slopes, atol=6e-5)
        assert "Attention is not an explanation" in page.locator("body").inner_text()


def test_from_the_first_text_to_the_second(look):
    model, place, launched = look
    truth = model.attention(FIRST, SECOND)
    with page_of(launched, offline=True) as page:
        page.goto(f"file://{place}/one.html")
        page.get_by_label("texts").select_option("first to second")
        both = list(zip(truth.tokens, truth.segments, strict=True))
        for side, part in ((".from", 0), (".to", 1)):
            wait_for_texts(page.locator(f"{side} .token"), [t for t, s in both if s == part])


def test_a_mute_head_shows_what_changes(look):
    model, place, launched = look
    from unmask.inspect.attribution import answer

    truth = answer(model, FIRST, SECOND, mute={1: [1]})
    with page_of(launched, offline=True) as page:
        page.goto(f"file://{place}/one.html")
        page.get_by_label("ablate layer").select_option("1")
        page.get_by_label("head", exact=True).select_option("1")
        page.get_by_role("button", name="show the effect").click()
        page.get_by_role("columnheader", name="with the heads ablated").wait_for()
        rows = page.locator("section[aria-label^='Prediction'] tbody tr").all_inner_texts()
    found = [row.split("\t") for row in rows]
    assert [row[0] for row in found] == truth.names
    np.testing.assert_allclose([float(row[2]) for row in found], truth.without, atol=6e-5)


def test_two_models_side_by_side_and_the_grid_of_all_heads(look):
    _, place, launched = look
    with page_of(launched, offline=True) as page:
        page.goto(f"file://{place}/both.html")
        wait_for_count(page.locator(".panels .panel"), 2)
        page.get_by_role("button", name="grid").click()
        wait_for_count(page.locator(".cell"), 2 * (2 * 2))  # layers and heads that both have
        page.get_by_role("button", name="layer 1, head 1").first.click()
        wait_for_count(page.locator(".field canvas"), 2)


def test_what_people_wrote_is_never_markup(look):
    model, place, launched = look
    bad = "</script><img src=x onerror=document.title='bad'>"
    data = {**payload(model, "a dog"), "model": bad}
    data["tokens"][1] = bad
    (place / "bad.html").write_text(self_contained([data], bad))
    with page_of(launched, offline=True) as page:
        page.goto(f"file://{place}/bad.html")
        assert page.locator(".from .token").nth(1).inner_text() == bad
        assert page.locator("h2").first.inner_text() == bad
        assert page.locator("img").count() == 0
        assert page.title() == bad


@pytest.mark.parametrize("width", [320, 1200])
def test_lines_end_at_their_tokens_however_narrow_the_screen(look, width):
    _, place, launched = look
    with page_of(launched, offline=True, viewport={"width": width, "height": 800}) as page:
        page.goto(f"file://{place}/one.html")
        page.locator(".from .token").nth(1).click()
        ends, tokens = page.evaluate(
            """() => [".lines line", ".to .token"].map((which) =>
                [...document.querySelectorAll(which)].map((e) => e.getBoundingClientRect())
                    .map((box) => [box.top, box.bottom]))"""
        )
    centres = [(top + bottom) / 2 for top, bottom in tokens]
    assert ends
    assert all(min(abs(y - c) for c in centres) < 3 for end in ends for y in end)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_barrier_in_any_view(look, theme):
    _, place, launched = look
    with page_of(launched, offline=True, color_scheme=theme) as page:
        page.goto(f"file://{place}/both.html")
        found = []
        for view in ("lines", "grid", "matrix", "importance"):
            page.get_by_role("button", name=view, exact=True).click()
            found += barriers(page)
    assert found == []
