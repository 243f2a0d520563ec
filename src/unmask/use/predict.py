"""Records of a file -> answers, one JSON object a line, in steady memory; and their scores.

Without a file, lines of standard input: a text, or a JSON object with what the task asks about.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unmask.console import Console
from unmask.data.columns import Columns, Sample, infer
from unmask.data.lines import REFUSE, Watcher, kind_of, read_lines, whole
from unmask.data.questions import Question
from unmask.data.tags import sentence_of
from unmask.errors import DataError
from unmask.settings import parse_json
from unmask.tasks.base import Detail, Tally, Task
from unmask.use.model import Model

NEEDS = {"qa": ("question", "context")}  # what a line must have; "text" for any other task


def predict_lines(
    model: Model,
    source: str,
    columns: Columns,
    watcher: Watcher = REFUSE,
    say: Callable[[str], None] = Console().say,
) -> Iterator[dict[str, Any]]:
    """The answers to a file, or to the lines of standard input ("-") or of a .txt."""
    for answer in model.predict(asked(model.task, source, columns, watcher, say)):
        yield asdict(answer)


def asked(
    task: Task,
    source: str | Path,
    columns: Columns,
    watcher: Watcher = REFUSE,
    say: Callable[[str], None] = Console().say,
    *,
    labelled: bool = False,
) -> Iterator[Any]:
    """What a file asks a task about; where it is `labelled`, with the right answers."""
    if not labelled and kind_of(source, None) == ".txt":  # standard input, too
        return _from_lines(task.name, str(source), columns, watcher)
    if task.tabular:
        columns = infer(source, columns, labelled=labelled)
        say(f"{source}: {columns.said()}")
    return task.read(source, columns, watcher, task.how)


def _from_lines(name: str, source: str, columns: Columns, watcher: Watcher) -> Iterator[Any]:
    """One record for every line, blank ones included, so that answer N belongs to line N."""
    for number, line in read_lines(source, watcher):
        where = f"{'standard input' if source == '-' else source}:{number}"
        try:
            record = record_of(name, line, where, columns, number)
        except DataError as error:
            watcher.bad(error, line)
            continue
        if not line.strip():
            watcher.blank()
        yield record


def record_of(name: str, line: str, where: str, columns: Columns, number: int) -> Any:
    """A line as the task's record: an object, or a text that is all there is."""
    needed = NEEDS.get(name, ("text",))
    table: dict[str, object] = {}
    if line.lstrip().startswith("{"):
        table = parse_json(line, where=where, kind=DataError)
        texts = _texts(needed, table, columns, where)
    elif needed == ("text",):  # a blank line is an empty text
        texts = {"text": whole(line, where)}
    else:
        found = f"'{line:.40}' is no JSON object" if line.strip() else "the line is blank"
        raise DataError(f"{where}: {found}; need a JSON object with {' and '.join(needed)}.")
    if name == "qa":
        id = str(table.get("id", where))
        return Question(id, texts["question"], texts["context"], None, where)
    if name == "ner":
        return replace(sentence_of(texts["text"], where), document=number)
    return Sample(texts["text"], texts.get("second"), None, where)


def _texts(
    needed: Sequence[str], table: dict[str, object], columns: Columns, where: str
) -> dict[str, str]:
    """The texts of an object that a task needs, by what they are."""
    texts: dict[str, str] = {}
    for what in (*needed, "second"):
        key = columns.given().get(what, what)
        value = table.get(key)
        if value is None and key == "second":
            continue
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: '{key}' is {value!r:.60}; need a text. Add it.")
        texts[what] = whole(value, where)
    return texts


def evaluate_file(
    model: Model,
    source: str | Path,
    columns: Columns,
    watcher: Watcher = REFUSE,
    say: Callable[[str], None] = Console().say,
) -> tuple[dict[str, float], Detail, Sequence[Any]]:
    """The scores of a model on a labelled file, what else is worth seeing, and its answers."""
    task = model.task
    records = list(asked(task, source, columns, watcher, say, labelled=True))
    if not records:
        raise DataError(f"{source}: nothing to score in it. Is it the right file?")
    task.check(records)
    tally = Tally()
    said = list(model.predict(records, tally))
    scores = {"loss": tally.mean, **task.score(records, said)}
    return scores, task.detail(records, said), said
