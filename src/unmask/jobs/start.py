"""Task, model and files -> a fine-tuning: what the command line and `unmask.finetune` call."""

import os
from collections.abc import Sequence
from pathlib import Path

from unmask.jobs.finetune import Finetune
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.search import search
from unmask.jobs.seeds import run_seeds
from unmask.jobs.settings_read import task_recipe
from unmask.jobs.summary import say_summary
from unmask.system.console import Console
from unmask.system.errors import SettingsError
from unmask.train.compose import compose
from unmask.train.run import Run, RunOptions


def finetune_files(
    task: str,
    model: str | Path | None,
    files: LabelledFiles,
    out: Path,
    changes: Sequence[str] = (),
    console: Console | None = None,
    options: RunOptions = RunOptions(),
    *,
    seeds: int = 1,
    trials: int = 0,
) -> dict[str, object]:
    """Fine-tune a model for a task: once, with several seeds, or with a search for settings."""
    console = console or Console()
    if seeds > 1 and trials:
        raise SettingsError(
            "--seeds and --search cannot be combined. Search first, then train the best settings "
            "with several seeds."
        )
    if (seeds > 1 or trials) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingsError(
            "several runs cannot share one torchrun. Start them one at a time with --seed, or "
            "without torchrun."
        )
    scope, source = task_recipe(task)
    recipe = compose(scope, source, changes, console=console)
    job = Finetune(model, files, scope=scope)
    recipe = job.with_split(recipe)  # now: all seeds or trials are scored on the same records
    if trials:
        return search(job, recipe, out, trials, console, options)
    if seeds > 1:
        return run_seeds(job, recipe, out, seeds, console, options)
    outcome = Run(job, recipe, out, console, options).go()
    say_summary(console, job, outcome)
    return outcome.summary
