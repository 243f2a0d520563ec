"""File of records -> answers as JSON objects, in constant memory; labelled file -> metrics.

A line of plain text or of standard input is a text, or a JSON object with the task's fields.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.data.labelled.columns import Columns
from unmask.data.read.lines import REFUSE, ErrorPolicy, file_format, read_lines
from unmask.infer.model import Model
from unmask.system.console import Console
from unmask.system.errors import DataError
from unmask.tasks.base import Task, all_scores
from unmask.tasks.results import AnswerCounts, Detail

Say = Callable[[str], None]


def predict_lines(
    model: Model,
    source: str,
    columns: Columns,
    watcher: ErrorPolicy = REFUSE,
    say: Say = Console().say,
) -> Iterator[dict[str, Any]]:
    """Yield the answers to a file, or to standard input ("-"), as dictionaries for JSON."""
    task = model.task
    for answer in model.predict(read_records(task, source, columns, watcher, say)):
        yield task.plain(answer)


def read_records(
    task: Task[Any, Any],
    source: str | Path,
    columns: Columns,
    watcher: ErrorPolicy = REFUSE,
    say: Say = Console().say,
) -> Iterator[Any]:
    """Read the records of a file for prediction, without labels."""
    columns = resolve_columns(task, source, columns, say)
    if file_format(source, None) == ".txt":  # standard input, too
        return (record for record, _ in text_records(task, str(source), columns, watcher))
    return task.questions(source, columns, watcher)


def resolve_columns(
    task: Task[Any, Any], source: str | Path, columns: Columns, say: Say
) -> Columns:
    """Find out which column of a file without labels holds what, and report the choice."""
    task.Ask.check_columns(columns, labelled=False)
    if file_format(source, None) == ".txt":
        return columns
    columns, notes = task.resolve_columns([source], columns, labelled=False)
    for note in notes:
        say(f"{source}: {note}")
    return columns


def text_records(
    task: Task[Any, Any], source: str, columns: Columns, watcher: ErrorPolicy
) -> Iterator[tuple[Any, str]]:
    """Yield a record per line, with the line, so that answer N belongs to line N.

    Blank lines are included.
    """
    for number, line in read_lines(source, watcher):
        where = f"{'standard input' if source == '-' else source}:{number}"
        try:
            record = task.record(task.Ask.of_line(line, where, columns), where, number)
        except DataError as error:
            watcher.bad(error, line)  # raises the error, unless bad lines are skipped
            continue
        if not line.strip():
            watcher.blank()
        yield record, line


def evaluate_file(
    model: Model,
    sources: Sequence[str | Path],
    columns: Columns,
    watcher: ErrorPolicy = REFUSE,
    say: Say = Console().say,
    task: Task[Any, Any] | None = None,
) -> tuple[dict[str, float], Detail, Sequence[Any]]:
    """Score a model on labelled files; return its metrics, their details and the answers.

    `task` replaces the model's own task by one with other options.
    """
    task = task or model.task
    task.Ask.check_columns(columns, labelled=True)
    columns, notes = task.resolve_columns(sources, columns)
    for note in notes:
        say(f"{sources[0]}: {note}")
    # Metrics such as F1 and BLEU need all records and answers at once.
    records = list(task.read_files(sources, columns, watcher, task.config))
    if not records:
        raise DataError(f"{sources[0]}: it has no records to score. Is it the right file?")
    task.check(records)
    tally = AnswerCounts()
    answers = list(model.predict(records, tally, task))
    loss = tally.mean if sum(tally.counts) else None
    if loss is None:
        say(
            f"{sources[0]}: the loss is unknown, because the objective needs parts that are not "
            "in the model folder, or because every record is too long"
        )
    scores = {} if loss is None else {"loss": loss}
    scores |= all_scores(task, records, answers, loss)
    return scores, task.detail(records, answers), answers
