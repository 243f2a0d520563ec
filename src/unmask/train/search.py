"""Which rate, batch and number of epochs are best for a task: tried by optuna, an extra.

Every trial is a run of its own in OUT/trial-N, so that a search that was stopped goes on: trials
that are finished are told to optuna again, not trained again.
"""

import json
from pathlib import Path
from typing import Any, Unpack

from unmask.checkpoint.folder import Folder
from unmask.disk import write_file
from unmask.errors import SettingsError
from unmask.train.finetune import How, finetune
from unmask.train.scores import METRIC, Data
from unmask.train.tuning import Tuning

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
    out.mkdir(parents=True, exist_ok=True)

    def objective(trial: Any) -> float:
        chosen = {
            "rate": trial.suggest_float("rate", *RATES, log=True),
            "batch": trial.suggest_categorical("batch", BATCHES),
            "epochs": trial.suggest_categorical("epochs", EPOCHS),
        }
        place = out / f"trial-{trial.number}"
        kept = place / RESULT
        if kept.exists() and not how.get("overwrite", False):
            return float(json.loads(kept.read_text())["scores"][METRIC])
        how.get("notice", print)(f"trial {trial.number}: {chosen}")
        began = (place / "recipe.toml").exists()
        own: How = {**how, "resume": began and not how.get("overwrite", False)}
        scores = finetune(model, data, place, tried(recipe, chosen), **own)
        entry = {"settings": chosen, "scores": scores}
        write_file(kept, (json.dumps(entry, indent=1) + "\n").encode())
        return float(scores[METRIC])

    sampler = optuna.samplers.TPESampler(seed=recipe.seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=trials)
    best = json.loads((out / f"trial-{study.best_trial.number}" / RESULT).read_text())
    summary = {"best": f"trial-{study.best_trial.number}", **best}
    write_file(out / SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())
    return summary


def tried(recipe: Tuning, chosen: dict[str, Any]) -> Tuning:
    """A recipe with the settings of a trial."""
    tune = recipe.tune.model_copy(
        update={"batch": chosen["batch"], "epochs": float(chosen["epochs"])}
    )
    optimizer = recipe.optimizer.model_copy(update={"rate": chosen["rate"]})
    schedule = {k: v for k, v in recipe.schedule.items() if k not in ("steps", "minutes")}
    return recipe.model_copy(update={"tune": tune, "optimizer": optimizer, "schedule": schedule})
