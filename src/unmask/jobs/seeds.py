"""A job and several seeds -> mean and standard deviation of the scores, and the best model.

The output folder has a folder for each run, a summary, and the best model in `model/`, where a
single run has its model. A hyper-parameter search uses the same layout.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Protocol

from unmask.jobs.summary import Summarised, say_several, seed_rows
from unmask.system import written
from unmask.system.console import Console
from unmask.system.disk import check_output_folder, remove_leftovers, temporary_folder, write_file
from unmask.system.errors import FolderError
from unmask.system.written import RECIPE
from unmask.train.evaluator import METRIC
from unmask.train.recipe import Recipe
from unmask.train.run import Job, Run, RunOptions
from unmask.train.run_folder import MODEL, refuse_foreign_files

SUMMARY = "summary.json"


class SeedsJob(Job, Summarised, Protocol):
    """A job whose runs can be compared."""


def run_seeds(
    job: SeedsJob, recipe: Recipe, out: Path, count: int, console: Console, options: RunOptions
) -> dict[str, object]:
    """Run in OUT/seed-N, from the recipe's seed upwards; copy the best model to OUT/model."""
    names = [f"seed-{seed}" for seed in range(recipe.seed, recipe.seed + count)]
    refuse_unrelated_output(out, SUMMARY, names, options)
    # A stopped command resumes the runs in order: finished ones return their scores at once.
    scores_by_run: dict[str, dict[str, float]] = {}
    for seed, name in enumerate(names, start=recipe.seed):
        console.say(f"{name}:")
        run_recipe = recipe.model_copy(update={"seed": seed})
        scores_by_run[name] = run_one(
            job, run_recipe, out / name, console, options, resume=options.resume
        )
    metrics = [name for name in next(iter(scores_by_run.values())) if name != "step"]
    values = {name: [scores[name] for scores in scores_by_run.values()] for name in metrics}
    means = {name: mean(numbers) for name, numbers in values.items()}
    deviations = {name: stdev(numbers) if count > 1 else 0.0 for name, numbers in values.items()}
    best = max(scores_by_run, key=lambda name: scores_by_run[name][METRIC])
    summary = {"seeds": scores_by_run, "mean": means, "deviation": deviations, "best": best}
    publish_best(out, best, summary, SUMMARY, console)
    heads, rows = seed_rows(scores_by_run, means, deviations, best, job.main_metrics())
    say_several(console, job, out, heads, rows)
    return summary


def run_one(
    job: Job, recipe: Recipe, out: Path, console: Console, options: RunOptions, *, resume: bool
) -> dict[str, float]:
    """Carry out one of several runs and return its scores; `resume` continues it if it exists."""
    run_options = replace(options, resume=resume and (out / RECIPE).exists())
    return Run(job, recipe, out, console, run_options).go().summary


def refuse_unrelated_output(
    out: Path, summary: str, names: Sequence[str], options: RunOptions
) -> None:
    """Refuse a folder that holds something else, or in which files of the user would be lost.

    `names` are the folders of the runs.
    """
    check_output_folder(out, renamed=False)
    entries = {path.name for path in out.iterdir()} if out.is_dir() else set()
    several = summary in entries or any(name.startswith(("seed-", "trial-")) for name in entries)
    if entries and not several:
        raise FolderError(
            f"{out}: the folder is not empty and holds neither several seeds nor a search. Give "
            "another --out."
        )
    if RECIPE in entries:
        raise FolderError(f"{out}: the folder holds a single run. Give another --out.")
    if MODEL in entries:
        _survey_old_model(out, summary)  # now, and not after hours of training
    for name in names if options.overwrite else ():
        if (out / name / RECIPE).exists():
            refuse_foreign_files(out / name)


def _survey_old_model(out: Path, summary: str) -> written.FolderContents:
    """Survey what an earlier command left in OUT/model; refuse files that it did not write.

    Version 0.1 kept no list of what it wrote, but always wrote a summary before the model.
    """
    names = written.read_list(out)
    if names is None:
        names = [MODEL] if (out / summary).exists() else []
    contents = written.survey(out, {MODEL} & {*names})
    foreign = [name for name in contents.foreign if name.partition("/")[0] == MODEL]
    written.refuse_foreign(out, foreign)
    return contents


def publish_best(
    out: Path, best: str, summary: Mapping[str, object], name: str, console: Console
) -> None:
    """Copy the model of the best run to OUT/model, and write the summary."""
    target, source = out / MODEL, out / best / MODEL
    written.delete(_survey_old_model(out, name))
    written.add_to_list(out, MODEL)  # before it exists, so that a killed copy is still ours
    remove_leftovers(out, f".{MODEL}.tmp-*")
    with temporary_folder(target) as temporary:
        for member in sorted(written.files_of_folder(source)):
            if (source / member).is_file():  # a folder without a manifest has the usual names
                (temporary / member).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / member, temporary / member)
        temporary.rename(target)  # complete or not there at all
    write_listed_json(out, name, summary)
    console.say(f"the best model, of {best}, is in {target}")


def write_listed_json(folder: Path, name: str, table: Mapping[str, object]) -> None:
    """Write a JSON file, and list it as written by unmask."""
    written.add_to_list(folder, name)
    write_file(folder / name, (json.dumps(table, indent=1) + "\n").encode())
