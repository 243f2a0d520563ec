"""Several tasks on one encoder, each with a head of its own.

A step is of one task, drawn by how much data each has: with temperature 1 by its size, with 0 all
alike. Every task ends as a model folder of its own; what they share is in each of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
from pydantic import Field, field_validator, model_validator
from torch import nn

from unmask.checkpoint.folder import Folder, save_folder
from unmask.data import draws
from unmask.data.batches import Batch
from unmask.data.columns import Columns
from unmask.model.config import HeadsConfig, LabelsConfig
from unmask.model.network import Network
from unmask.objectives.base import Sums
from unmask.settings import Settings
from unmask.tasks.base import Task
from unmask.tasks.engine import scores_of
from unmask.train.ahead import Pieces
from unmask.train.course import Course
from unmask.train.finetune import How, carry_out, plan_of, read_data
from unmask.train.scores import Data, Scores
from unmask.train.tuning import Common, WindowSource

MODELS = "models"  # in the run's folder: one for each task
TAKEN = {"kind", "step", "loss", "norm", "rate", "tokens", "seconds", "tokens_a_second", "metric"}
_TASK = 303  # the key of which task a step is of


class TaskData(Settings):
    """One of the tasks, and its files."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]  # of its head and its folder
    task: dict[str, Any]
    train: str
    dev: str
    text: str | None = None
    second: str | None = None
    label: str | None = None

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in TAKEN or hasattr(nn.ModuleDict(), name):
            raise ValueError(f"'{name}' has another meaning in a run; give the task another name.")
        return name


class Multi(Common):
    """A run of several tasks."""

    tasks: Annotated[list[TaskData], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5

    @model_validator(mode="after")
    def _names_differ(self) -> "Multi":
        if self.tune.layers:
            raise ValueError("tune.layers is for one task; heads of several read the last layer.")
        names = [part.name for part in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"two tasks are called {names!r}; need a name for each.")
        return self


class SeveralTasks:
    """The objective: a batch says by the name of its answers whose it is."""

    def __init__(self, tasks: dict[str, Task], network: Network) -> None:
        self.tasks = tasks
        self.networks = {name: network.only(name) for name in tasks}

    def prepare(self, batch: Batch, root: int) -> Batch:
        """Nothing is hidden; the answers are there."""
        return batch

    def __call__(self, network: Network, batch: Batch) -> Sums:
        """The loss of the one task; the heads of the others take part with nothing."""
        (name,) = batch.counts
        own = self.networks[name].train(network.training)
        loss = self.tasks[name].loss(scores_of(own, batch), batch)
        pooler = network.pooler.parameters() if network.pooler else ()
        for parameter in (*network.label_heads.parameters(), *pooler):
            loss = loss + 0.0 * parameter.sum()  # wrappers wait for all gradients
        return {name: loss}


class TurnsSource:
    """Steps of one task after the other, as they are drawn."""

    def __init__(self, sources: dict[str, WindowSource], temperature: float, seed: int) -> None:
        self.sources, self.seed = sources, seed
        sizes = np.array([len(source.items) for source in sources.values()], dtype=np.float64)
        self.bounds = np.cumsum(sizes**temperature / (sizes**temperature).sum())

    def pieces(self, cursor: dict[str, int], step: int, progress: float) -> Pieces:
        """The next windows of the task whose turn it is; every task has a cursor of its own."""
        names = list(self.sources)
        draw = draws.uniform(draws.key(self.seed, _TASK), np.array([step], dtype=np.uint64))[0]
        name = names[min(int(np.searchsorted(self.bounds, draw, side="right")), len(names) - 1)]
        own = {key: cursor.get(f"{name}.{key}", 0) for key in ("epoch", "row")}
        pieces, then = self.sources[name].pieces(own, step, progress)
        return pieces, {**cursor, **{f"{name}.{key}": value for key, value in then.items()}}


def finetune_several(model: Folder, recipe: Multi, out: Path, **how: Unpack[How]) -> dict[str, Any]:
    """Train all heads and the encoder below them; a model folder for each in OUT/models."""
    parts = {
        part.name: read_data(
            part.task,
            Path(part.train),
            Path(part.dev),
            Columns(part.text, part.second, part.label),
        )
        for part in recipe.tasks
    }
    tasks = {name: data.task for name, data in parts.items()}
    plan = plan_of(
        parts,
        model,
        recipe,
        heads_of(parts),
        lambda network: SeveralTasks(tasks, network),
        lambda sources: TurnsSource(sources, recipe.temperature, recipe.seed),
        {"task": "several"},
    )
    finish = partial(publish_each, list(parts))
    return carry_out(replace(plan, finish=finish), model, out, recipe, **how)


def heads_of(parts: dict[str, Data]) -> HeadsConfig:
    """A head for each task; a pooler if one of them reads it."""
    several = {}
    for name, data in parts.items():
        own = data.task.heads
        assert own.labels is not None
        several[name] = LabelsConfig(
            labels=own.labels,
            label_names=own.label_names,
            label_dropout=own.label_dropout,
            label_answer=own.label_answer,
        )
    return HeadsConfig(pooler=any(h.labels == "text" for h in several.values()), several=several)


def publish_each(names: Sequence[str], scores: Scores, course: Course) -> None:
    """A folder for each task, as if it had been trained alone."""
    network, summary = scores.final().network, scores.summary()
    for name in names:
        target = course.folder.path / MODELS / name
        if target.exists():
            continue
        course.folder.claim(f"{MODELS}/{name}")
        target.parent.mkdir(exist_ok=True)
        own = {
            k.removeprefix(f"{name}."): v for k, v in summary.items() if k.startswith(f"{name}.")
        }
        save_folder(
            target,
            network.only(name),
            course.tokenizer,
            recipe=course.recipe,
            task=scores.settings(name),
            provenance={**course.provenance, "step": summary["step"], "scores": own},
        )
        course.folder.say(f"the model for {name} is in {target}")
