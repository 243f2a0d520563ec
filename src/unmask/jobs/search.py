"""Which rate, batch and number of epochs are best for a task: tried by optuna, an extra.

Every trial is a run of its own in OUT/trial-N, so that a search that was stopped goes on: trials
that are finished are told to optuna again, not trained again.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.console import Console
from unmask.disk import write_file
from unmask.errors import FolderError, SettingsError, UserError
from unmask.jobs.finetune import Finetune
from unmask.jobs.seeds import copy_best, refuse_other
from unmask.train.digest import digest_of
from unmask.train.evaluator import METRIC
from unmask.train.recipe import Recipe
from unmask.train.run import Options, Run
from unmask.train.written import RECIPE, claim

RATES, BATCHES, EPOCHS = (1e-5, 5e-4), (8, 16, 32, 64), (2, 3, 4)
RESULT, SUMMARY = "result.json", "search.json"


def search(
    job: Finetune, recipe: Recipe, out: Path, trials: int, console: Console, options: Options
) -> dict[str, Any]:
    """Try settings a number of times; returns the settings of the best trial and its scores."""
    try:
        import optuna
    except ImportError:
        raise SettingsError(
            "--search needs optuna, which is not installed. Run: pip install 'unmask[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    anew = options.overwrite
    refuse_other(out, SUMMARY, [f"trial-{number}" for number in range(trials)] if anew else ())
    out.mkdir(parents=True, exist_ok=True)
    data = job.read(recipe)
    asked = digest_of([*data.train, *data.dev]), job.opened().path.name

    def objective(trial: Any) -> float:
        chosen = {
            "rate": trial.suggest_float("rate", *RATES, log=True),
            "batch": trial.suggest_categorical("batch", BATCHES),
            "epochs": trial.suggest_categorical("epochs", EPOCHS),
        }
        place = out / f"trial-{trial.number}"
        entry = None if anew else _finished(place / RESULT, chosen, asked)
        if entry is None:
            console.say(f"trial {trial.number}: {chosen}")
            entry = {"settings": chosen, "data": asked[0], "model": asked[1]}
            own = replace(options, resume=not anew and (place / RECIPE).exists())
            run = Run(job, tried(recipe, chosen), place, console, own)
            try:
                entry["scores"] = run.go().summary
            except UserError as error:  # such as a rate that is too high
                console.say(f"trial {trial.number} failed: {error}")
                entry["failed"] = str(error)
            claim(place, RESULT)
            write_file(place / RESULT, (json.dumps(entry, indent=1) + "\n").encode())
        if "failed" in entry:
            raise optuna.TrialPruned
        return float(entry["scores"][METRIC])

    sampler = optuna.samplers.TPESampler(seed=recipe.seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=trials)
    if not any(trial.value is not None for trial in study.trials):
        raise UserError(f"{out}: none of {trials} trials ended well; what went wrong is above.")
    best = f"trial-{study.best_trial.number}"
    found = json.loads((out / best / RESULT).read_text("utf-8"))
    summary = {"best": best, "settings": found["settings"], "scores": found["scores"]}
    place = copy_best(out, best, SUMMARY)
    claim(out, SUMMARY)
    write_file(out / SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())
    console.say(f"the best, {best}, is in {place}")
    return summary


def _finished(path: Path, chosen: dict[str, Any], asked: tuple[str, str]) -> dict[str, Any] | None:
    """What a trial has found before, if it was this one."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if (found.get("settings"), found.get("data"), found.get("model")) != (chosen, *asked):
        raise FolderError(
            f"{path.parent}: a trial of other data, another model or another search is there. Give "
            "another --out, or start over with --overwrite."
        )
    return found


def tried(recipe: Recipe, chosen: dict[str, Any]) -> Recipe:
    """A recipe with the settings of a trial."""
    return recipe.changed(
        optimizer={"rate": chosen["rate"]},
        loop={"batch_size": chosen["batch"]},
        schedule={"epochs": float(chosen["epochs"]), "steps": None, "minutes": None},
    )
