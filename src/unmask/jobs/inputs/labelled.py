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
from unmask.data.labelled.split import DEV_SHARE, DevSplit, split_records
from unmask.data.read.lines import REFUSE, ErrorPolicy
from unmask.evaluation.tasks import Labelled
from unmask.objectives.base import Objective
from unmask.system.errors import DataError, SettingsError, plural
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
    dev: Rows | Sequence[Path] | None  # None: a share of the training set
    columns: Columns = Columns()
    watcher: ErrorPolicy = REFUSE

    @property
    def examples(self) -> list[Path]:
        """The held-out files, or else the training files; empty if they are rows of a program."""
        return _paths(self.train if self.dev is None else self.dev)

    def read(self, choice: Choice, *, share: float = DEV_SHARE, seed: int = 0) -> Labelled:
        """Read both sets; the training set determines the task, such as its labels.

        Without held-out files, `share` and `seed` decide which records are held out.
        """
        task_class: type[Task[Any, Any]] = find_class("task", TASKS, choice.name)
        task_class.Ask.check_columns(self.columns, labelled=True)
        config = choice.settings
        with ExitStack() as later:
            train = later.enter_context(_files(self.train, "train"))
            dev = [] if self.dev is None else later.enter_context(_files(self.dev, "dev"))
            columns, notices = task_class.resolve_columns(train, self.columns)
            notes = [f"{train[0]}: {line}" for line in notices]
            record_sets = []
            for paths in filter(None, (train, dev)):
                records = list(task_class.read_files(paths, columns, self.watcher, config))
                if not records:
                    raise DataError(
                        f"{paths[0]}: no examples to learn from. Check that it is the right file."
                    )
                notes.append(f"{paths[0]}: {len(records):,} examples")
                record_sets.append(records)
        split = None
        if self.dev is None:
            split = _split(task_class, config, record_sets[0], share, seed)
            notes[-1] += f": {split.described()}"
            every = record_sets[0]
            record_sets = [[every[i] for i in part] for part in (split.train, split.dev)]
        task = task_class.learn(config, record_sets[0])
        # The held-out records too: a label that training never saw could never be predicted.
        for records in record_sets:
            task.check(records)
        notes += leak_warning(record_sets[0], record_sets[1], (dev or train)[0])
        facts = split.facts if split else None
        return Labelled(task, record_sets[0], record_sets[1], notes, facts)


def _split(
    task_class: type[Task[Any, Any]], config: Any, records: Sequence[Any], share: float, seed: int
) -> DevSplit:
    """Hold out a share of the records; those with a label of their own stay training data."""
    groups = task_class.groups(records)
    strata = [task_class.stratum(record) for record in records]
    kept: set[int] = set()  # records that cannot be held out
    while split := split_records(
        records, groups, strata, share=share, seed=seed, only_training=kept
    ):
        task = task_class.learn(config, [records[place] for place in split.train])
        unknown = [place for place in split.dev if not _accepts(task, records[place])]
        if not unknown:
            return split
        kept.update(unknown)
    raise DataError(
        f"{records[0].where}: no dev data can be split off {len(records):,} examples: they are one "
        "group, or each has a label of its own. Give dev data, or more examples."
    )


def _accepts(task: Task[Any, Any], record: Any) -> bool:
    try:
        task.check([record])
    except DataError:
        return False
    return True


def with_split_settings(recipe: Recipe, *, splits: bool) -> Recipe:
    """Fill in how dev data are split off; refuse such settings if dev data are given.

    The seed of the split is fixed here and stored with the recipe, so that several seeds or a
    search train and score on the same records.
    """
    share, seed = recipe.data.dev_share, recipe.data.dev_seed
    if splits:
        share, seed = share or DEV_SHARE, recipe.seed if seed is None else seed
        return recipe.changed(data={"dev_share": share, "dev_seed": seed})
    if share is not None or seed is not None:
        name = "dev_share" if share is not None else "dev_seed"
        raise SettingsError(
            f"data.{name} is set, but dev data are given, so that none are split off the training "
            "data. Leave one of them out."
        )
    return recipe


@contextmanager
def _files(rows: Rows | Sequence[Path], name: str) -> Iterator[list[Path]]:
    """Yield file paths; rows become a temporary JSONL file, to be read and checked like others."""
    if (paths := _paths(rows)) or isinstance(rows, str | Path):
        yield paths
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        lines = [json.dumps(dict(row)) + "\n" for row in rows if not isinstance(row, Path)]
        path.write_text("".join(lines), encoding="utf-8", newline="\n")
        yield [path]


def _paths(rows: Rows | Sequence[Path]) -> list[Path]:
    if isinstance(rows, str | Path):
        rows = [Path(rows)]
    return [row for row in rows if isinstance(row, Path)]


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
