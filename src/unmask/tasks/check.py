"""Data file -> its faults, warnings and contents: the work behind `unmask check`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from unmask.data.labelled.columns import Columns
from unmask.data.labelled.conll import Entity
from unmask.data.labelled.tables import TABLES
from unmask.data.read.lines import IGNORE, REFUSE, ErrorPolicy, file_format, read_lines
from unmask.system.errors import DataError
from unmask.system.plugins import find_class, known_names
from unmask.system.settings import validate
from unmask.tasks import TASKS
from unmask.tasks.base import RecordLike, Task

LOOKED_AT = 50  # lines from which the task is guessed
SHOWN = 20  # labels, and repeated texts, that are listed
RARE = 5  # a label with fewer examples gets a warning


@dataclass
class FileCheck(ErrorPolicy):
    """The findings about one file.

    It is also the error policy of the reader: a bad record is noted and reading continues, so one
    check lists every fault.
    """

    task: str
    facts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # a run would stop at these

    def bad(self, error: DataError, raw: str = "") -> None:
        """Record a fault."""
        self.faults.append(str(error))


def examine(
    path: Path,
    *,
    task: str | None = None,
    columns: Columns = Columns(),
    train: Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> FileCheck:
    """Read a whole file and report what it holds and every fault in it.

    With `train`, labels are checked against those of the training file, and examples that occur in
    both files are counted. `settings` are the recipe's `[task]` settings.
    """
    name = task or guess_task(path)
    task_class: type[Task[RecordLike, Any]] = find_class("task", TASKS, name)
    task_class.Ask.check_columns(columns, labelled=True)
    report = FileCheck(name)
    config = validate(task_class.Config, settings or {}, where="task")
    columns, notes = task_class.resolve_columns([path], columns)
    report.facts += notes
    records = list(task_class.read([path], columns, report, config))
    report.facts.append(f"{len(records):,} examples for {name}")
    if not records:
        report.faults.append(f"{path}: no examples found. Is it the right file?")
        return report
    # An error in the training file is one more fault: the report on `path` must still be printed.
    try:
        examples = (
            records if train is None else list(task_class.read([train], columns, REFUSE, config))
        )
        if not examples:
            raise DataError(f"{train}: no examples found. Is it the right file?")
        _note_refused(task_class.learn(config, examples), records, report)
    except DataError as error:
        report.bad(error)
    else:
        seen = set() if train is None else {record.key for record in examples}
        if shared := sum(record.key in seen for record in records):
            report.warnings.append(f"{shared:,} of {len(records):,} examples are also in {train}")
    _note_labels(records, report)
    _note_repeated(records, report)
    return report


def guess_task(path: Path) -> str:
    """Guess a file's task from its ending and its first lines."""
    ending = file_format(path, None)
    lines: list[str] = []
    # Other tables, such as parquet, may be binary; tasks that read tables open these themselves.
    if ending not in TABLES or ending == ".jsonl":
        lines = [text for _, text in islice(read_lines(path, IGNORE), LOOKED_AT)]
    # `classify` stands first in TASKS and accepts any table, so it must be asked last, and plugins
    # first.
    for name in reversed(known_names("task", TASKS)):
        task_class: type[Task[Any, Any]] = find_class("task", TASKS, name)
        if task_class.recognises(path, ending, lines):
            return name
    raise DataError(f"{path}: cannot tell which task the file is for. Set --task.")


def _note_refused(
    task: Task[RecordLike, Any], records: Sequence[RecordLike], report: FileCheck
) -> None:
    """Note the records that the task refuses; it may have learned its labels from another file."""
    # One record at a time: `check` raises at the first bad record, and all are to be listed.
    for record in records:
        try:
            task.check([record])
        except DataError as error:
            report.bad(error)


def _note_labels(records: Sequence[RecordLike], report: FileCheck) -> None:
    counts = Counter(label for record in records for label in _labels_of(record))
    if not counts:
        return
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(SHOWN))
    more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    report.facts.append(f"labels: {shown}{more}")
    rare = [name for name, count in counts.items() if count < RARE]
    if rare:
        listed = ", ".join(rare[:SHOWN])
        report.warnings.append(f"labels with fewer than {RARE} examples: {listed}")


def _labels_of(record: RecordLike) -> list[str]:
    labels = _label_of(record)
    if isinstance(labels, list):
        return labels
    entities: Sequence[Entity] = getattr(record, "entities", None) or ()
    return [entity.label for entity in entities]


def _label_of(record: RecordLike) -> object:
    """Return the label of a record; several labels are sorted, because their order is free."""
    label: object = getattr(record, "label", None)
    return sorted(map(str, label)) if isinstance(label, tuple) else label


def _note_repeated(records: Sequence[RecordLike], report: FileCheck) -> None:
    """Warn about texts that occur more than once.

    A repeated text counts twice in training; with different labels it cannot be learned.
    """
    first: dict[tuple[str, ...], RecordLike] = {}
    conflicts: list[str] = []
    for record in records:
        earlier = first.setdefault(record.key, record)
        earlier_label, label = _label_of(earlier), _label_of(record)
        if earlier_label != label:
            conflicts.append(
                f"{record.where}: the same text as {earlier.where}, with a different label: "
                f"{earlier_label} there, {label} here"
            )
    report.warnings += conflicts[:SHOWN]
    if len(conflicts) > SHOWN:
        report.warnings.append(f"{len(conflicts) - SHOWN:,} more texts with two different labels")
    repeated = len(records) - len(first)
    if repeated:
        report.warnings.append(f"{repeated:,} examples are duplicates")
