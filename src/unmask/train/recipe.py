"""Recipes -> settings: everything that decides a pre-training run, in one checked table.

A recipe is a TOML file, or the name of one that comes with unmask; flags and `--set a.b=c` replace
values. The resolved recipe is written beside the result.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from unmask.data.kinds import ExampleSettings
from unmask.errors import SettingsError, unknown
from unmask.model.config import ModelConfig, sized
from unmask.settings import Settings, build, override, read_toml
from unmask.train.schedule import OptimizerSettings, ScheduleSettings

Count = Annotated[int, Field(ge=1)]
# What may be changed when a run is resumed: it decides nothing that is learned.
FREE = ("save_minutes", "save_steps", "keep", "log_steps", "bad_steps", "ahead")


AUTO = "auto"  # a size that is chosen when the run begins, see budget.py


class Phase(Settings):
    """A part of a run with rows of one length."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of the run
    length: Annotated[int, Field(ge=8, le=2**17)] = 128
    batch_tokens: Count = 32_768  # of one step, over all processes

    @property
    def rows(self) -> int:
        """Rows of one step."""
        return max(self.batch_tokens // self.length, 1)


class TrainSettings(Settings):
    """How a run is carried out and watched."""

    micro_tokens: Count = 2048  # computed at a time; the rest of a step is accumulated
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    ahead: Literal["auto", "on", "off"] = "auto"  # batches made in a thread; auto: with a GPU
    average: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # share of the run that a mean spans
    evaluations: Annotated[int, Field(ge=0)] = 20  # over the run
    eval_tokens: Count = 40_000  # of each evaluation at most; a short run takes fewer
    log_steps: Count = 1
    save_minutes: Annotated[float, Field(gt=0.0)] = 10.0
    save_steps: Count | None = None
    keep: Annotated[int, Field(ge=2)] = 2  # checkpoints
    bad_steps: Annotated[int, Field(ge=0)] = 10  # in a row that may be left out as not finite


class Recipe(Settings):
    """A pre-training run."""

    seed: Annotated[int, Field(ge=0)] = 0
    model: dict[str, Any] = Field(default_factory=lambda: {"size": "base"})
    examples: ExampleSettings = ExampleSettings()
    objective: dict[str, Any] = Field(default_factory=lambda: {"name": "mlm"})
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings
    phases: list[Phase] = Field(default_factory=lambda: [Phase()])
    train: TrainSettings = TrainSettings()

    @field_validator("model")
    @classmethod
    def _has_a_size(cls, table: dict[str, Any]) -> dict[str, Any]:
        return {"size": "base", **table}

    @field_validator("objective")
    @classmethod
    def _has_a_name(cls, table: dict[str, Any]) -> dict[str, Any]:
        return {"name": "mlm", **table}

    @model_validator(mode="after")
    def _auto_needs_a_clock(self) -> "Recipe":
        if self.model["size"] == AUTO and self.schedule.minutes is None:
            raise ValueError(
                f'model.size is "{AUTO}", which needs to know how long the run is. Give --minutes, '
                "or a size."
            )
        return self

    @model_validator(mode="after")
    def _phases_are_the_run(self) -> "Recipe":
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"the shares of the phases make {total:g}; need 1. Change one.")
        return self

    def network(self, vocab_size: int) -> ModelConfig:
        """The config of the network, for a vocabulary."""
        table = dict(self.model)
        named = sized(str(table.pop("size")), vocab_size).model_dump()
        longest = max(phase.length for phase in self.phases)
        if table.get("vocab_size", vocab_size) != vocab_size:
            raise SettingsError(
                f"recipe [model]: vocab_size is {table['vocab_size']!r}; the corpus brings its own "
                "vocabulary. Leave vocab_size out."
            )
        config = build(ModelConfig, {**named, **table}, where="recipe [model]")
        if longest > config.max_length:
            raise SettingsError(
                f"recipe [[phases]]: rows of {longest} tokens; the network reads at most "
                f"{config.max_length}. Lower length, or raise model.max_length."
            )
        return config

    def evaluated_tokens(self) -> int:
        """Tokens of an evaluation: so many that all together cost a tenth of the run or less.

        A token costs a third in evaluation, for there is no way back.
        """
        if self.schedule.steps is None or not self.train.evaluations:
            return self.train.eval_tokens
        run = sum(self.schedule.steps * p.share * p.rows * p.length for p in self.phases)
        return min(self.train.eval_tokens, max(8192, round(0.3 * run / self.train.evaluations)))

    @property
    def evaluated(self) -> Phase:
        """The phase whose rows are evaluated on: that which the run ends with, if it can.

        Learned positions beyond the first phase mean nothing before then.
        """
        learned = self.model.get("positions", "learned") == "learned"
        return self.phases[0 if learned else -1]

    def micro_rows(self, phase: Phase, world: int) -> int:
        """Rows that are computed at a time: the most that fit and share out evenly."""
        if phase.rows % world:
            raise SettingsError(
                f"recipe [[phases]]: {phase.rows} rows a step cannot be shared evenly by {world} "
                f"processes. Change batch_tokens to a multiple of {world * phase.length}."
            )
        most = max(self.train.micro_tokens // phase.length, 1)
        fits = [m for m in range(1, most + 1) if phase.rows % (m * world) == 0]
        return max(fits)


def recipe_table(name: str) -> dict[str, Any]:
    """A recipe by its path or, if it comes with unmask, by its name."""
    if name.endswith(".toml"):
        return read_toml(Path(name))
    if name not in known_recipes():
        raise SettingsError(unknown("recipe", name, known_recipes()))
    return read_toml(known_recipes()[name])


def compose(
    name: str,
    assignments: Iterable[str] = (),
    *,
    steps: int | None = None,
    minutes: float | None = None,
    length: int | None = None,
    batch_tokens: int | None = None,
) -> dict[str, Any]:
    """A recipe with some of its settings replaced."""
    table = recipe_table(name)
    if steps is not None or minutes is not None:
        if steps is not None and minutes is not None:
            raise SettingsError("--steps and --minutes: a run has one length. Give one of them.")
        schedule = dict(table.get("schedule", {}))
        schedule.pop("steps", None), schedule.pop("minutes", None)
        schedule |= {"steps": steps} if steps is not None else {"minutes": minutes}
        table["schedule"] = schedule
    phases = table.get("phases") or [{}]
    if length is not None:
        phases = [{**phases[0], "share": 1.0, "length": length}]
    if batch_tokens is not None:
        phases = [{**phase, "batch_tokens": batch_tokens} for phase in phases]
    return override({**table, "phases": phases}, assignments)


def known_recipes() -> dict[str, Path]:
    """The recipes that come with unmask."""
    return {path.stem: path for path in sorted(recipes_folder().glob("*.toml"))}


def recipes_folder() -> Path:
    """Where they are: in an installed package, or in a checkout beside it."""
    package = Path(__file__).parents[1]
    inside, checkout = package / "recipes", package.parents[1] / "recipes"
    return inside if inside.is_dir() else checkout


def changed(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first setting that differs and may not, as `name (then, now)`; None if none does."""
    old, new = _flat(before), _flat(now)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name) and name.rpartition(".")[2] not in FREE:
            return f"{name} ({old.get(name)!r} then, {new.get(name)!r} now)"
    return None


def _flat(table: Any, name: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; what is None is left out, as a TOML file does."""
    if not isinstance(table, dict | list):
        return {} if table is None else {name: table}
    items = table.items() if isinstance(table, dict) else enumerate(table)
    flat: dict[str, Any] = {}
    for key, value in items:
        flat |= _flat(value, f"{name}.{key}" if name else str(key))
    return flat
