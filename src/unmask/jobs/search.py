"""Which rate, batch and number of epochs are best for a task: tried by optuna, an extra.

Every trial is a run of its own in OUT/trial-N, so that a search that was stopped goes on: trials
that are finished are told to optuna again, not trained again.
"""

import json
from pathlib import Path
from typing import Any

from unmask.console import Console
from unmask.errors import FolderError, UserError, need
from unmask.jobs.finetune import Finetune
from unmask.jobs.seeds import go, publish_best, put, refuse_other
from unmask.train.digest import digest_of
from unmask.train.evaluator import METRIC
from unmask.train.recipe import Recipe
from unmask.train.run import Options

RATES, BATCHES, EPOCHS = (1e-5, 5e-4), (8, 16, 32, 64), (2, 3, 4)
RESULT, SUMMARY = "result.json", "search.json"


def search(
    job: Finetune, recipe: Recipe, out: Path, trials: int, console: Console, options: Options
) -> dict[str, Any]:
    """Try settings a number of times; returns the settings of the best trial and its scores."""
    need("--search", "optuna", extra="search")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    anew = options.overwrite
    refuse_other(out, SUMMARY, [f"trial-{number}" for number in range(trials)], options)
    out.mkdir(parents=True, exist_ok=True)
    data, started = job.read(recipe), job.opened()
    asked = {
        "data": digest_of([*data.train, *data.dev]),
        "model": started.path.name if started else "from scratch",
    }

    def objective(trial: Any) -> float:
        chosen = {
            "rate": trial.suggest_float("rate", *RATES, log=True),
            "batch": trial.suggest_categorical("batch", BATCHES),
            "epochs": trial.suggest_categorical("epochs", EPOCHS),
        }
        place = out / f"trial-{trial.number}"
        expected = {"settings": chosen, **asked}
        entry = None if anew else _finished(place / RESULT, expected)
        if entry is None:
            console.say(f"trial {trial.number}: {chosen}")
            entry = dict(expected)
            own = tried(recipe, chosen)
            try:
                entry["scores"] = go(job, own, place, console, options, resume=not anew)
            except UserError as error:  # such as a rate that is too high
                console.say(f"trial {trial.number} failed: {error}")
                entry["failed"] = str(error)
            put(place, RESULT, entry)
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
    publish_best(out, best, summary, SUMMARY, console)
    return summary


def _finished(path: Path, expected: dict[str, Any]) -> dict[str, Any] | None:
    """What a trial has found before, if it was this one."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if {key: found.get(key) for key in expected} != expected:
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
