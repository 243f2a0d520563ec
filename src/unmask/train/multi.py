"""Several tasks on one encoder, each with a head of its own.

A step is of one task, drawn by how much data each has: with temperature 1 by its size, with 0 all
alike. Every task ends as a model folder of its own; what they share is in each of them.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from unmask.checkpoint.folder import Folder, save_folder
from unmask.data import draws
from unmask.data.batches import Batch
from unmask.data.columns import Columns
from unmask.model.config import HeadsConfig, LabelsConfig
from unmask.model.network import Network
from unmask.objectives.base import Sums
from unmask.settings import Settings, build
from unmask.tasks.base import Task, scores_of
from unmask.train.ahead import Pieces
from unmask.train.course import Course
from unmask.train.distributed import processes
from unmask.train.finetune import (
    freeze,
    read_data,
    tokenizer_of,
    train_all,
    window_limit,
    windows_of,
    with_task,
)
from unmask.train.heldout import Show
from unmask.train.recipe import TrainSettings
from unmask.train.run import open_run
from unmask.train.schedule import OptimizerSettings
from unmask.train.scores import Data, Scored, Scores
from unmask.train.signals import stop_wishes
from unmask.train.step import Trainee
from unmask.train.tuned import write_tuned
from unmask.train.tuning import TuneSettings, Tuning, WindowSource, rate_scale

MODELS = "models"  # in the run's folder: one for each task
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


class Multi(Settings):
    """A run of several tasks."""

    seed: Annotated[int, Field(ge=0)] = 0
    tasks: Annotated[list[TaskData], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    tune: TuneSettings = TuneSettings()
    optimizer: OptimizerSettings = OptimizerSettings(rate=5e-5)
    schedule: dict[str, Any] = Field(default_factory=dict)
    train: TrainSettings = TrainSettings()

    @model_validator(mode="after")
    def _names_differ(self) -> "Multi":
        names = [part.name for part in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"two tasks are called {names!r}; need a name for each.")
        return self

    def of(self, part: TaskData) -> Tuning:
        """The recipe of one of them."""
        table = self.model_dump(exclude={"tasks", "temperature"})
        return build(Tuning, {**table, "task": part.task}, where=f"recipe [tasks] {part.name}")


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
        for parameter in network.label_heads.parameters():  # wrappers wait for all gradients
            loss = loss + 0.0 * parameter.sum()
        return {name: loss}


class TurnsSource:
    """Steps of one task after the other, as they are drawn."""

    def __init__(self, sources: dict[str, WindowSource], temperature: float, seed: int) -> None:
        self.sources, self.seed = sources, seed
        sizes = np.array([len(source.windows) for source in sources.values()], dtype=np.float64)
        self.bounds = np.cumsum(sizes**temperature / (sizes**temperature).sum())

    def pieces(self, cursor: dict[str, int], step: int, progress: float) -> Pieces:
        """The next windows of the task whose turn it is; every task has a cursor of its own."""
        names = list(self.sources)
        draw = draws.uniform(draws.key(self.seed, _TASK), np.array([step], dtype=np.uint64))[0]
        name = names[min(int(np.searchsorted(self.bounds, draw, side="right")), len(names) - 1)]
        own = {key: cursor.get(f"{name}.{key}", 0) for key in ("epoch", "row")}
        pieces, then = self.sources[name].pieces(own, step, progress)
        return pieces, {**cursor, **{f"{name}.{key}": value for key, value in then.items()}}


def finetune_several(
    model: Folder,
    recipe: Multi,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    notice: Callable[[str], None] = print,
    show: Show | None = None,
) -> dict[str, Any]:
    """Train all heads and the encoder below them; a model folder for each in OUT/models."""
    begun = time.monotonic()
    tokenizer = tokenizer_of(model)
    parts = {
        part.name: read_data(
            recipe.of(part),
            Path(part.train),
            Path(part.dev),
            Columns(part.text, part.second, part.label),
        )
        for part in recipe.tasks
    }
    with (
        stop_wishes() as wish,
        processes() as group,
        open_run(
            out, resume=resume, overwrite=overwrite, writes=group.first, notice=notice
        ) as folder,
    ):
        for line in (line for data in parts.values() for line in data.said):
            folder.say(line)
        network = with_task(model.network, heads_of(parts), recipe.seed)
        freeze(network, recipe.tune.frozen)
        limit = window_limit(recipe.tune, network)
        sources = {
            part.name: WindowSource(
                parts[part.name].task,
                windows_of(parts[part.name].task, parts[part.name].train, tokenizer, limit)[0],
                recipe.of(part),
                tokenizer.vocabulary.pad,
                group,
                term=part.name,
            )
            for part in recipe.tasks
        }
        windows = sum(len(source.windows) for source in sources.values())
        resolved = recipe.model_dump(exclude_none=True)
        about = {"task": "several", "model": model.path.name}

        def drawn(found: dict[str, Scored]) -> None:
            write_tuned(folder, resolved, found)

        scores = Scores(
            folder,
            parts,
            tokenizer,
            group,
            limit=limit,
            patience=recipe.tune.patience,
            about=about,
            drawn=drawn,
        )
        tasks = {name: data.task for name, data in parts.items()}
        course = Course(
            network,
            Trainee(network, SeveralTasks(tasks, network)),
            TurnsSource(sources, recipe.temperature, recipe.seed),
            tokenizer,
            recipe.optimizer,
            recipe.of(recipe.tasks[0]).course(windows),
            recipe.train,
            group,
            folder,
            resolved,
            about,
            wish=wish,
            scale=rate_scale(recipe.tune, network.config.layers),
            evaluate=scores,
            enough=scores.enough,
            final=scores.final,
            watch=show if group.first else None,
            begun=begun,
        )
        records = [record for data in parts.values() for record in (*data.train, *data.dev)]
        train_all(course, windows, recipe.tune.batch, records)
        if group.first:
            publish_each(out, scores, course)
        return scores.summary()


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


def publish_each(out: Path, scores: Scores, course: Course) -> None:
    """A folder for each task, as if it had been trained alone."""
    network, summary = scores.final(), scores.summary()
    for name in scores.parts:
        target = out / MODELS / name
        if target.exists():
            continue
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
