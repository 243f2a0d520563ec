"""Files and names -> a fine-tuning run: what the command line and `unmask.finetune` call."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.console import Console
from unmask.data.columns import Columns
from unmask.data.lines import REFUSE, Watcher
from unmask.errors import SettingsError
from unmask.jobs.finetune import Finetune
from unmask.jobs.labelled import LabelledFiles, Rows
from unmask.jobs.search import search
from unmask.jobs.seeds import run_seeds
from unmask.jobs.several import Several
from unmask.train.compose import compose
from unmask.train.run import Options, Run


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
    watcher: Watcher = REFUSE,
    console: Console | None = None,
    options: Options = Options(),
) -> dict[str, Any]:
    """Train a model for a task; with several seeds, or after trials of settings."""
    console = console or Console()
    if seeds > 1 and trials:
        raise SettingsError("several seeds and a search: one or the other. Search first.")
    if (seeds > 1 or trials) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingsError(
            "several runs in one torchrun: each needs one of its own. Start them one by one, with "
            "--seed, or without torchrun."
        )
    recipe = compose(Finetune.scope, task, changes, console=console)
    job = Finetune(model, LabelledFiles(train, dev, columns or Columns(), watcher))
    if trials:
        return search(job, recipe, out, trials, console, options)
    if seeds > 1:
        return run_seeds(job, recipe, out, seeds, console, options)
    outcome = Run(job, recipe, out, console, options).go()
    console.say(f"the model of step {outcome.summary['step']} is in {outcome.model}")
    return outcome.summary


def finetune_several(
    tasks: str | Path,
    model: str | Path,
    out: Path,
    changes: Sequence[str] = (),
    console: Console | None = None,
    options: Options = Options(),
) -> dict[str, Any]:
    """Train a model for the tasks of a recipe; a model folder for each in OUT/models."""
    console = console or Console()
    recipe = compose(Several.scope, str(tasks), changes, console=console)
    return Run(Several(model), recipe, out, console, options).go().summary
