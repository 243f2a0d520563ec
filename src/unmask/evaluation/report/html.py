"""Metrics of a run -> curves.svg and report.html, a single file that opens without a network."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from unmask.evaluation.language_model import MaskedToken
from unmask.evaluation.report.answers import TaskScores, head_cells, table, task_section
from unmask.evaluation.report.charts import Chart, Line, stacked
from unmask.system.settings import write_toml
from unmask.train.evaluator import metric_name
from unmask.train.run_folder import RunFolder, of_kind

CURVES, REPORT = "curves.svg", "report.html"
SMOOTH = 20  # points in the running mean of the training loss
STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: .25rem .7rem; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; } td.n { text-align: right;
  font-variant-numeric: tabular-nums; } pre { overflow: auto; padding: 1rem; border: 1px solid
  var(--line); border-radius: .4rem; } mark { padding: 0 .2em; border-radius: .2em; }
.right { font-weight: 700; } .warn { border-left: 4px solid #d97706; padding-left: 1rem; }
"""


Numbers = Mapping[str, float]  # an entry of the metrics, of which only numbers are read
Row = tuple[str, str, str]


def write_report(
    folder: RunFolder,
    *,
    warnings: Sequence[str] = (),
    scored: Mapping[str, TaskScores] | None = None,
) -> None:
    """Write the curves and the report so far; `scored` has the answers of the best step by task."""
    metrics = folder.metrics() if folder.writes else []
    if not metrics:
        return
    held = of_kind(metrics, "eval")
    extra, charts = "", []
    for name, own in (scored or {}).items():
        lines = [_line(what, held, metric_name(name, what)) for what in own.scores]
        title = f"Scores on held-out data{f': {name}' if name else ''}"
        charts.append(Chart(title, lines))
        extra += f"<h2>{escape(title)}</h2>{charts[-1].svg()}{task_section(own)}"
    usual = charts_of(metrics)
    folder.put(CURVES, stacked([*usual[:1], *charts] if charts else usual[:3]))
    name = folder.path.absolute().name  # absolute, because the name of "." is empty
    folder.put(REPORT, report_page(name, metrics, folder.recipe, warnings, extra=extra))


def charts_of(metrics: list[dict[str, Any]]) -> list[Chart]:
    """Make the charts of a run from its metrics; those without data are skipped."""
    train, held = of_kind(metrics, "train"), of_kind(metrics, "eval")
    asks = _asks(held)
    main = next(iter(asks), "loss")
    losses = [
        _line("training", train, main, smooth=True),
        _line("held out", held, main),
        _line("unigram", held, "unigram_loss", dashed=True),
        _line("ln V", held, "ln_v", dashed=True),
    ]
    found = [Chart(f"Loss on {asks.get(main, 'the training data')}", losses)]
    for term, about in asks.items():
        if f"{term}_accuracy" in held[-1]:
            name, plain = _plain(term, main, held[-1])
            right = [_line("held out", held, f"{term}_accuracy")]
            right.append(_line(name, held, plain, dashed=True))
            found.append(Chart(f"{about.capitalize()} right", right, percent=True))
        elif term != main:  # a term without an accuracy
            found.append(Chart(f"Loss on {about}", [_line("held out", held, term)]))
    found += [
        Chart("Tokens a second", [_line("tokens", train, "tokens_a_second")]),
        Chart("Learning rate", [_line("rate", train, "rate")]),
        Chart("Length of the gradient", [_line("norm", train, "norm")]),
    ]
    return [chart for chart in found if any(line.xs for line in chart.lines)]


def report_page(
    name: str,
    metrics: list[dict[str, Any]],
    recipe: dict[str, Any],
    warnings: Sequence[str],
    *,
    extra: str = "",
) -> str:
    """Render report.html: summary, warnings, curves, predictions over time, and the recipe.

    `extra` is HTML that is placed above the recipe.
    """
    charts = "".join(chart.svg() for chart in charts_of(metrics))
    warned = "".join(f'<p class="warn">{escape(line)}</p>' for line in warnings)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{escape(name)}</title><style>{STYLE}</style></head>'
        f"<body><h1>{escape(name)}</h1>{_summary(metrics)}{warned}"
        f'<h2>Curves</h2><div class="charts">{charts}</div>{_blanks(metrics)}{extra}'
        f"<h2>Recipe</h2><pre>{escape(write_toml(recipe))}</pre></body></html>\n"
    )


def _summary(metrics: list[dict[str, Any]]) -> str:
    """Render length and speed of a run, and its last scores beside the baselines."""
    train, held = of_kind(metrics, "train"), of_kind(metrics, "eval")
    rows = [row for last in train[-1:] for row in _effort(last)]
    rows += [row for last in held[-1:] for row in _results(last, _asks(held))]
    return table(
        f'{head_cells([a])}<td class="n">{escape(b)}</td><td>{escape(c)}</td>' for a, b, c in rows
    )


def _effort(last: Numbers) -> Iterator[Row]:
    speed = last["tokens"] / max(last["seconds"], 1e-9)
    yield "steps", f"{last['step']:,}", f"{last['tokens']:,} tokens"
    yield "time", f"{last['seconds'] / 60:.1f} min", f"{speed:,.0f} tokens a second"


def _results(last: Numbers, asks: Mapping[str, str]) -> Iterator[Row]:
    main = next(iter(asks), "loss")
    if main in last:
        known = {"unigram": "unigram_loss", "ln V": "ln_v"}
        said = [f"{name} {last[key]:.3f}" for name, key in known.items() if key in last]
        yield "held-out loss", f"{last[main]:.3f}", ", ".join(said)
    for term, about in asks.items():
        if f"{term}_accuracy" in last:
            name, plain = _plain(term, main, last)
            right = f"{last[f'{term}_accuracy']:.1%}"
            yield f"{about} right", right, f"{name}: {last[plain]:.1%}"
        elif term != main:
            yield f"held-out loss, {about}", f"{last[term]:.3f}", ""


def _asks(held: list[dict[str, Any]]) -> dict[str, str]:
    """Return what each loss term predicts, the main term first."""
    asks: dict[str, str] = held[-1].get("asks", {}) if held else {}
    return asks


def _plain(term: str, main: str, entry: Mapping[str, object]) -> tuple[str, str]:
    """Return the baseline of an accuracy: its name, and its key in the metrics."""
    if term == main and "unigram_accuracy" in entry:
        return "unigram", "unigram_accuracy"
    return "chance", f"{term}_chance"


def _blanks(metrics: list[dict[str, Any]]) -> str:
    """Render how the predictions for the same masked tokens changed over the run."""
    held = [entry for entry in of_kind(metrics, "eval") if entry.get("blanks")]
    if not held:
        return ""
    # Five columns fit the page: first, last and three evaluations between, fewer if they coincide.
    picked = sorted({round(i * (len(held) - 1) / 4) for i in range(5)})
    rows = [head_cells(["", *(f"step {held[i]['step']:,}" for i in picked)])]
    moments: list[list[MaskedToken]] = [held[i]["blanks"] for i in picked]
    for case in moments[-1]:
        shown = escape(case["text"]).replace("[MASK]", "<mark>____</mark>")
        same = [next((b for b in m if b["text"] == case["text"]), None) for m in moments]
        cells = "".join(f"<td>{_guesses(found) if found else ''}</td>" for found in same)
        rows.append(f"<td>{shown}<br><small>{escape(case['truth'])}</small></td>{cells}")
    return f"<h2>Blanks, filled</h2>{table(rows)}"


def _guesses(case: MaskedToken) -> str:
    said = []
    for token, share in case["guesses"]:
        mark = ' class="right"' if token == case["truth"] else ""
        said.append(f"<span{mark}>{escape(token)} {share:.0%}</span>")
    return "<br>".join(said)


def _line(
    name: str,
    entries: Sequence[Numbers],
    metric: str,
    *,
    dashed: bool = False,
    smooth: bool = False,
) -> Line:
    """Make the line of one metric over the steps."""
    # Null where a value was not finite, and missing where a term was not measured.
    found = [(e["step"], y) for e in entries if (y := e.get(metric)) is not None]
    xs, ys = [x for x, _ in found], [y for _, y in found]
    if smooth:
        ys = [sum(w) / len(w) for i in range(len(ys)) if (w := ys[max(0, i - SMOOTH + 1) : i + 1])]
    return Line(name, xs, ys, dashed=dashed, faint=smooth)
