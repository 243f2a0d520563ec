"""Curves and report: the numbers of a run in files that need no network to be seen."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.train.conftest import metrics, table
from unmask.evaluation.report.charts import HEIGHT, POINTS, WIDTH, Chart, Line, stacked
from unmask.evaluation.report.html import charts_of, report_page, write_report
from unmask.system.console import Console
from unmask.train.run_folder import RunFolder

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(\"&')</script>"
VOID = {"meta", "br", "link", "img", "input", "hr"}


def training(step, **changes):
    entry = {"kind": "train", "step": step, "loss": 6.0 - step / 100, "mlm": 5.5 - step / 100}
    entry |= {"pair": 0.5, "grad_norm": 1.5, "learning_rate": 1e-4 * step, "tokens": 1000 * step}
    return {**entry, "seconds": 2.0 * step, "tokens_per_second": 500.0, **changes}


def evaluated(step, **changes):
    entry = {"kind": "eval", "step": step, "mlm": 5.0 - step / 100, "mlm_accuracy": 0.125}
    entry |= {"pair": 0.6, "pair_accuracy": 0.625, "ln_v": 8.5, "unigram_loss": 6.25}
    entry |= {"unigram_accuracy": 0.0625, "tokens": 1000 * step, "seconds": 2.0 * step}
    entry |= {"targets": {"mlm": "masked tokens", "pair": "sentence pairs"}, "pair_chance": 0.5}
    return {**entry, **changes}


def blank(truth="river", text="the old [MASK] carried trees", guesses=(("river", 0.75),)):
    return {"text": text, "truth": truth, "predictions": [list(guess) for guess in guesses]}


METRICS = [evaluated(0), *(training(i) for i in range(1, 101)), evaluated(50), evaluated(100)]


class Reader(HTMLParser):
    """Fails where tags do not close as they open; keeps text, tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.tags, self.texts, self.values = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(html) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def texts(svg) -> list[str]:
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def links(text) -> set[str]:
    return set(re.findall(r"(?:https?:)?//[^\s\"'<>]+", text))


def chart(*what, **how) -> str:
    return Chart(*what, **how).svg()


def test_a_chart_is_well_formed_and_names_its_lines_with_their_last_values():
    lines = [Line("held out", [0, 1, 2], [5.0, 4.0, 3.25]), Line("ln V", [0, 2], [8.5, 8.5], True)]
    svg = chart("Loss", lines)
    said = texts(svg)
    assert "Loss" in said
    assert "held out 3.25" in said
    assert "ln V 8.5" in said
    assert "step" in said
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}polyline"))) == 2


def test_a_chart_shows_shares_in_percent():
    assert "60 %" in texts(chart("Right", [Line("held out", [0, 1], [0.2, 0.6])], percent=True))


def test_points_lie_where_their_numbers_say_by_hand():
    (line,) = ElementTree.fromstring(chart("x", [Line("a", [0, 10], [0.0, 10.0])])).iter(
        f"{SVG}polyline"
    )
    first, last = (tuple(map(float, p.split(","))) for p in line.get("points").split())
    assert first == (62.0, HEIGHT - 42)  # left and below
    assert last == (WIDTH - 150, 34.0)  # right and above


def test_of_a_logarithmic_chart_each_tenfold_is_one_step_up_and_zero_is_left_out():
    svg = chart("x", [Line("a", [0, 1, 2, 3], [10.0, 100.0, 1000.0, 0.0])], log=True)
    (line,) = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    heights = [float(point.partition(",")[2]) for point in line.get("points").split()]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    assert len(heights) == 3
    assert {"10", "100", "1,000", "a 1,000"} <= set(texts(svg))


def test_what_is_no_number_has_a_name_below_its_point():
    svg = chart("x", [Line("a", [0, 1], [1.0, 2.0])], names=["tiny", "mini"], across="size")
    said = texts(svg)
    assert {"tiny", "mini", "size"} <= set(said)
    assert "0.5" not in said


@pytest.mark.parametrize("value", [1e-4, 1e-3, 0.0, 0.5, 5.0, 1e9, -3.0])
def test_a_single_point_can_be_drawn(value):
    svg = chart("rate", [Line("rate", [1.0], [value])])
    assert any(text.startswith("rate ") for text in texts(svg))
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}circle"))) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_left_out(bad):
    svg = chart("x", [Line("a", [0, 1, 2], [1.0, bad, 2.0])])
    assert "nan" not in svg
    assert "inf" not in svg
    (line,) = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    assert len(line.get("points").split()) == 2


def test_a_line_of_nothing_finite_leaves_the_others():
    svg = chart("x", [Line("a", [0, 1], [float("nan")] * 2), Line("b", [0, 1], [1.0, 2.0])])
    assert "b 2" in texts(svg)


def test_a_chart_of_nothing_says_so():
    assert texts(chart("Loss", [])) == ["Loss: no data yet"]
    assert texts(chart("Loss", [Line("a", [], [])])) == ["Loss: no data yet"]


def test_a_long_line_is_thinned_to_means():
    count = 10 * POINTS
    svg = chart("x", [Line("a", range(count), [i % 2 for i in range(count)])])
    (line,) = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    points = line.get("points").split()
    assert len(points) == POINTS
    assert len({point.partition(",")[2] for point in points}) == 1  # each the mean of 0 and 1


def test_names_at_the_ends_of_lines_do_not_touch():
    lines = [Line(f"line {i}", [0, 1], [1.0, 1.0 + i / 1000]) for i in range(4)]
    root = ElementTree.fromstring(chart("x", lines))
    heights = sorted(
        float(e.get("y")) for e in root.iter(f"{SVG}text") if (e.text or "").startswith("line ")
    )
    assert all(b - a >= 14 for a, b in zip(heights, heights[1:], strict=False))


def test_charts_below_each_other_are_one_file():
    svg = stacked([Chart("One", [Line("a", [0, 1], [1.0, 2.0])]), Chart("Two", [])])
    root = ElementTree.fromstring(svg)
    assert root.get("height") == str(2 * HEIGHT)
    assert {"One", "Two: no data yet"} <= set(texts(svg))


def test_a_title_and_a_name_are_only_text():
    svg = chart(HOSTILE, [Line(HOSTILE, [0, 1], [1.0, 2.0])])
    root = ElementTree.fromstring(svg)
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert HOSTILE in texts(svg)


def test_a_run_has_curves_for_all_that_it_measured():
    titles = {chart.title: chart.lines for chart in charts_of(METRICS)}
    assert list(titles) == [
        "Loss on masked tokens",
        "Accuracy on masked tokens",
        "Accuracy on sentence pairs",
        "Tokens per second",
        "Learning rate",
        "Gradient norm",
    ]
    training_line, held, unigram, ln_v = titles["Loss on masked tokens"]
    assert list(held.xs) == [0, 50, 100]
    assert list(held.ys) == [5.0, 4.5, 4.0]
    assert set(unigram.ys) == {6.25}
    assert set(ln_v.ys) == {8.5}
    assert len(training_line.xs) == 100
    assert titles["Accuracy on sentence pairs"][1].ys == [0.5] * 3


def test_the_training_loss_is_a_running_mean_of_twenty_steps_by_hand():
    entries = [evaluated(0), *(training(step, mlm=float(step)) for step in range(1, 31))]
    line = charts_of(entries)[0].lines[0]
    assert line.ys[0] == 1.0
    assert line.ys[1] == 1.5
    assert line.ys[29] == pytest.approx(20.5)  # of 11 to 30


def test_without_pairs_there_is_no_curve_of_them():
    entries = [{**e, "targets": {"mlm": "masked tokens"}} for e in METRICS]
    assert "Accuracy on sentence pairs" not in [chart.title for chart in charts_of(entries)]


def test_the_report_holds_the_numbers():
    said = " ".join(read(report_page("my run", METRICS, table(), [])).texts)
    assert "my run" in said
    for number in ("4.000", "unigram 6.250, ln V 8.500", "12.5%", "6.2%", "62.5%", "chance: 50.0%"):
        assert number in said
    for number in ("100", "100,000 tokens", "3.3 min", "500 tokens per second"):
        assert number in said
    assert 'size = "tiny"' in said
    assert "[[schedule.phases]]" in said


def test_the_report_shows_warnings():
    html = report_page("r", METRICS, table(), ["step 5: warning [still]: the gradient is zero"])
    assert "step 5: warning [still]: the gradient is zero" in read(html).texts


def test_the_report_shows_how_blanks_were_filled_over_the_run():
    held = [
        evaluated(
            step, masked_predictions=[blank(guesses=[(f"guess{step}", 0.5), ("river", 0.25)])]
        )
        for step in range(0, 90, 10)
    ]
    html = report_page("r", [training(1), training(2), *held], table(), [])
    said = read(html).texts
    assert [text for text in said if text.startswith("step ")] == [
        f"step {step}" for step in (0, 20, 40, 60, 80)
    ]
    assert "guess0 50%" in said
    assert "guess80 50%" in said
    assert '<span class="right">river 25%</span>' in html
    assert "<mark>____</mark>" in html


def test_a_report_without_blanks_or_evaluations_is_whole():
    for entries in (
        [training(1), training(2)],
        [evaluated(0)],
        [evaluated(0, masked_predictions=[])],
    ):
        read(report_page("r", entries, table(), []))


def test_nothing_that_a_text_says_is_markup():
    cases = [blank(HOSTILE, f"{HOSTILE} [MASK]", [(HOSTILE, 0.5)])]
    entries = [*METRICS, evaluated(101, masked_predictions=cases)]
    html = report_page(HOSTILE, entries, table(model={"size": HOSTILE}), [HOSTILE])
    reader = read(html)
    assert "script" not in reader.tags
    said = "".join(reader.texts)
    assert said.count(HOSTILE) >= 5  # title, heading, warning, blank, truth, guess
    assert HOSTILE not in html


def test_neither_file_asks_the_network_for_anything():
    html = report_page("r", METRICS, table(), [])
    svg = stacked(charts_of(METRICS))
    space = {"http://www.w3.org/2000/svg"}
    assert links(html) == space
    assert links(svg) == space
    reader = read(html)
    assert not set(reader.tags) & {"script", "link", "img", "iframe", "object", "embed"}
    assert {value for value in reader.values if value.startswith(("http", "//"))} == space
    assert "url(" not in html
    assert "@import" not in html


def test_a_run_leaves_both_files(run):
    folder = run()
    curves = (folder / "curves.svg").read_text()
    assert f"held out {metrics(folder, 'eval')[-1]['mlm']:.3g}" in texts(curves)
    said = " ".join(read((folder / "report.html").read_text()).texts)
    assert f"{metrics(folder, 'eval')[-1]['mlm']:.3f}" in said


def test_a_run_without_metrics_leaves_neither(tmp_path):
    write_report(RunFolder(tmp_path, Console()))
    assert list(tmp_path.iterdir()) == []
