"""Scores of a task on held-out data -> HTML tables: metrics, labels, confusion, mistakes."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

from unmask.system.settings import Settings
from unmask.tasks.results import Detail, Mistake

SHOWN = 600  # characters of a text, at most


@dataclass(frozen=True)
class TaskScores:
    """Scores of one task on held-out data, and the settings that were fitted to it."""

    name: str  # of the task
    metric: str  # the main score, which decides the best step
    settings: Settings
    scores: dict[str, float]
    detail: Detail


def task_section(scored: TaskScores) -> str:
    """Render everything that the report shows about one task."""
    detail, html = scored.detail, scores_table(scored.scores)
    if detail.table:
        html += f"<h3>By label</h3>{label_table(detail.table)}"
    if detail.confusion:
        html += f"<h3>Confusion matrix</h3>{confusion_table(detail.confusion)}"
    if detail.mistakes:
        html += f"<h3>Worst mistakes</h3>{mistake_table(detail.mistakes)}"
    return html


def table(rows: Iterable[str]) -> str:
    """Render a table from rows of HTML cells."""
    return f"<table>{''.join(f'<tr>{cells}</tr>' for cells in rows)}</table>"


def head_cells(names: Iterable[str]) -> str:
    """Render header cells."""
    return "".join(f"<th>{escape(name)}</th>" for name in names)


def scores_table(scores: dict[str, float]) -> str:
    """Render every metric as a row."""
    return table(f'{head_cells([name])}<td class="n">{scores[name]:.4f}</td>' for name in scores)


def label_table(rows: list[dict[str, str | float]]) -> str:
    """Render precision, recall and F1 of each label."""
    names = list(rows[0])
    return table(
        [head_cells(names), *("".join(_cell(row[name]) for name in names) for row in rows)]
    )


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    shown = f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
    return f'<td class="n">{shown}</td>'


def confusion_table(confusion: dict[str, Any]) -> str:
    """Render a confusion matrix: rows are true labels, darker cells a larger share of their row."""
    names: list[str] = confusion["names"]
    counts: list[list[int]] = confusion["counts"]
    rows = [head_cells(["label \\ prediction", *names])]
    for name, row in zip(names, counts, strict=True):
        total = max(sum(row), 1)
        cells = (
            f'<td class="n" style="background:rgb(37 99 235 / {count / total:.2f})">{count:,}</td>'
            for count in row
        )
        rows.append(head_cells([name]) + "".join(cells))
    return table(rows)


def mistake_table(mistakes: list[Mistake]) -> str:
    """Render the mistakes, worst first."""
    rows = [head_cells(["text", "label", "prediction", "severity"])]
    for mistake in mistakes:
        text = escape(mistake.text[:SHOWN]) + ("..." if len(mistake.text) > SHOWN else "")
        place = f"<td>{text}<br><small>{escape(mistake.where)}</small></td>"
        rows.append(
            place + _cell(mistake.truth) + _cell(mistake.prediction) + _cell(mistake.severity)
        )
    return table(rows)
