"""Files of labelled data -> a task with its training and held-out records."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unmask.data.batch import Batch
from unmask.data.corpus.statistics import leak_warning
from unmask.data.labelled.columns import Columns
from unmask.data.read.lines import REFUSE, ErrorPolicy
from unmask.evaluation.tasks import Labelled
from unmask.objectives.base import Objective
from unmask.system.errors import DataError, plural
from unmask.system.plugins import find_class
from unmask.tasks import TASKS
from unmask.tasks.base import Task, Window
from unmask.text.tokens import Tokenizers
from unmask.train.recipe import Choice, Recipe
from unmask.train.site import Site
from unmask.train.sources import ShuffledWindows

Rows = str | Path | Sequence[Mapping[str, Any]]  # a file, or objects like the lines of a JSONL file


@dataclass(frozen=True)
class LabelledFiles:
    """Training and held-out files of a task, and how to read their columns."""

    train: Rows | Sequence[Path]
    dev: Rows | Sequence[Path]
    columns: Columns = Columns()
    watcher: ErrorPolicy = REFUSE

    def read(self, choice: Choice) -> Labelled:
        """Read both sets; the training set determines the task, such as its labels."""
        task_class: type[Task[Any, Any]] = find_class("task", TASKS, choice.name)
        task_class.Ask.check_columns(self.columns, labelled=True)
        config = choice.settings
        with ExitStack() as later:
            train = later.enter_context(_files(self.train, "train"))
            dev = later.enter_context(_files(self.dev, "dev"))
            columns, notices = task_class.resolve_columns(train, self.columns)
            notes = [f"{train[0]}: {line}" for line in notices]
            record_sets = []
            for paths in (train, dev):
                records = list(task_class.read_files(paths, columns, self.watcher, config))
                if not records:
                    raise DataError(
                        f"{paths[0]}: no examples to learn from. Check that it is the right file."
                    )
                notes.append(f"{paths[0]}: {len(records):,} examples")
                record_sets.append(records)
        task = task_class.learn(config, record_sets[0])
        # The held-out records too: a label that training never saw could never be predicted.
        for records in record_sets:
            task.check(records)
        notes += leak_warning(record_sets[0], record_sets[1], dev[0])
        return Labelled(task, record_sets[0], record_sets[1], notes)


@contextmanager
def _files(rows: Rows | Sequence[Path], name: str) -> Iterator[list[Path]]:
    """Yield file paths; rows become a temporary JSONL file, to be read and checked like others."""
    if isinstance(rows, str | Path):
        rows = [Path(rows)]
    paths = [row for row in rows if isinstance(row, Path)]
    if paths:
        yield paths
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        lines = [json.dumps(dict(row)) + "\n" for row in rows if not isinstance(row, Path)]
        path.write_text("".join(lines), encoding="utf-8", newline="\n")
        yield [path]


def window_source(
    data: Labelled,
    tokens: Tokenizers,
    objective: Objective,
    recipe: Recipe,
    site: Site,
    *,
    term: str | None = None,
) -> ShuffledWindows:
    """Make the source of a task's training windows; log what was read, cut and skipped."""
    task, say = data.task, site.folder.say
    for line in data.notes:
        say(line)
    items: list[list[Window]] = []
    cut = 0
    skipped: list[str] = []  # file and line of each
    for record, windows in task.windows(data.train, tokens, learn=True):
        if not windows:
            skipped.append(record.where)
            continue
        # All windows stay in memory for the whole run, so they are kept as small arrays.
        compact = [window.compact() for window in windows]
        items += [compact] if task.grouped else [[window] for window in compact]
        cut += sum(window.cut > 0 for window in windows)
    if not items:
        raise DataError(
            f"no example has at most {tokens.max_length} tokens. Raise tokenizer.max_length and "
            "the model's max_length, or split the texts."
        )
    if cut:
        say(f"{cut:,} texts are longer than {tokens.max_length} tokens and are truncated")
    if skipped:
        examples = plural("example", len(data.train))
        say(
            f"{len(skipped):,} of {len(data.train):,} {examples} are skipped, because they have "
            f"more than {tokens.max_length} tokens; the first one is {skipped[0]}"
        )
    say(f"{len(items):,} windows; batch size {recipe.loop.batch_size}")

    def lay_out(windows: Sequence[Window]) -> Batch:
        return task.batch(windows, tokens, term)

    return ShuffledWindows(items, lay_out, objective, recipe, neighbours=task.neighbours)
