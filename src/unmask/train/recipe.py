"""Everything that decides a run, in one checked table: the settings that a recipe may hold."""

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

AUTO = "auto"  # a size that is chosen when a run begins


class DecoderSettings(Settings):
    """The shape of a decoder where it differs from the encoder's."""

    layers: int | None = None
    max_length: int | None = None
    cell: Cell | None = None
    context: Context | None = None
    feeds: Feeds | None = None
    attention: Scoring | None = None


class ModelSettings(Settings):
    """The shape of a new encoder; what is left out comes from its size, or from ModelConfig."""

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
    frozen: int = 0  # blocks from the bottom that stay as they are, and the embeddings; -1: all
    head_layers: Literal["weighted"] | list[int] = Field(default_factory=list)  # that a head reads

    def config(self, vocab_size: int) -> ModelConfig:
        """The whole shape, for a vocabulary."""
        named = {} if self.size is None else sized(self.size, vocab_size).model_dump()
        own = self.model_dump(exclude_none=True, include={*ModelConfig.model_fields})
        table = {**named, **own, "vocab_size": vocab_size}
        return validate(ModelConfig, table, where="recipe [model]")

    def spelled_out(self, config: ModelConfig) -> "ModelSettings":
        """The same with every setting of a shape in it."""
        own = config.model_dump(exclude={"vocab_size", "borrows"})
        own["layer_settings"] = list(config.layer_settings)
        return self.model_copy(update=own)


class TokenizerSettings(Settings):
    """How long a text may be, and the vocabulary where a run learns its own."""

    max_length: Annotated[int, Field(ge=8)] | None = None  # tokens of a text; None: all that fit
    size: Annotated[int, Field(ge=10)] = 8000  # of each side, or of both together
    joint: bool = True  # one vocabulary, and one table of vectors, for both sides
    cased: bool = False
    accents: bool = True  # are kept


class DataSettings(ExampleSettings):
    """What examples are made of, and how several data sets are mixed."""

    temperature: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5  # 1: by their sizes; 0: all alike


class LoopSettings(Settings):
    """How steps are computed and saved."""

    batch_size: Count = 32  # examples of a step, where they are counted
    micro_tokens: Count = 2048  # computed at a time; the rest of a step is accumulated
    micro_batches: Count = 1  # the least number of micro-batches of a step
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    ahead: Literal["auto", "on", "off"] = "auto"  # batches made in a thread; auto: with a GPU
    average: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # share of the run that a mean spans
    log_steps: Count = 1
    save_minutes: Annotated[float, Field(gt=0.0)] = 10.0
    save_steps: Count | None = None
    keep: Annotated[int, Field(ge=2)] = 2  # checkpoints
    bad_steps: Annotated[int, Field(ge=0)] = 10  # in a row that may be skipped as not finite


class EvaluateSettings(Settings):
    """How often a run is evaluated, and on how much."""

    times: Annotated[int, Field(ge=0)] = 20  # over the run
    tokens: Count = 40_000  # of each evaluation at most; a short run takes fewer
    patience: Annotated[int, Field(ge=0)] = 0  # evaluations without a better one; 0: to the end


class Choice(Settings):
    """The name of an objective or a task, and its own settings; in a file, one flat table."""

    name: str
    settings: SerializeAsAny[Settings]

    checks_itself: ClassVar[bool] = True  # its keys are those of the settings that it names

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"name": self.name, **self.settings.model_dump(exclude_none=True)}


def _choice(table: object, kind: Kind, known: Mapping[str, str]) -> object:
    """Look up whose settings a table holds, by the name in it. Imports its class, and so torch."""
    if not isinstance(table, Mapping):
        return table
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
    """One of several tasks, and its files."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]  # of its head and its folder
    task: TaskChoice
    train: str
    dev: str
    text: str | None = None
    second: str | None = None
    label: str | None = None


class Recipe(Settings):
    """Everything that decides a run."""

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
        """Replace some settings of some tables: `loop={"micro_batches": 2}`."""
        before: dict[str, Settings] = dict(self)
        update = {name: before[name].model_copy(update=own) for name, own in tables.items()}
        return self.model_copy(update=update)
