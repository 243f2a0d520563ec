"""Everything that decides a fine-tuning run, in one checked table; and the batches of its steps."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator, model_validator

from unmask.data import draws
from unmask.data.batches import Batch
from unmask.errors import SettingsError, unknown
from unmask.settings import Settings, override, read_toml
from unmask.tasks import engine
from unmask.tasks.base import Task, Window, batch_of
from unmask.train.ahead import Pieces
from unmask.train.distributed import Processes
from unmask.train.recipe import Count, TrainSettings, recipes_folder
from unmask.train.schedule import OptimizerSettings, ScheduleSettings
from unmask.train.step import Piece

_ORDER, _DROPOUT = 300, 301  # one key per kind of draw


class TuneSettings(Settings):
    """What is learned, and how much of the encoder learns with it."""

    batch: Count = 32  # windows of a step
    length: Annotated[int, Field(ge=8)] | None = None  # tokens of a window; None: all that fit
    epochs: Annotated[float, Field(gt=0.0)] | None = 3.0  # None: steps or minutes of the schedule
    frozen: int = 0  # blocks from the bottom that stay as they are, and the embeddings; -1: all
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # rate of a block, of the one above
    head_factor: Annotated[float, Field(gt=0.0)] = 1.0  # rate of the head, as a multiple
    layers: list[int] = Field(default_factory=list)  # states that the head reads; the last, if none
    patience: Annotated[int, Field(ge=0)] = 0  # evaluations without a better one; 0: to the end


class Common(Settings):
    """What a fine-tuning run has, be it for one task or for several."""

    seed: Annotated[int, Field(ge=0)] = 0
    tune: TuneSettings = TuneSettings()
    optimizer: OptimizerSettings = OptimizerSettings(rate=5e-5)
    schedule: dict[str, Any] = Field(default_factory=dict)
    train: TrainSettings = TrainSettings()

    @model_validator(mode="before")
    @classmethod
    def _steps_replace_epochs(cls, table: dict[str, Any]) -> dict[str, Any]:
        """What is left out is not there, if the schedule has another length."""
        schedule, tune = table.get("schedule") or {}, table.get("tune", {})
        timed = any(schedule.get(name) is not None for name in ("steps", "minutes"))
        if timed and isinstance(tune, dict) and "epochs" not in tune:
            return {**table, "tune": {**tune, "epochs": None}}
        return table

    @model_validator(mode="after")
    def _is_scored(self) -> "Common":
        if not self.train.evaluations:
            raise ValueError("train.evaluations is 0; need one at least, to know the best step.")
        return self

    @model_validator(mode="after")
    def _one_length(self) -> "Common":
        given = [name for name in ("steps", "minutes") if self.schedule.get(name) is not None]
        if bool(given) == (self.tune.epochs is not None):
            raise ValueError("a run has tune.epochs, or steps or minutes; give one of them.")
        return self

    def course(self, windows: int) -> ScheduleSettings:
        """The schedule, for so many windows to learn from."""
        table = {"warmup": 0.1, **self.schedule}
        if self.tune.epochs is not None:
            steps = max(round(self.tune.epochs * windows / self.tune.batch), 1)
            table = {**table, "steps": steps}
        return ScheduleSettings(**table)


class Tuning(Common):
    """A fine-tuning run for one task."""

    task: dict[str, Any]

    @field_validator("task")
    @classmethod
    def _has_a_name(cls, table: dict[str, Any]) -> dict[str, Any]:
        if "name" not in table:
            raise ValueError("task.name is missing; need the name of a task.")
        return table


def compose_tuning(
    name: str, assignments: Sequence[str] = (), *, kind: str = "finetune", what: str = "task"
) -> dict[str, Any]:
    """The recipe of a task, by its name or its path, with some settings replaced."""
    known = {path.stem: path for path in sorted((recipes_folder() / kind).glob("*.toml"))}
    if not name.endswith(".toml") and name not in known:
        raise SettingsError(unknown(what, name, known))
    table = read_toml(known.get(name, Path(name)))
    names = {assignment.partition("=")[0].strip() for assignment in assignments}
    if names & {"schedule.steps", "schedule.minutes"}:
        table.get("tune", {}).pop("epochs", None)
    return override(table, assignments)


class Shuffled:
    """The items of each step, epoch after epoch, each epoch in another order.

    `lay_out` makes a batch of some of them, by the seed of its draws and the progress of the run.
    With `neighbours`, steps are made of items of like length: as many steps as that are drawn
    together, and sorted.
    """

    def __init__(
        self,
        items: Sequence[Any],
        lay_out: Callable[[Sequence[Any], int, float], Batch],
        recipe: Common,
        group: Processes,
        *,
        neighbours: int = 1,
    ) -> None:
        self.items, self.lay_out, self.recipe, self.group = items, lay_out, recipe, group
        self.neighbours = neighbours
        self._order: tuple[int, np.ndarray] | None = None
        if recipe.tune.batch < group.world:
            raise SettingsError(
                f"tune.batch is {recipe.tune.batch}, for {group.world} processes; need one each."
            )

    def pieces(self, cursor: dict[str, int], step: int, progress: float) -> Pieces:
        """The next items, neighbours in length together."""
        chosen, then = self._take(cursor.get("epoch", 0), cursor.get("row", 0))
        mine = chosen[self.group.rank :: self.group.world]
        pieces = []
        for place, numbers in enumerate(self._parts(chosen)):
            seed = draws.key(self.recipe.seed, _DROPOUT, step, self.group.rank, place) % 2**63
            some = [mine[i] for i in numbers]
            pieces.append(Piece(self.lay_out(some, seed, progress), seed))
        return pieces, then

    def _parts(self, chosen: Sequence[Any]) -> list[list[int]]:
        """The items of this process as they are computed at a time; all have as many parts."""
        world, most = self.group.world, self.recipe.train.micro_tokens
        shares = [chosen[rank::world] for rank in range(world)]
        each = [list(engine.by_length(share, most)) for share in shares]
        count = min(max(map(len, each)), min(map(len, shares)))  # nobody computes an empty one
        mine = each[self.group.rank]
        while len(mine) > count:
            mine[-2:] = [mine[-2] + mine[-1]]
        while len(mine) < count:
            largest = max(range(len(mine)), key=lambda i: len(mine[i]))
            half = len(mine[largest]) // 2
            mine[largest : largest + 1] = [mine[largest][:half], mine[largest][half:]]
        return mine

    def _take(self, epoch: int, row: int) -> tuple[list[Any], dict[str, int]]:
        """As many items as a step has, over the end of an epoch if need be."""
        taken: list[Any] = []
        while len(taken) < self.recipe.tune.batch:
            order = self._epoch(epoch)
            some = order[row : row + self.recipe.tune.batch - len(taken)]
            taken += [self.items[int(i)] for i in some]
            row += len(some)
            if row == len(order):
                epoch, row = epoch + 1, 0
        return taken, {"epoch": epoch, "row": row}

    def _epoch(self, number: int) -> np.ndarray:
        if self._order is None or self._order[0] != number:
            root = draws.key(self.recipe.seed, _ORDER, number)
            order = draws.permutation(root, len(self.items))
            self._order = number, self._sorted(order, root) if self.neighbours > 1 else order
        return self._order[1]

    def _sorted(self, order: np.ndarray, root: int) -> np.ndarray:
        """Each pool by length, cut into steps, and the steps of all pools in a random order."""
        batch = self.recipe.tune.batch
        pools = np.split(order, range(batch * self.neighbours, len(order), batch * self.neighbours))
        steps = []
        for pool in pools:
            pool = pool[np.argsort([len(self.items[int(i)].ids) for i in pool], kind="stable")]
            steps += np.split(pool, range(batch, len(pool), batch))
        shuffled = draws.permutation(draws.key(root, _ORDER), len(steps))
        return np.concatenate([steps[int(i)] for i in shuffled])


class WindowSource(Shuffled):
    """The windows of a task."""

    def __init__(
        self,
        task: Task,
        windows: Sequence[Window],
        recipe: Common,
        pad_id: int,
        group: Processes,
        *,
        term: str | None = None,
    ) -> None:
        def lay_out(some: Sequence[Window], seed: int, progress: float) -> Batch:
            return batch_of(task, some, pad_id=pad_id, term=term)

        super().__init__(windows, lay_out, recipe, group)


def rate_scale(tune: TuneSettings, layers: int) -> Callable[[str], float]:
    """How the rate of a parameter, by its name, compares with the highest."""
    decay, head = tune.layer_decay, tune.head_factor

    def scale(name: str) -> float:
        if ".encoder." not in f".{name}":
            return head
        if ".blocks." in name:
            layer = int(name.split(".blocks.")[1].split(".")[0])
            return decay ** (layers - 1 - layer)
        return decay**layers

    return scale
