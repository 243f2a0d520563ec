"""The same fine-tuning with several seeds: mean and deviation, and the model of the best one."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from unmask.console import Console
from unmask.disk import check_output_folder, sweep, unfinished, write_file
from unmask.errors import FolderError
from unmask.train import written
from unmask.train.evaluator import METRIC
from unmask.train.folder import MODEL, refuse_foreign_files
from unmask.train.recipe import Recipe
from unmask.train.run import Job, Options, Run
from unmask.train.written import RECIPE

SUMMARY = "summary.json"


def run_seeds(
    job: Job, recipe: Recipe, out: Path, count: int, console: Console, options: Options
) -> dict[str, Any]:
    """Run in OUT/seed-N, from the recipe's seed on; the best model is copied to OUT/model."""
    names = [f"seed-{seed}" for seed in range(recipe.seed, recipe.seed + count)]
    refuse_other(out, SUMMARY, names if options.overwrite else ())
    found: dict[str, dict[str, Any]] = {}
    for seed, name in enumerate(names, start=recipe.seed):
        console.say(f"{name}:")
        started = (out / name / RECIPE).exists()
        own = replace(options, resume=options.resume and started)
        run = recipe.model_copy(update={"seed": seed})
        found[name] = Run(job, run, out / name, console, own).go().summary
    metrics = [name for name in next(iter(found.values())) if name != "step"]
    values = {name: [scores[name] for scores in found.values()] for name in metrics}
    best = max(found, key=lambda name: found[name][METRIC])
    summary: dict[str, Any] = {
        "seeds": found,
        "mean": {name: mean(some) for name, some in values.items()},
        "deviation": {name: stdev(some) if count > 1 else 0.0 for name, some in values.items()},
        "best": best,
    }
    place = copy_best(out, best, SUMMARY)
    written.claim(out, SUMMARY)
    write_file(out / SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())
    for name in metrics:
        console.say(f"{name}: {summary['mean'][name]:.4f} +- {summary['deviation'][name]:.4f}")
    console.say(f"the best, {best}, is in {place}")
    return summary


def refuse_other(out: Path, summary: str, overwritten: Sequence[str] = ()) -> None:
    """Refuse a folder that is not for several runs, and one where files of the user would be lost.

    `overwritten` are the runs in it that will be started over.
    """
    check_output_folder(out, renamed=False)
    entries = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if entries and summary not in entries and not any(_is_one(name) for name in entries):
        raise FolderError(f"{out}: not empty, and holds no such runs. Give another --out.")
    if RECIPE in entries:
        raise FolderError(f"{out}: holds a single run. Give another --out.")
    if MODEL in entries:
        _old_model(out, summary)
    for name in overwritten:
        if (out / name / RECIPE).exists():
            refuse_foreign_files(out / name)


def _is_one(name: str) -> bool:
    return name.startswith(("seed-", "trial-"))


def _old_model(out: Path, summary: str) -> written.Contents:
    """Return what an earlier command left in OUT/model; anything else there is refused.

    Version 0.1 kept no list; it had always written a summary before the model.
    """
    names = written.read_list(out)
    if names is None:
        names = [MODEL] if (out / summary).exists() else []
    contents = written.survey(out, {MODEL} & {*names})
    foreign = [name for name in contents.foreign if name.partition("/")[0] == MODEL]
    written.refuse_foreign(out, foreign)
    return contents


def copy_best(out: Path, best: str, summary: str) -> Path:
    """Put the model of the best run where a single run has its model."""
    place, source = out / MODEL, out / best / MODEL
    written.delete(_old_model(out, summary))
    written.claim(out, MODEL)
    sweep(out, f".{MODEL}.tmp-*")
    with unfinished(place) as temporary:
        for name in sorted(written.members(source)):
            if (source / name).is_file():  # members of a damaged folder are only guessed
                (temporary / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / name, temporary / name)
        temporary.rename(place)
    return place
