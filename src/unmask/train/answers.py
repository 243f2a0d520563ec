"""What a task answered on held-out data -> HTML: scores, labels, confusion, the worst mistakes."""

from html import escape
from typing import TYPE_CHECKING, Any

from unmask.tasks.base import Mistake

if TYPE_CHECKING:
    from unmask.train.scores import Scored

SHOWN = 600  # characters of a text


def answers_of(scored: "Scored") -> str:
    """All that is shown of one task."""
    detail, html = scored.detail, scores_table(scored.scores)
    if detail.table:
        html += f"<h3>By label</h3>{label_table(detail.table)}"
    if detail.confusion:
        html += f"<h3>What was taken for what</h3>{confusion_table(detail.confusion)}"
    if detail.mistakes:
        html += f"<h3>The worst mistakes</h3>{mistake_table(detail.mistakes)}"
    return html


def scores_table(scores: dict[str, float]) -> str:
    """Every metric of the best step."""
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="n">{value:.4f}</td></tr>'
        for name, value in scores.items()
    )
    return f"<table>{rows}</table>"


def label_table(rows: list[dict[str, Any]]) -> str:
    """Precision, recall and F1 of each label."""
    names = list(rows[0])
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(row[name]) for name in names) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="n">{value:.3f}</td>'
    return (
        f'<td class="n">{value:,}</td>' if isinstance(value, int) else f"<td>{escape(value)}</td>"
    )


def confusion_table(confusion: dict[str, Any]) -> str:
    """Counts, the darker the larger their share of the row; rows are the truth."""
    names, counts = confusion["names"], confusion["counts"]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = ""
    for name, row in zip(names, counts, strict=True):
        total = max(sum(row), 1)
        cells = "".join(
            f'<td class="n" style="background:rgb(37 99 235 / {count / total:.2f})">{count:,}</td>'
            for count in row
        )
        body += f"<tr><th>{escape(name)}</th>{cells}</tr>"
    return f"<table><tr><th>truth \\ said</th>{head}</tr>{body}</table>"


def mistake_table(mistakes: list[Mistake]) -> str:
    """The worst first."""
    rows = "".join(
        f"<tr><td>{escape(m.text[:SHOWN])}{'...' if len(m.text) > SHOWN else ''}<br>"
        f"<small>{escape(m.where)}</small></td><td>{escape(m.truth)}</td><td>{escape(m.said)}</td>"
        f'<td class="n">{m.badness:.3f}</td></tr>'
        for m in mistakes
    )
    return f"<table><tr><th>text</th><th>truth</th><th>said</th><th></th></tr>{rows}</table>"
