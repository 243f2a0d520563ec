"""Files of labelled data -> a task and its records, to learn from and to be scored on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from unmask.data.batches import Batch
from unmask.data.columns import Columns, infer
from unmask.data.lines import REFUSE, Watcher
from unmask.data.statistics import leaks
from unmask.errors import DataError, SettingsError
from unmask.tasks import TASKS
from unmask.tasks.base import Task, Window, batch_of
from unmask.train.ingredients import Tokens
from unmask.train.recipe import Choice, Recipe
from unmask.train.site import Site
from unmask.train.sources import Shuffled

Rows = str | Path | Sequence[Mapping[str, Any]]  # a file, or what would be the lines of a JSONL


@dataclass(frozen=True)
class Labelled:
    """A task, and the records that pose it."""

    task: Task
    train: Sequence[Any]
    dev: Sequence[Any]
    notes: Sequence[str] = ()  # what was inferred about the files


@dataclass(frozen=True)
class LabelledFiles:
    """Where labelled data is."""

    train: Rows
    dev: Rows
    columns: Columns = Columns()
    watcher: Watcher = REFUSE

    def read(self, choice: Choice) -> Labelled:
        """Read both files, and the task that the first one poses."""
        if choice.name not in TASKS:
            raise SettingsError(
                f"recipe [task]: {choice.name} is not learned from labels. The tasks are "
                f"{', '.join(TASKS)}."
            )
        kind, columns, notes = TASKS[choice.name], self.columns, []
        with _file(self.train, "train") as train, _file(self.dev, "dev") as dev:
            if kind.tabular:
                columns = infer(train, columns)
                notes.append(f"{train}: {columns.said()}")
            records = {}
            for path in (train, dev):
                records[path] = list(kind.read(path, columns, self.watcher, choice.settings))
                if not records[path]:
                    raise DataError(f"{path}: nothing to learn from in it. Is it the right file?")
                notes.append(f"{path}: {len(records[path]):,} examples")
        task = kind.learn(choice.settings, records[train])
        for known in records.values():
            task.check(known)
        notes += leaks(records[train], records[dev], dev)
        return Labelled(task, records[train], records[dev], notes)


@contextmanager
def _file(rows: Rows, name: str) -> Iterator[Path]:
    """A file as it is; rows as a file, so that they are read and checked like one."""
    if isinstance(rows, str | Path):
        yield Path(rows)
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        lines = "".join(json.dumps(dict(row)) + "\n" for row in rows)
        path.write_text(lines, encoding="utf-8")
        yield path


def window_source(
    part: Labelled, tokens: Tokens, recipe: Recipe, site: Site, *, term: str | None = None
) -> Shuffled:
    """The windows of a task's training data; reports what was read and what was cut."""
    for line in part.notes:
        site.folder.say(line)
    windows, cut = windows_of(part.task, part.train, tokens)
    if cut:
        site.folder.say(
            f"{cut:,} texts are longer than {tokens.max_length} tokens and lose their end"
        )
    site.folder.say(f"{len(windows):,} windows, {recipe.loop.batch_size} in each step")
    pad = tokens.source.vocabulary.pad

    def lay_out(some: Sequence[Window], seed: int, progress: float) -> Batch:
        return batch_of(part.task, some, pad_id=pad, term=term)

    return Shuffled([[window] for window in windows], lay_out, recipe)


def windows_of(task: Task, records: Sequence[Any], tokens: Tokens) -> tuple[list[Window], int]:
    """All windows of the training data, laid out tightly, and how many texts were cut."""
    windows, cut = [], 0
    for _, some in task.windows(records, tokens.source, tokens.max_length):
        for window in some:
            cut += window.cut > 0
            windows.append(
                replace(
                    window,
                    about=None,  # is for answers
                    ids=np.asarray(window.ids, dtype=np.int32),  # type: ignore[arg-type]
                    segments=np.asarray(window.segments, dtype=np.int8),  # type: ignore[arg-type]
                )
            )
    return windows, cut
