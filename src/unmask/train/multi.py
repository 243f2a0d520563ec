"""Several tasks on one encoder, each with a head of its own.

A step is of one task, drawn by how much data each has: with temperature 1 by its size, with 0 all
alike. Every task ends as a model folder of its own; what they share is in each of them.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from unmask.checkpoint.folder import Folder, save_folder
from unmask.data import draws
from unmask.data.batches import Batch
from unmask.data.columns import Columns
from unmask.errors import SettingsError
from unmask.model.config import HeadsConfig, LabelsConfig
from unmask.model.network import Network, count_parameters
from unmask.objectives.base import Sums
from unmask.settings import Settings, build
from unmask.tasks.base import Detail, Task, answers, scores_of
from unmask.text.tokenizer import Tokenizer
from unmask.train.ahead import Pieces
from unmask.train.course import Course, Position
from unmask.train.distributed import processes
from unmask.train.finetune import Data, read_data, window_limit, windows_of, with_task
from unmask.train.heldout import Show
from unmask.train.loop import Loop
from unmask.train.recipe import TrainSettings
from unmask.train.run import MODEL, RunFolder, begin, digest_of, environment, open_run
from unmask.train.schedule import OptimizerSettings
from unmask.train.signals import stop_wishes
from unmask.train.step import Trainee
from unmask.train.tuning import TuneSettings, Tuning, WindowSource, rate_scale

_TASK = 303  # the key of which task a step is of


class TaskData(Settings):
    """One of the tasks, and its files."""

    name: str  # of the head, and of the folder that it ends in
    task: dict[str, Any]
    train: str
    dev: str
    text: str | None = None
    second: str | None = None
    label: str | None = None


class Multi(Settings):
    """A run of several tasks."""

    seed: Annotated[int, Field(ge=0)] = 0
    tasks: list[TaskData]
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    tune: TuneSettings = TuneSettings()
    optimizer: OptimizerSettings = OptimizerSettings(rate=5e-5)
    schedule: dict[str, Any] = Field(default_factory=dict)
    train: TrainSettings = TrainSettings()

    def of(self, part: TaskData) -> Tuning:
        """The recipe of one of them."""
        table = self.model_dump(exclude={"tasks", "temperature"})
        return build(Tuning, {**table, "task": part.task}, where="recipe")


class SeveralTasks:
    """The objective: a batch says by the name of its answers whose it is."""

    def __init__(self, tasks: dict[str, Task], networks: dict[str, Network]) -> None:
        self.tasks, self.networks = tasks, networks

    def prepare(self, batch: Batch, root: int) -> Batch:
        """Nothing is hidden; the answers are there."""
        return batch

    def __call__(self, network: Network, batch: Batch) -> Sums:
        """The loss of the one task; the heads of the others take part with nothing."""
        (name,) = batch.counts
        for other in self.networks.values():
            other.train(network.training)
        loss = self.tasks[name].loss(scores_of(self.networks[name], batch), batch)
        idle = sum(p.sum() for p in network.label_heads.parameters()) * 0.0
        return {name: loss + idle}


class TurnsSource:
    """Steps of one task after the other, as they are drawn."""

    def __init__(self, sources: dict[str, WindowSource], temperature: float, seed: int) -> None:
        self.sources, self.seed = sources, seed
        sizes = np.array([len(source.windows) for source in sources.values()], dtype=np.float64)
        shares = sizes**temperature
        self.bounds = np.cumsum(shares / shares.sum())

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
) -> dict[str, dict[str, float]]:
    """Train all heads and the encoder below them; a model folder for each in OUT/model."""
    raise NotImplementedError
