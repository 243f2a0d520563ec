"""Which rate, batch and number of epochs are best for a task: tried by optuna, an extra.

Every trial is a run of its own in OUT/trial-N, so that a search that was stopped goes on: trials
that are finished are told to optuna again, not trained again.
"""

import json
from pathlib import Path
from typing import Any, Unpack

from unmask.checkpoint.folder import Folder
from unmask.disk import write_file
from unmask.errors import FolderError, SettingsError, UserError
from unmask.train.finetune import How, finetune
from unmask.train.run import digest_of
from unmask.train.scores import METRIC, Data
from unmask.train.seeds import copy_best, refuse_other
from unmask.train.tuning import Tuning
from unmask.train.written import claim

RATES, BATCHES, EPOCHS = (1e-5, 5e-4), (8, 16, 32, 64), (2, 3, 4)
RESULT, SUMMARY = "result.json", "search.json"


def search(
    model: Folder,
    data: Data,
    out: Path,
    recipe: Tuning,
    trials: int,
    **how: Unpack[How],
) -> dict[str, Any]:
    """So many trials; returns the settings of the best one and its scores."""
    try:
        import optuna
    except ImportError:
        raise SettingsError(
            "--search needs optuna, which is not installed. Run: pip install 'unmask[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    notice, anew = how.get("notice", print), how.get("overwrite", False)
    refuse_other(out, SUMMARY, [f"trial-{number}" for number in range(trials)] if anew else ())
    out.mkdir(parents=True, exist_ok=True)
    asked = digest_of([*data.train, *data.dev]), model.path.name

    def objective(trial: Any) -> float:
        chosen = {
            "rate": trial.suggest_float("rate", *RATES, log=True),
            "batch": trial.suggest_categorical("batch", BATCHES),
            "epochs": trial.suggest_categorical("epochs", EPOCHS),
        }
        place = out / f"trial-{trial.number}"
        entry = None if anew else _finished(place / RESULT, chosen, asked)
        if entry is None:
            notice(f"trial {trial.number}: {chosen}")
            entry = {"settings": chosen, "data": asked[0], "model": asked[1]}
            own: How = {**how, "resume": not anew and (place / "recipe.toml").exists()}
            try:
                entry["scores"] = finetune(model, data, place, tried(recipe, chosen), **own)
            except UserError as error:  # such as a rate that is too high
                notice(f"trial {trial.number} failed: {error}")
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
    notice(f"the best, {best}, is in {place}")
    return summary


def _finished(path: Path, chosen: dict[str, Any], asked: tuple[str, str]) -> dict[str, Any] | None:
    """What a trial has found before, if it was this one."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if (found.get("settings"), found.get("data"), found.get("model")) != (chosen, *asked):
        raise FolderError(
            f"{path.parent}: a trial of other data, another model or another search is there. Give "
            "another --out, or begin anew with --overwrite."
        )
    return found


def tried(recipe: Tuning, chosen: dict[str, Any]) -> Tuning:
    """A recipe with the settings of a trial."""
    tune = recipe.tune.model_copy(
        update={"batch": chosen["batch"], "epochs": float(chosen["epochs"])}
    )
    optimizer = recipe.optimizer.model_copy(update={"rate": chosen["rate"]})
    schedule = {k: v for k, v in recipe.schedule.items() if k not in ("steps", "minutes")}
    return recipe.model_copy(update={"tune": tune, "optimizer": optimizer, "schedule": schedule})
