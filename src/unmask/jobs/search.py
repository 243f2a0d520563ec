"""A fine-tuning job -> trials of learning rate, batch size and epochs -> the best model.

Needs optuna (`pip install 'unmask[search]'`). Every trial is a run of its own in OUT/trial-N. A
search that was stopped resumes: the results of finished trials are read instead of trained again.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NotRequired, Protocol, TypedDict

from unmask.data.labelled.digest import digest_of
from unmask.jobs.finetune import Finetune
from unmask.jobs.seeds import publish_best, refuse_unrelated_output, run_one, write_listed_json
from unmask.jobs.summary import say_several
from unmask.system.console import Console
from unmask.system.errors import FolderError, UserError, require
from unmask.train.evaluator import METRIC
from unmask.train.recipe import Recipe
from unmask.train.run import RunOptions

LEARNING_RATES, BATCH_SIZES, EPOCHS = (1e-5, 5e-4), (8, 16, 32, 64), (2, 3, 4)
RESULT, SUMMARY = "result.json", "search.json"


class TrialSettings(TypedDict):
    """Settings of a trial, as optuna chose them."""

    rate: float
    batch: int
    epochs: int


class TrialResult(TypedDict):
    """Stored result of a trial: its settings, data and model, and its scores or its error."""

    settings: TrialSettings
    data: str
    model: str
    scores: NotRequired[dict[str, float]]
    failed: NotRequired[str]


class Trial(Protocol):
    """The part of optuna's `Trial` that is used here."""

    number: int
    value: float | None  # None unless it has succeeded

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        """Choose a number between two bounds."""

    def suggest_categorical(self, name: str, choices: tuple[int, ...]) -> int:
        """Choose one of several values."""


class Study(Protocol):
    """The part of optuna's `Study` that is used here."""

    best_trial: Trial
    trials: list[Trial]

    def optimize(self, objective: Callable[[Trial], float], n_trials: int) -> None:
        """Run this many trials."""


def search(
    job: Finetune, recipe: Recipe, out: Path, trials: int, console: Console, options: RunOptions
) -> dict[str, object]:
    """Run trials and publish the best model; return the settings and scores of its trial."""
    require("--search", "optuna", extra="search")
    from optuna import TrialPruned, create_study
    from optuna.logging import WARNING, set_verbosity
    from optuna.samplers import TPESampler

    set_verbosity(WARNING)
    start_over = options.overwrite
    refuse_unrelated_output(out, SUMMARY, [f"trial-{number}" for number in range(trials)], options)
    out.mkdir(parents=True, exist_ok=True)
    data, started = job.read(recipe), job.opened()
    digest = digest_of([*data.train, *data.dev])
    model = started.path.name if started else "from scratch"

    def objective(trial: Trial) -> float:
        trial_settings: TrialSettings = {
            "rate": trial.suggest_float("rate", *LEARNING_RATES, log=True),
            "batch": trial.suggest_categorical("batch", BATCH_SIZES),
            "epochs": trial.suggest_categorical("epochs", EPOCHS),
        }
        trial_folder = out / f"trial-{trial.number}"
        entry: TrialResult = {"settings": trial_settings, "data": digest, "model": model}
        # The sampler is seeded, so a resumed search proposes the same trials in the same order.
        if not start_over and (trial_folder / RESULT).exists():
            entry = _finished_result(trial_folder / RESULT, entry)
        else:
            console.say(f"trial {trial.number}: {trial_settings}")
            trial_recipe = with_trial_settings(recipe, trial_settings)
            try:
                entry["scores"] = run_one(
                    job, trial_recipe, trial_folder, console, options, resume=not start_over
                )
            except UserError as error:  # such as a learning rate that is too high
                console.say(f"trial {trial.number} failed: {error}")
                entry["failed"] = str(error)
            write_listed_json(trial_folder, RESULT, entry)
        if "failed" in entry:
            raise TrialPruned  # the study goes on without a value for this trial
        return entry["scores"][METRIC]

    sampler = TPESampler(seed=recipe.seed)
    study: Study = create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=trials)
    if not any(trial.value is not None for trial in study.trials):
        raise UserError(f"{out}: all {trials} trials failed; their errors are printed above.")
    best = f"trial-{study.best_trial.number}"
    best_result = _read_result(out / best / RESULT)
    summary: dict[str, object] = {"best": best}
    summary |= {"settings": best_result["settings"], "scores": best_result["scores"]}
    publish_best(out, best, summary, SUMMARY, console)
    names = [f"trial-{trial.number}" for trial in study.trials]
    heads = ["", *job.main_metrics(), "learning rate", "batch size", "epochs"]
    rows = [_row(name, _read_result(out / name / RESULT), best) for name in names]
    say_several(console, job, out, heads, rows)
    return summary


def _row(name: str, result: TrialResult, best: str) -> list[str]:
    """Return the row of a trial in the table that a search ends with."""
    settings = result["settings"]
    score = f"{result['scores'][METRIC]:.4f}" if "scores" in result else "failed"
    values = [f"{settings['rate']:.2e}", str(settings["batch"]), str(settings["epochs"])]
    return [f"{name} (best)" if name == best else name, score, *values]


def _read_result(path: Path) -> TrialResult:
    result: TrialResult = json.loads(path.read_text("utf-8"))
    return result


def _finished_result(path: Path, expected: TrialResult) -> TrialResult:
    """Read the result of an earlier trial; refuse it if its settings, data or model differ."""
    result = _read_result(path)
    if any(result.get(key) != value for key, value in expected.items()):
        raise FolderError(
            f"{path.parent}: holds a trial of other data, another model or another search. Give "
            "another --out, or start over with --overwrite."
        )
    return result


def with_trial_settings(recipe: Recipe, settings: TrialSettings) -> Recipe:
    """Return the recipe with the settings of a trial."""
    return recipe.changed(
        optimizer={"learning_rate": settings["rate"]},
        loop={"batch_size": settings["batch"]},
        schedule={"epochs": float(settings["epochs"]), "steps": None, "minutes": None},
    )
