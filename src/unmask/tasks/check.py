"""A data file -> everything that is wrong with it, and what it holds: `unmask check`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from unmask.data.columns import Columns, infer, is_fraction, read_samples
from unmask.data.lines import GLANCE, REFUSE, Watcher, kind_of, read_lines
from unmask.data.tags import scheme_of
from unmask.errors import DataError, SettingsError, unknown
from unmask.settings import build
from unmask.tasks import TASKS
from unmask.tasks.base import Task

LOOKED_AT = 50  # lines that tell what a file is
SHOWN = 20  # labels whose counts are given
RARE = 5  # examples of a label are few


@dataclass
class Examination(Watcher):
    """What was found. It writes down what is bad, and the reader goes on."""

    task: str
    facts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # what a run would refuse

    def bad(self, error: DataError, raw: str = "") -> None:
        """One more fault."""
        self.faults.append(str(error))


def examine(
    path: Path,
    *,
    task: str | None = None,
    columns: Columns = Columns(),
    train: Path | None = None,
    settings: dict[str, Any] | None = None,
) -> Examination:
    """Read all of a file, and the training data beside it if labels must be known from there.

    `settings` are the task's own, as a recipe has them.
    """
    name = task or guess_task(path)
    if name not in TASKS:
        raise SettingsError(unknown("task", name, TASKS))
    kind, found = TASKS[name], Examination(name)
    how = build(kind.settings, settings or {}, where="task")
    if kind.tabular:
        columns = infer(path, columns)
        found.facts.append(columns.said())
    elif name == "ner" and kind_of(path, None) != ".jsonl":
        found.facts.append(scheme_of(path))
    records = list(kind.read(path, columns, found, how))
    found.facts.append(f"{len(records):,} examples for {name}")
    if not records:
        found.faults.append(f"{path}: nothing to learn from in it. Is it the right file?")
        return found
    try:
        if train is None:
            kind.learn(how, records).check(records)
        else:
            known = list(kind.read(train, columns, REFUSE, how))
            _compare(kind.learn(how, known), records, known, train, found)
    except DataError as error:
        found.bad(error)
    _labels(records, found)
    _repeated(records, found)
    return found


def guess_task(path: Path) -> str:
    """What a file is for, by what stands in it."""
    ending = kind_of(path, None)
    if ending == ".json":
        return "qa"
    if ending in (".csv", ".tsv", ".parquet"):
        return _text_task(path)
    if ending != ".jsonl":
        return "ner"
    lines = [text for _, text in islice(read_lines(path, GLANCE), LOOKED_AT)]
    if any('"question"' in line and '"context"' in line for line in lines):
        return "qa"
    marks = ('"tokens"', '"entities"', '"spans"')
    return "ner" if any(mark in line for line in lines for mark in marks) else _text_task(path)


def _text_task(path: Path) -> str:
    """Numbers with a point are learned as numbers; everything else as names."""
    samples = islice(read_samples(path, infer(path, Columns()), GLANCE), LOOKED_AT)
    labels = [str(sample.label) for sample in samples]
    return "regress" if labels and all(map(is_fraction, labels)) else "classify"


def _compare(
    task: Task, records: Sequence[Any], known: Sequence[Any], train: Path, found: Examination
) -> None:
    """Can records be scored by a task that was learned from others, and are they other ones?"""
    for record in records:
        try:
            task.check([record])
        except DataError as error:
            found.bad(error)
    seen = {record.key for record in known}
    both = sum(record.key in seen for record in records)
    if both:
        found.warnings.append(f"{both:,} of {len(records):,} examples are in {train} too")


def _labels(records: Sequence[Any], found: Examination) -> None:
    counts = Counter(label for record in records for label in _labels_of(record))
    if not counts:
        return
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(SHOWN))
    more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    found.facts.append(f"labels: {shown}{more}")
    rare = [name for name, count in counts.items() if count < RARE]
    if rare:
        few = ", ".join(rare[:SHOWN])
        found.warnings.append(f"fewer than {RARE} examples: {few}")


def _labels_of(record: Any) -> list[str]:
    if isinstance(getattr(record, "label", None), tuple):
        return list(record.label)
    return [entity.label for entity in getattr(record, "entities", None) or ()]


def _repeated(records: Sequence[Any], found: Examination) -> None:
    """The same text twice is learned twice; with two answers it cannot be learned."""
    first: dict[Any, Any] = {}
    torn: list[str] = []
    for record in records:
        before = first.setdefault(record.key, record)
        if getattr(before, "label", None) != getattr(record, "label", None):
            torn.append(
                f"{record.where}: the same text as {before.where} with another answer: "
                f"{before.label} there, {record.label} here"
            )
    found.warnings += torn[:SHOWN]
    if len(torn) > SHOWN:
        found.warnings.append(f"{len(torn) - SHOWN:,} more such texts with two answers")
    repeated = len(records) - len(first)
    if repeated:
        found.warnings.append(f"{repeated:,} examples have occurred before")
