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
    sections, charts = "", []
    for name, task_scores in (scored or {}).items():
        lines = [_line(metric, held, metric_name(name, metric)) for metric in task_scores.scores]
        title = f"Scores on held-out data{f': {name}' if name else ''}"
        charts.append(Chart(title, lines))
        sections += f"<h2>{escape(title)}</h2>{charts[-1].svg()}{task_section(task_scores)}"
    run_charts = charts_of(metrics)
    folder.put(CURVES, stacked([*run_charts[:1], *charts] if charts else run_charts[:3]))
    name = folder.path.absolute().name  # absolute, because the name of "." is empty
    folder.put(REPORT, report_page(name, metrics, folder.recipe, warnings, extra=sections))


def charts_of(metrics: list[dict[str, Any]]) -> list[Chart]:
    """Make the charts of a run from its metrics; those without data are skipped."""
    train, held = of_kind(metrics, "train"), of_kind(metrics, "eval")
    predicted = _term_names(held)
    main = next(iter(predicted), "loss")
    losses = [
        _line("training", train, main, smooth=True),
        _line("held out", held, main),
        _line("unigram", held, "unigram_loss", dashed=True),
        _line("ln V", held, "ln_v", dashed=True),
    ]
    charts = [Chart(f"Loss on {predicted.get(main, 'the training data')}", losses)]
    for term, description in predicted.items():
        if f"{term}_accuracy" in held[-1]:
            name, baseline = _baseline(term, main, held[-1])
            accuracy = [_line("held out", held, f"{term}_accuracy")]
            accuracy.append(_line(name, held, baseline, dashed=True))
            charts.append(Chart(f"Accuracy on {description}", accuracy, percent=True))
        elif term != main:  # a term without an accuracy
            charts.append(Chart(f"Loss on {description}", [_line("held out", held, term)]))
    charts += [
        Chart("Tokens per second", [_line("tokens", train, "tokens_per_second")]),
        Chart("Learning rate", [_line("learning rate", train, "learning_rate")]),
        Chart("Gradient norm", [_line("gradient norm", train, "grad_norm")]),
    ]
    return [chart for chart in charts if any(line.xs for line in chart.lines)]


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
    paragraphs = "".join(f'<p class="warn">{escape(line)}</p>' for line in warnings)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{escape(name)}</title><style>{STYLE}</style></head>'
        f"<body><h1>{escape(name)}</h1>{_summary(metrics)}{paragraphs}"
        f'<h2>Curves</h2><div class="charts">{charts}</div>{_predictions_section(metrics)}{extra}'
        f"<h2>Recipe</h2><pre>{escape(write_toml(recipe))}</pre></body></html>\n"
    )


def _summary(metrics: list[dict[str, Any]]) -> str:
    """Render length and speed of a run, and its last scores beside the baselines."""
    train, held = of_kind(metrics, "train"), of_kind(metrics, "eval")
    rows = [row for entry in train[-1:] for row in _progress_rows(entry)]
    rows += [row for entry in held[-1:] for row in _score_rows(entry, _term_names(held))]
    return table(
        f'{head_cells([name])}<td class="n">{escape(value)}</td><td>{escape(note)}</td>'
        for name, value, note in rows
    )


def _progress_rows(entry: Numbers) -> Iterator[Row]:
    speed = entry["tokens"] / max(entry["seconds"], 1e-9)
    yield "steps", f"{entry['step']:,}", f"{entry['tokens']:,} tokens"
    yield "time", f"{entry['seconds'] / 60:.1f} min", f"{speed:,.0f} tokens per second"


def _score_rows(entry: Numbers, targets: Mapping[str, str]) -> Iterator[Row]:
    main = next(iter(targets), "loss")
    if main in entry:
        baselines = {"unigram": "unigram_loss", "ln V": "ln_v"}
        compared = [f"{name} {entry[key]:.3f}" for name, key in baselines.items() if key in entry]
        yield "held-out loss", f"{entry[main]:.3f}", ", ".join(compared)
    for term, description in targets.items():
        if f"{term}_accuracy" in entry:
            name, baseline = _baseline(term, main, entry)
            accuracy = f"{entry[f'{term}_accuracy']:.1%}"
            yield f"accuracy, {description}", accuracy, f"{name}: {entry[baseline]:.1%}"
        elif term != main:
            yield f"held-out loss, {description}", f"{entry[term]:.3f}", ""


def _term_names(held: list[dict[str, Any]]) -> dict[str, str]:
    """Return what each loss term predicts, the main term first."""
    targets: dict[str, str] = held[-1].get("targets", {}) if held else {}
    return targets


def _baseline(term: str, main: str, entry: Mapping[str, object]) -> tuple[str, str]:
    """Return the baseline of an accuracy: its name, and its key in the metrics."""
    if term == main and "unigram_accuracy" in entry:
        return "unigram", "unigram_accuracy"
    return "chance", f"{term}_chance"


def _predictions_section(metrics: list[dict[str, Any]]) -> str:
    """Render how the predictions for the same masked tokens changed over the run."""
    held = [entry for entry in of_kind(metrics, "eval") if entry.get("masked_predictions")]
    if not held:
        return ""
    # Five columns fit the page: first, last and three evaluations between, fewer if they coincide.
    columns = sorted({round(i * (len(held) - 1) / 4) for i in range(5)})
    rows = [head_cells(["", *(f"step {held[i]['step']:,}" for i in columns)])]
    moments: list[list[MaskedToken]] = [held[i]["masked_predictions"] for i in columns]
    for case in moments[-1]:
        passage = escape(case["text"]).replace("[MASK]", "<mark>____</mark>")
        predictions = [
            next((other for other in moment if other["text"] == case["text"]), None)
            for moment in moments
        ]
        cells = "".join(
            f"<td>{_prediction_cell(prediction) if prediction else ''}</td>"
            for prediction in predictions
        )
        rows.append(f"<td>{passage}<br><small>{escape(case['truth'])}</small></td>{cells}")
    return f"<h2>Predictions for masked tokens</h2>{table(rows)}"


def _prediction_cell(case: MaskedToken) -> str:
    lines = []
    for token, probability in case["predictions"]:
        attribute = ' class="right"' if token == case["truth"] else ""
        lines.append(f"<span{attribute}>{escape(token)} {probability:.0%}</span>")
    return "<br>".join(lines)


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
    points = [(entry["step"], y) for entry in entries if (y := entry.get(metric)) is not None]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if smooth:
        ys = [
            sum(window) / len(window)
            for i in range(len(ys))
            if (window := ys[max(0, i - SMOOTH + 1) : i + 1])
        ]
    return Line(name, xs, ys, dashed=dashed, faint=smooth)
