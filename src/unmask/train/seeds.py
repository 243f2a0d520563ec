"""The same fine-tuning with several seeds: mean and deviation, and the model of the best one."""

import json
import shutil
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Unpack

from unmask.checkpoint.folder import Folder
from unmask.disk import write_file
from unmask.errors import FolderError
from unmask.train.finetune import How, finetune
from unmask.train.run import MODEL
from unmask.train.scores import METRIC, Data
from unmask.train.tuning import Tuning

SUMMARY = "summary.json"


def finetune_seeds(
    model: Folder,
    data: Data,
    out: Path,
    recipe: Tuning,
    count: int,
    **how: Unpack[How],
) -> dict[str, Any]:
    """Runs in OUT/seed-N, from the recipe's seed on; the best model in OUT/model."""
    notice = how.get("notice", print)
    refuse_other(out, SUMMARY)
    found: dict[str, dict[str, Any]] = {}
    for seed in range(recipe.seed, recipe.seed + count):
        name = f"seed-{seed}"
        notice(f"{name}:")
        run = recipe.model_copy(update={"seed": seed})
        found[name] = finetune(model, data, out / name, run, **how)
    metrics = [name for name in next(iter(found.values())) if name != "step"]
    values = {name: [scores[name] for scores in found.values()] for name in metrics}
    best = max(found, key=lambda name: found[name][METRIC])
    summary: dict[str, Any] = {
        "seeds": found,
        "mean": {name: mean(some) for name, some in values.items()},
        "deviation": {name: stdev(some) if count > 1 else 0.0 for name, some in values.items()},
        "best": best,
    }
    write_file(out / SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())
    place = copy_best(out, best)
    for name in metrics:
        notice(f"{name}: {summary['mean'][name]:.4f} +- {summary['deviation'][name]:.4f}")
    notice(f"the best, {best}, is in {place}")
    return summary


def refuse_other(out: Path, summary: str) -> None:
    """A folder of several runs is made for them, or holds them already."""
    entries = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if entries and summary not in entries and not any(_is_one(name) for name in entries):
        raise FolderError(f"{out}: not empty, and holds no such runs. Give another --out.")
    if "recipe.toml" in entries:
        raise FolderError(f"{out}: holds a single run. Give another --out.")


def _is_one(name: str) -> bool:
    return name.startswith(("seed-", "trial-"))


def copy_best(out: Path, best: str) -> Path:
    """The model of the best run, where a single run would have it."""
    place = out / MODEL
    if place.exists():
        shutil.rmtree(place)
    shutil.copytree(out / best / MODEL, place)
    return place
