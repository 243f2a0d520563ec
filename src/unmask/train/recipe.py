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
from unmask.system.settings import Settings, validate
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
        named = {} if self.size is None else sized(self.size, vocab_size).model_dump()
        own = self.model_dump(exclude_none=True, include={*ModelConfig.model_fields})
        table = {**named, **own, "vocab_size": vocab_size}
        return validate(ModelConfig, table, where="recipe [model]")

    def spelled_out(self, config: ModelConfig) -> "ModelSettings":
        """Copy these settings with every value of `config` filled in.

        A stored recipe then keeps its meaning when the defaults of a later version change.
        """
        own = config.model_dump(exclude={"vocab_size", "borrows"})
        own["layer_settings"] = list(config.layer_settings)  # objects, which a dump makes tables
        return self.model_copy(update=own)


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
    prefetch: Literal["auto", "on", "off"] = (
        "auto"  # prefetch batches in a thread; auto: with a GPU
    )
    # A running mean of the weights is evaluated and published; its window is a fraction of the run.
    weight_average: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # window of averaged weights
    log_steps: Count = 1
    save_minutes: Annotated[float, Field(gt=0.0)] = 10.0
    save_steps: Count | None = None
    keep_checkpoints: Annotated[int, Field(ge=2)] = (
        2  # checkpoints, so that a damaged one has a predecessor
    )
    max_skipped_steps: Annotated[int, Field(ge=0)] = (
        10  # non-finite steps in a row that may be skipped
    )


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


def _choice(table: object, kind: Kind, known: Mapping[str, str]) -> object:
    """Validate a table by the objective or task that it names; imports its class, and so torch."""
    if not isinstance(table, Mapping):
        return table  # already a Choice, or something that pydantic refuses with its own message
    own: dict[str, object] = dict(table)
    name = own.pop("name", None)
    if name is None:
        names = ", ".join(names_of(kind, known))
        raise SettingsError(f"recipe [{kind}]: 'name' is missing; need one of {names}.")
    try:
        config: type[Settings] = find_class(kind, known, str(name)).Config
    except SettingsError as error:
        raise SettingsError(f"recipe [{kind}]: {error}") from None
    return Choice(name=str(name), settings=validate(config, own, where=f"recipe [{kind}]"))


_objective = partial(_choice, kind="objective", known=OBJECTIVES)
_task = partial(_choice, kind="task", known=TASKS)
ObjectiveChoice = Annotated[Choice, BeforeValidator(_objective)]
TaskChoice = Annotated[Choice, BeforeValidator(_task)]


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
    def _auto_needs_a_clock(self) -> "Recipe":
        if self.model.size == AUTO and self.schedule.minutes is None:
            raise ValueError(
                f'model.size is "{AUTO}", which needs to know how long the run is. Give --minutes, '
                "or a size."
            )
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> "Recipe":
        names = [entry.name for entry in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"two tasks are called {names!r}; need a name for each.")
        return self

    def changed(self, **tables: Mapping[str, Any]) -> "Recipe":
        """Copy with some settings of some tables replaced: `loop={"micro_batches": 2}`."""
        before: dict[str, Settings] = dict(self)
        update = {name: before[name].model_copy(update=own) for name, own in tables.items()}
        return self.model_copy(update=update)
