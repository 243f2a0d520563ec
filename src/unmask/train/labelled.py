"""Files of labelled data + a model -> a run: what the command line and `unmask.finetune` call."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import torch

from unmask.checkpoint.fetch import locate
from unmask.checkpoint.folder import load_folder
from unmask.data.columns import Columns
from unmask.data.lines import REFUSE, Watcher
from unmask.errors import SettingsError
from unmask.settings import build
from unmask.train.finetune import How, finetune, read_data
from unmask.train.search import search
from unmask.train.seeds import finetune_seeds
from unmask.train.tuning import Tuning, compose_tuning

Rows = str | Path | Sequence[Mapping[str, Any]]  # a file, or what would be the lines of a JSONL


def finetune_files(
    task: str,
    model: str | Path,
    train: Rows,
    dev: Rows,
    out: Path,
    *,
    columns: Columns | None = None,
    changes: Sequence[str] = (),
    seeds: int = 1,
    trials: int = 0,
    threads: int | None = None,
    watcher: Watcher = REFUSE,
    **how: Unpack[How],
) -> dict[str, Any]:
    """Train a model for a task; with several seeds, or after trials of settings."""
    if seeds > 1 and trials:
        raise SettingsError("several seeds and a search: one or the other. Search first.")
    if (seeds > 1 or trials) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingsError(
            "several runs in one torchrun: each needs one of its own. Start them one by one, with "
            "--seed, or without torchrun."
        )
    recipe = build(Tuning, compose_tuning(task, changes), where="recipe")
    with _file(train, "train") as learned, _file(dev, "dev") as scored:
        data = read_data(recipe.task, learned, scored, columns or Columns(), watcher)
    if threads:
        torch.set_num_threads(threads)
    folder = load_folder(locate(model))
    if trials:
        return search(folder, data, out, recipe, trials, **how)
    if seeds > 1:
        return finetune_seeds(folder, data, out, recipe, seeds, **how)
    return finetune(folder, data, out, recipe, **how)


@contextmanager
def _file(rows: Rows, name: str) -> Iterator[Path]:
    """A file as it is; rows as a file, so that they are read and checked like one."""
    if isinstance(rows, str | Path):
        yield Path(rows)
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        lines = "".join(dumps(dict(row)) + "\n" for row in rows)
        path.write_text(lines, encoding="utf-8")
        yield path
