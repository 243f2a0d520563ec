"""Records of a file -> answers, one JSON object a line, in steady memory; and their scores.

Without a file, lines of standard input: a text, or a JSON object with what the task asks about.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.data.columns import Columns, Sample, infer
from unmask.data.lines import REFUSE, Watcher, kind_of, read_lines
from unmask.data.questions import Question
from unmask.data.tags import sentence_of
from unmask.errors import DataError
from unmask.settings import parse_json
from unmask.tasks.base import Detail, answers
from unmask.use.model import Model

NEEDS = {  # what a line must have, by the task
    "classify": ("text",),
    "regress": ("text",),
    "qa": ("question", "context"),
    "ner": ("text",),
}


def predict_lines(
    model: Model, source: str, columns: Columns, watcher: Watcher = REFUSE
) -> Iterator[dict[str, Any]]:
    """The answers to a file, or to the lines of standard input ("-")."""
    records = _records(model, source, columns, watcher)
    for answer in model.predict(records):
        yield asdict(answer)


def _records(model: Model, source: str, columns: Columns, watcher: Watcher) -> Iterator[Any]:
    task = model.task
    lines = source == "-" or kind_of(source, None) == ".txt"
    if lines and task.name != "ner" or source == "-":
        yield from _from_lines(task.name, source, watcher)
        return
    if task.tabular:
        columns = infer(source, columns, labelled=False)
    yield from task.read(source, columns, watcher, task.how)


def _from_lines(name: str, source: str, watcher: Watcher) -> Iterator[Any]:
    for number, line in read_lines(source, watcher):
        if not line.strip():
            continue
        where = f"{'standard input' if source == '-' else source}:{number}"
        try:
            yield _record(name, line, where)
        except DataError as error:
            watcher.bad(error, line)


def _record(name: str, line: str, where: str) -> Any:
    """A line as the task's record: an object, or a text that is all there is."""
    if line.lstrip().startswith("{"):
        table = parse_json(line, where=where, kind=DataError)
    elif NEEDS[name] == ("text",):
        table = {"text": line}
    else:
        raise DataError(
            f"{where}: '{line:.40}' is no JSON object; need one with {' and '.join(NEEDS[name])}."
        )
    texts = {}
    for key in (*NEEDS[name], "second"):
        value = table.get(key)
        if value is None and key == "second":
            continue
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: '{key}' is {value!r:.60}; need a text. Add it.")
        texts[key] = value
    if name == "qa":
        id = str(table.get("id", where))
        return Question(id, texts["question"], texts["context"], None, where)
    if name == "ner":
        return sentence_of(texts["text"], where)
    return Sample(texts["text"], texts.get("second"), None, where)


def evaluate_file(
    model: Model, source: str | Path, columns: Columns, watcher: Watcher = REFUSE
) -> tuple[dict[str, float], Detail, Sequence[Any]]:
    """The scores of a model on a labelled file, what else is worth seeing, and its answers."""
    task = model.task
    if task.tabular:
        columns = infer(source, columns)
    records = list(task.read(source, columns, watcher, task.how))
    if not records:
        raise DataError(f"{source}: nothing to score in it. Is it the right file?")
    task.check(records)
    losses: Counter[str] = Counter()
    limit = model.network.config.max_length
    found = answers(model.network, model.tokenizer, task, records, limit=limit, losses=losses)
    said = [answer for _, answer in found]
    scores = {"loss": losses["loss"] / max(losses["count"], 1), **task.score(records, said)}
    return scores, task.detail(records, said), said
