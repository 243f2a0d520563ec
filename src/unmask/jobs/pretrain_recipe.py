"""Corpus, recipe name and settings -> the recipe of a pre-training run; imports torch last."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.data.corpus.layout import read_manifest
from unmask.jobs.settings_read import PRETRAIN, check_network
from unmask.system.console import Console
from unmask.system.errors import UserError
from unmask.system.settings import read_toml, validate
from unmask.system.written import RECIPE
from unmask.train.compose import compose, recipe_path
from unmask.train.optim.schedules import Phase
from unmask.train.recipe import Recipe


def pretrain_recipe(
    corpus: Path,
    name: str | None,
    changes: Sequence[str],
    phase: Mapping[str, int],
    out: Path,
    *,
    resume: bool = False,
    shard: bool = False,
    console: Console | None = None,
) -> Recipe | None:
    """Compose the recipe of a run in `out`; None if a resumed run continues with its own.

    Without a name, the recipe is bert or, with a time limit, budget. `phase` has the settings of
    every phase, in which `batch_size` is a number of sequences of full length. Errors in the
    arguments are raised here, before torch is imported.
    """
    read_manifest(corpus)
    if resume and not (name or changes or phase):
        if not (out / RECIPE).exists():
            raise UserError(
                f"{out}: no run to resume. Check the folder; to start a run, give a recipe, a "
                "size, or a number of steps or minutes."
            )
        return None
    minutes = any(change.startswith("schedule.minutes=") for change in changes)
    name = name or ("budget" if minutes else "bert")

    def check(recipe: Recipe) -> None:
        check_network(recipe)
        if shard:
            recipe.optimizer.refuse_sharding()

    # They hold for every phase, so they go in before `changes`, which can change a single one.
    source = _with_phases(read_toml(recipe_path("", name)), phase)
    return compose(PRETRAIN, source, changes, console=console, check=check)


def _with_phases(table: dict[str, Any], phase: Mapping[str, int]) -> dict[str, Any]:
    """Put settings into every phase of a recipe; with a length, only one phase is left."""
    if not phase:
        return table
    old = "phases" in table  # as in recipes of version 0.1
    schedule = table if old else table.get("schedule", {})
    phases = schedule.get("phases") or [{}]
    if "length" in phase:
        phases = [{**phases[0], "share": 1.0}]
    schedule = {**schedule, "phases": [_phase({**before, **phase}) for before in phases]}
    return schedule if old else {**table, "schedule": schedule}


def _phase(table: dict[str, Any]) -> dict[str, Any]:
    """Turn a batch size in sequences into one in tokens."""
    sequences = table.pop("batch_size", None)
    if sequences is None:
        return table
    length = validate(Phase, table, where="recipe [[schedule.phases]]").length
    return {**table, "batch_tokens": sequences * length}
