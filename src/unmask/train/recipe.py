"""The settings of a recipe, as one validated table: everything that decides a run."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_serializer, model_validator

from unmask.data.corpus.config import ExampleSettings
from unmask.model.config import (
    Activation,
    Cell,
    LayerConfig,
    ModelConfig,
    Norm,
    NormKind,
    Scheme,
    sized,
)
from unmask.model.shape import Context, Feeds, Scoring
from unmask.objectives import OBJECTIVES
from unmask.system.errors import SettingsError
from unmask.system.plugins import Kind, find_class
from unmask.system.plugins import known_names as names_of
from unmask.system.settings import Settings, old_names_within, validate
from unmask.tasks import TASKS
from unmask.train.optim.schedules import Count, OptimizerSettings, ScheduleSettings

AUTO = "auto"  # the size is chosen by timing when the run starts


class DecoderSettings(Settings):
    """Settings of a decoder that differ from the encoder's."""

    layers: int | None = None
    max_length: int | None = None
    cell: Cell | None = None
    context: Context | None = None
    feeds: Feeds | None = None
    attention: Scoring | None = None


class ModelSettings(Settings):
    """Shape of a new encoder; unset values come from `size`, or else from `ModelConfig`."""

    size: str | None = None
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    head_size: int | None = None
    inner_width: int | None = None
    max_length: int | None = None
    segments: int | None = None
    activation: Activation | None = None
    gated: bool | None = None
    bias: bool | None = None
    norm: Norm | None = None
    norm_kind: NormKind | None = None
    norm_bias: bool | None = None
    norm_epsilon: float | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    init_std: float | None = None
    embedding_width: int | None = None
    positions: Scheme | None = None
    reach: int | None = None
    buckets: int | None = None
    rotary_base: float | None = None
    cell: Cell | None = None
    causal: bool | None = None
    window: int | None = None
    layer_settings: list[LayerConfig] = Field(default_factory=list)
    layer_cycle: int | None = None
    layer_groups: int | None = None
    decoder: DecoderSettings = DecoderSettings()
    frozen: int = 0  # layers from the bottom to freeze, with the embeddings; -1: all
    head_layers: Literal["weighted"] | list[int] = Field(default_factory=list)  # that heads read

    def config(self, vocab_size: int) -> ModelConfig:
        """Complete the shape for a vocabulary of this size."""
        size_settings = {} if self.size is None else sized(self.size, vocab_size).model_dump()
        overrides = self.model_dump(exclude_none=True, include={*ModelConfig.model_fields})
        table = {**size_settings, **overrides, "vocab_size": vocab_size}
        return validate(ModelConfig, table, where="recipe [model]")

    def spelled_out(self, config: ModelConfig) -> "ModelSettings":
        """Copy these settings with every value of `config` filled in.

        A stored recipe then keeps its meaning when the defaults of a later version change.
        """
        values = config.model_dump(exclude={"vocab_size", "borrows"})
        values["layer_settings"] = list(config.layer_settings)  # objects, which a dump makes tables
        return self.model_copy(update=values)


class TokenizerSettings(Settings):
    """Maximum length of a text, and the vocabulary of a run that learns its own."""

    max_length: Annotated[int, Field(ge=8)] | None = None  # tokens; None: the model's maximum
    size: Annotated[int, Field(ge=10)] = 8000  # vocabulary size: per language, or shared
    joint: bool = True  # both languages share a vocabulary and its embeddings
    cased: bool = False
    accents: bool = True  # False: strip them


class DataSettings(ExampleSettings):
    """How examples are made, how dev data are split off, and how several data sets are mixed."""

    temperature: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5  # 1: sample by size; 0: uniformly
    # Read where no dev data are given. None: 0.1, and the seed of the run.
    dev_share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # of the training data
    dev_seed: Annotated[int, Field(ge=0)] | None = None  # which records; not the seed of a trial


class LoopSettings(Settings):
    """How steps are computed, logged and saved."""

    batch_size: Count = 32  # in examples; pre-training counts tokens
    micro_batch_tokens: Count = 2048  # of a micro-batch; a step accumulates gradients over several
    micro_batches: Count = 1  # in a step, at least; raised to the number of processes
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    # Prefetch batches in a thread; auto: if there is a GPU.
    prefetch: Literal["auto", "on", "off"] = "auto"
    # A running mean of the weights is evaluated and published; its window is a fraction of the run.
    weight_average: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # window of averaged weights
    log_steps: Count = 1
    save_minutes: Annotated[float, Field(gt=0.0)] = 10.0
    save_steps: Count | None = None
    # At least two checkpoints, so that a damaged one has a predecessor.
    keep_checkpoints: Annotated[int, Field(ge=2)] = 2
    # Non-finite steps in a row that may be skipped.
    max_skipped_steps: Annotated[int, Field(ge=0)] = 10


class EvaluateSettings(Settings):
    """How often a run is evaluated, and on how many tokens."""

    times: Annotated[int, Field(ge=0)] = 20  # evaluations over the run
    tokens: Count = 40_000  # of one evaluation, at most; short runs use fewer
    patience: Annotated[int, Field(ge=0)] = 0  # bad evaluations before stopping; 0: never


class Choice(Settings):
    """The name of an objective or a task with its own settings; one flat table in a file."""

    name: str
    settings: SerializeAsAny[Settings]

    checks_itself: ClassVar[bool] = True  # its valid keys depend on the name in it

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"name": self.name, **self.settings.model_dump(exclude_none=True)}


def _validate_choice(table: object, kind: Kind, builtin: Mapping[str, str]) -> object:
    """Validate a table by the objective or task that it names; imports its class, and so torch."""
    if not isinstance(table, Mapping):
        return table  # already a Choice, or something that pydantic refuses with its own message
    settings_table: dict[str, object] = dict(table)
    name = settings_table.pop("name", None)
    if name is None:
        names = ", ".join(names_of(kind, builtin))
        raise SettingsError(f"recipe [{kind}]: 'name' is missing; need one of {names}.")
    try:
        config: type[Settings] = find_class(kind, builtin, str(name)).Config
    except SettingsError as error:
        raise SettingsError(f"recipe [{kind}]: {error}") from None
    return Choice(
        name=str(name), settings=validate(config, settings_table, where=f"recipe [{kind}]")
    )


def old_choice_names(table: Mapping[str, Any]) -> dict[str, str]:
    """Return the former names of settings of the objective and the tasks in a recipe's table.

    Imports their classes, and so torch. Former names in `[[tasks]]` are returned only where they
    are used, as `tasks.0.task.name`.
    """
    names: dict[str, str] = {}
    choices: tuple[tuple[Kind, Mapping[str, str]], ...] = (
        ("objective", OBJECTIVES),
        ("task", TASKS),
    )
    for kind, builtin in choices:
        for old, new in _old_names(table.get(kind), kind, builtin).items():
            names[f"{kind}.{old}"] = f"{kind}.{new}"
    entries: object = table.get("tasks")
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        task: object = entry.get("task") if isinstance(entry, Mapping) else None
        for old, new in _old_names(task, "task", TASKS).items():
            if _holds(task, old):
                names[f"tasks.{number}.task.{old}"] = f"tasks.{number}.task.{new}"
    return names


def _old_names(table: object, kind: Kind, builtin: Mapping[str, str]) -> dict[str, str]:
    """Return the former names of settings of the class that a table names, if it is known."""
    name = table.get("name") if isinstance(table, Mapping) else None
    if name not in names_of(kind, builtin):  # reported when the table is validated
        return {}
    config: type[Settings] = find_class(kind, builtin, str(name)).Config
    return old_names_within(config)


def _holds(table: object, name: str) -> bool:
    """Whether a table has a setting, given as `key` or `key.key`."""
    key, _, rest = name.partition(".")
    if not isinstance(table, Mapping) or key not in table:
        return False
    return not rest or _holds(table[key], rest)


_objective_choice = partial(_validate_choice, kind="objective", builtin=OBJECTIVES)
_task_choice = partial(_validate_choice, kind="task", builtin=TASKS)
ObjectiveChoice = Annotated[Choice, BeforeValidator(_objective_choice)]
TaskChoice = Annotated[Choice, BeforeValidator(_task_choice)]


class TaskEntry(Settings):
    """One task of several, with its files."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]  # names its head, metrics and folder
    task: TaskChoice
    train: str
    dev: str | None = None  # None: a share of `train`
    text: str | None = None
    second: str | None = None
    label: str | None = None


class Recipe(Settings):
    """All settings that decide what a run learns, and how."""

    seed: Annotated[int, Field(ge=0)] = 0
    model: ModelSettings = ModelSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    data: DataSettings = DataSettings()
    objective: ObjectiveChoice | None = None
    task: TaskChoice | None = None
    tasks: list[TaskEntry] = Field(default_factory=list)
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings
    loop: LoopSettings = LoopSettings()
    evaluate: EvaluateSettings = EvaluateSettings()

    @model_validator(mode="after")
    def _check_auto_size(self) -> "Recipe":
        if self.model.size == AUTO and self.schedule.minutes is None:
            raise ValueError(
                f'model.size is "{AUTO}", which chooses a size for a time budget, but '
                "schedule.minutes is not set. Set it (--minutes), or give model.size a fixed size."
            )
        return self

    @model_validator(mode="after")
    def _check_unique_names(self) -> "Recipe":
        names = [entry.name for entry in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"task names are not unique: {names!r}. Give each task its own name.")
        return self

    def changed(self, **tables: Mapping[str, Any]) -> "Recipe":
        """Copy with some settings of some tables replaced: `loop={"micro_batches": 2}`."""
        current: dict[str, Settings] = dict(self)
        update = {
            name: current[name].model_copy(update=changes) for name, changes in tables.items()
        }
        return self.model_copy(update=update)
