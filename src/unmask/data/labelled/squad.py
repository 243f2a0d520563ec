"""Question files -> questions with their passages and answers, with every offset checked.

    .json     SQuAD, version 1.1 or 2.0: articles, paragraphs, questions
    .jsonl    an object per line: question, context and, where known, answers

An answer is a span of its passage: text and answer_start, in characters. In .jsonl, the answers are
a list of such objects, or one object with two lists as in the `datasets` library.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unmask.data.labelled.columns import Columns
from unmask.data.read.json_lines import field_of, list_of, object_with, read_objects, text_of
from unmask.data.read.lines import REFUSE, ErrorPolicy, file_format, first_line, open_bytes
from unmask.system.errors import DataError
from unmask.system.settings import parse_json

QUESTIONS = (".json", ".jsonl")


@dataclass(frozen=True, slots=True)
class Span:
    """An answer as a span of its passage."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Offset of the first character after the span."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a passage; answers are None where they are not known."""

    id: str
    question: str
    context: str
    answers: tuple[Span, ...] | None  # empty: the passage has no answer
    where: str

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the record among duplicates."""
        return self.question, self.context


def read_questions(
    path: str | Path, watcher: ErrorPolicy = REFUSE, columns: Columns = Columns()
) -> Iterator[Question]:
    """Yield the questions of a file in order; no id may occur twice."""
    squad = file_format(path, QUESTIONS) == ".json"
    if squad:
        columns.refuse(path, "SQuAD's format has no columns")
    seen: dict[str, str] = {}
    questions = (
        _read_squad(Path(path), watcher) if squad else _read_json_lines(path, watcher, columns)
    )
    for question in questions:
        first_place = question.where
        if question.answers is not None:  # ids matter only where answers are scored
            first_place = seen.setdefault(question.id, question.where)
        if first_place == question.where:
            yield question
        else:
            error = DataError(
                f"{question.where}: the id '{question.id:.60}' is already used by {first_place}; "
                "need a different one for each question. Change it."
            )
            watcher.bad(error, question.question)


def _read_squad(path: Path, watcher: ErrorPolicy) -> Iterator[Question]:
    try:
        with open_bytes(path, watcher) as file:
            table = parse_json(file.read(), where=str(path), kind=DataError)
    except (OSError, EOFError, zlib.error) as cause:
        raise DataError(
            f"{path}: cannot be read to its end: {first_line(cause)} Download it again."
        ) from None
    for number, article in enumerate(list_of(table, "data", str(path))):
        for paragraph, where in _items(article, "paragraphs", f"{path}: data[{number}]", watcher):
            for record, record_where in _items(paragraph, "qas", where, watcher):
                try:
                    yield _question(record, text_of(paragraph, "context", where), record_where)
                except DataError as error:
                    watcher.bad(error, str(record))


def _items(
    table: object, key: str, where: str, watcher: ErrorPolicy
) -> Iterator[tuple[object, str]]:
    """Yield the items of a list in SQuAD's tree with their places; nothing if it is no list."""
    try:
        parts = list_of(table, key, where)
    except DataError as error:
        watcher.bad(error, str(table))
        return
    yield from ((part, f"{where}.{key}[{number}]") for number, part in enumerate(parts))


def _read_json_lines(
    path: str | Path, watcher: ErrorPolicy, columns: Columns
) -> Iterator[Question]:
    def read_question(fields: dict[str, object], where: str, text: str) -> Question:
        record = columns.renamed(fields)
        return _question({"id": where, **record}, text_of(record, "context", where), where)

    return read_objects(path, watcher, read_question)


def _question(value: object, context: str, where: str) -> Question:
    record = object_with("question", value, where)
    question, id = text_of(record, "question", where), str(field_of(record, "id", where))
    where = where if id == where else f"{where} (id {id:.60})"
    impossible = record.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise DataError(f"{where}: 'is_impossible' is {impossible!r:.60}; need true or false.")
    if "answers" not in record:
        return Question(id, question, context, () if impossible else None, where)
    answers = tuple(_span(answer, context, where) for answer in _answers(record, where))
    if impossible and answers:
        raise DataError(
            f"{where}: 'is_impossible' is true, but there are {len(answers)} answers; need one or "
            "the other. Remove the answers, or set it to false."
        )
    if "is_impossible" in record and not impossible and not answers:
        raise DataError(
            f"{where}: 'is_impossible' is false, but there is no answer. Add one, or set it to "
            "true."
        )
    return Question(id, question, context, answers, where)


def _answers(record: dict[str, object], where: str) -> list[object]:
    answers = record["answers"]
    if isinstance(answers, dict):  # two parallel lists
        texts, starts = (list_of(answers, name, where) for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise DataError(
                f"{where}: {len(texts)} answers and {len(starts)} offsets; need one offset per "
                "answer."
            )
        pairs = zip(texts, starts, strict=True)
        return [{"text": text, "answer_start": start} for text, start in pairs]
    return list_of(record, "answers", where)


def _span(answer: object, context: str, where: str) -> Span:
    """Return an answer as a span, after checking that it stands at its offset in the passage."""
    text, start = text_of(answer, "text", where), field_of(answer, "answer_start", where)
    if type(start) is not int:  # not isinstance: True is an int too
        raise DataError(f"{where}: 'answer_start' is {start!r:.60}; need an integer.")
    if start >= 0 and context[start : start + len(text)] == text:
        return Span(text, start)
    if text not in context:
        raise DataError(
            f"{where}: the answer '{text:.60}' does not occur in its passage; need an exact "
            "excerpt. Fix the answer, or remove it."
        )
    actual = context[max(start, 0) : max(start, 0) + len(text)]
    raise DataError(
        f"{where}: the answer '{text:.60}' should begin at {start}, but the passage has "
        f"'{actual:.60}' there; it begins at {_nearest(context, text, start)}"
        f"{_offset_hint(context, text, start)}. Fix 'answer_start'."
    )


def _nearest(context: str, text: str, start: int) -> int:
    """Return the occurrence of the answer that is nearest to its wrong offset."""
    matches = re.finditer(f"(?={re.escape(text)})", context)  # they may overlap
    # A lookahead consumes nothing, so overlapping occurrences are found too.
    return min((match.start() for match in matches), key=lambda offset: abs(offset - start))


def _offset_hint(context: str, text: str, start: int) -> str:
    """Say in what units an offset was counted, if those were not characters."""
    if start < 0:
        return ""
    for unit, encoding, unit_size in (("bytes", "utf-8", 1), ("UTF-16 units", "utf-16-le", 2)):
        raw, answer = (part.encode(encoding, "surrogatepass") for part in (context, text))
        if raw[unit_size * start :].startswith(answer):
            return f" (offsets seem to count {unit}; need characters)"
    return ""
