"""Settings of an encoder, BERT's named sizes, and settings of beam search. Does not import torch.

The upper limits are far above any published BERT. They keep a hostile or mistyped config from
allocating more memory than a machine has.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from unmask.system.errors import SettingsError, unknown_name
from unmask.system.settings import Settings

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]
Norm = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
Scheme = Literal["learned", "sinusoidal", "shaw", "t5", "rotary", "none"]
Cell = Literal["attention", "lstm", "gru"]

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]


def _refuse_reserved_name(name: str) -> str:
    # `train()` assigns to the attribute `training`; torch raises if a submodule has that name.
    if name == "training":
        raise ValueError(f"'{name}' is an attribute of every torch module; choose another name.")
    return name


# A component of tensor names, in which a dot separates components.
ModuleName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_-]{1,60}$"), AfterValidator(_refuse_reserved_name)
]

# The sizes of weights are checked against the file that has them. A computed table of positions
# is in no file, so this limit is all that bounds its memory: 32 MB in float32.
TABLE_LIMIT = 2**23
MAX_WINDOWS = 16  # distinct window sizes of an encoder: each needs an attention mask of its own
READ_BY_SCHEME = {  # settings that only some position encodings read
    "reach": ("shaw", "t5"),
    "buckets": ("t5",),
    "rotary_base": ("rotary",),
}


def refuse_unread(settings: Settings, *names: str, why: str) -> None:
    """Raise if one of the named settings is not at its default, because nothing would read it."""
    for name in names:
        if getattr(settings, name) != type(settings).model_fields[name].default:
            raise ValueError(f"{name} is set, but {why}")


class LayerConfig(Settings):
    """Settings of one layer that override those of the model; None means no override."""

    window: Annotated[Count, Field(le=2**17)] | None = None
    rotary_base: Annotated[float, Field(gt=1.0)] | None = None
    # ModernBERT has none in its first layer: its embeddings are normalised just before.
    attention_norm: bool = True


NO_OVERRIDES = LayerConfig()
# Not strict, because JSON has lists instead of tuples.
LayerConfigs = Annotated[tuple[LayerConfig, ...], Field(strict=False)]


class ModelConfig(Settings):
    """Settings of one encoder: they determine its parameters and what it computes."""

    vocab_size: Annotated[Count, Field(le=2**22)]
    width: Annotated[Count, Field(le=2**15)]
    layers: Annotated[Count, Field(le=512)]
    heads: Annotated[Count, Field(le=512)]
    head_size: Annotated[Count, Field(le=2**12)] | None = None  # None: width / heads
    inner_width: Annotated[Count, Field(le=2**17)]
    max_length: Annotated[Count, Field(le=2**17)] = 512
    segments: Annotated[Count, Field(le=64)] = 2
    activation: Activation = "gelu"
    gated: bool = False  # GLU feed-forward: activation(xW) * xV (Shazeer 2020)
    bias: bool = True  # in the linear layers of the blocks
    norm: Norm = "post"
    norm_kind: NormKind = "layer"
    norm_bias: bool = True
    norm_epsilon: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-12
    dropout: Share = 0.1
    attention_dropout: Share = 0.1
    init_std: Annotated[float, Field(ge=0.0, le=1.0)] = 0.02
    embedding_width: Annotated[Count, Field(le=2**15)] | None = None  # factorised; None: width
    borrows: ModuleName | None = None  # encoder that lends its token embeddings to this one

    positions: Scheme = "learned"
    reach: Annotated[Count, Field(le=2**12)] = 128  # shaw, t5: longer distances are clipped to it
    buckets: Annotated[int, Field(ge=4, le=2**12)] = 32  # t5: number of biases for all distances
    rotary_base: Annotated[float, Field(gt=1.0)] = 10_000.0

    cell: Cell = "attention"  # a Transformer block per layer, or a recurrent layer
    causal: bool = False  # each token attends only to itself and earlier tokens
    # Each token attends only to tokens at most this far away; None: no limit.
    window: Annotated[Count, Field(le=2**17)] | None = None

    # One entry per layer. With fewer entries than layers, the last `layer_cycle` entries repeat.
    layer_settings: LayerConfigs = ()
    layer_cycle: Count | None = None  # None: all entries repeat
    # Layers of a group share one block of weights (ALBERT has 1 group); None: no sharing.
    layer_groups: Count | None = None

    @model_validator(mode="after")
    def _cell_fits(self) -> Self:
        if self.cell == "attention":
            return self
        # A recurrent layer reads none of these; a setting that nothing reads is refused, rather
        # than ignored in silence.
        fixed = {"heads": 1, "inner_width": self.width, "positions": "none"}
        fixed |= {"window": None, "gated": False, "norm": "post", "head_size": None}
        for name, required in fixed.items():
            if getattr(self, name) != required:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, but {self.cell} layers do not use it; "
                    f"need {required!r}."
                )
        why = f"{self.cell} layers do not use it. Remove it."
        refuse_unread(self, "bias", "layer_settings", "layer_cycle", why=why)
        if self.width % 2 and not self.causal:
            raise ValueError(
                f"width {self.width} is odd, but each of the two directions gets half of it. Use "
                "an even width, or set causal = true."
            )
        return self

    @model_validator(mode="after")
    def _layers_fit(self) -> Self:
        for problem in self._problems_of_layers():
            raise ValueError(problem)
        return self

    def _problems_of_layers(self) -> Iterator[str]:
        """Yield an error message for each inconsistency among the per-layer settings."""
        entries, cycle, groups = self.layer_settings, self.layer_cycle, self.layer_groups
        if len(entries) > self.layers:
            yield (
                f"layer_settings has {len(entries)} entries, but there are {self.layers} layers; "
                "need one entry per layer, or fewer, in which case the last entries repeat."
            )
        if cycle and cycle > len(entries):
            yield (
                f"layer_cycle is {cycle}, but layer_settings has only {len(entries)} entries to "
                "repeat. Lower layer_cycle, or add entries."
            )
        if groups and groups > self.layers:
            yield (
                f"layer_groups is {groups}, but there are only {self.layers} layers, and every "
                "group needs at least one. Lower layer_groups."
            )
        if self.window and any(entry.window for entry in entries):
            yield "window is set for the whole model and again in layer_settings. Use only one."
        if self.positions != "rotary" and any(entry.rotary_base for entry in entries):
            yield (
                f"layer_settings: rotary_base is set, but {self.positions} positions do not use "
                "it; only rotary positions do. Remove it."
            )
        if len({entry.window for entry in entries}) > MAX_WINDOWS:
            yield f"layer_settings has more than {MAX_WINDOWS} different windows; use fewer."
        for number in range(1, self.layers):
            previous, current = self.layer(number - 1), self.layer(number)
            # Windows and rotary bases have no weights, so layers that share a block may differ in
            # them. A norm has weights: the shared block has it or not.
            shared = self.group_of(number - 1) == self.group_of(number)
            if shared and previous.attention_norm != current.attention_norm:
                yield (
                    f"layer_settings: attention_norm differs between layers {number - 1} and "
                    f"{number}, which share their weights (layer_groups = {groups}). Use the same "
                    "value in both."
                )

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.head_size is None and self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of heads {self.heads}, but every head gets "
                "an equal share of the width. Change one of the two, or set head_size."
            )
        if self.norm_kind == "rms":
            refuse_unread(self, "norm_bias", why="RMS norm has no bias. Remove it.")
        for name, schemes in READ_BY_SCHEME.items():
            if self.positions not in schemes:
                needs = f"only {' and '.join(schemes)} do. Remove it."
                refuse_unread(self, name, why=f"{self.positions} positions do not use it; {needs}")
        channels = self.channels
        if channels % 2:  # sine and cosine, or the two coordinates of a rotation, go in pairs
            raise ValueError(
                f"{self.positions} positions use pairs of channels, but there are {channels}; "
                "need an even number. Change width, heads or head_size."
            )
        tables = len(self.rotary_bases) if self.positions == "rotary" else 1
        if self.max_length * channels * tables > TABLE_LIMIT:
            in_tables = f", in {tables} tables" if tables > 1 else ""
            raise ValueError(
                f"max_length {self.max_length} times {channels} channels{in_tables}: a table of "
                f"{self.positions} positions may hold at most {TABLE_LIMIT:,} numbers. Lower "
                "max_length."
            )
        # Half of the buckets at most are exact distances. The others grow up to `reach`, by a
        # logarithm whose scale would be zero or negative with a smaller reach.
        if self.positions == "t5" and self.reach <= self.buckets // 2:
            raise ValueError(
                f"reach {self.reach} with {self.buckets} buckets: half of the buckets are for "
                "the nearest distances, so reach must be above half their number. Raise reach."
            )
        return self

    def layer(self, number: int) -> LayerConfig:
        """Return the settings of a layer, numbered from 0."""
        entries = self.layer_settings
        if not entries:
            return NO_OVERRIDES
        # Layers past the last entry run through the last `cycle` entries again and again.
        past, cycle = number - len(entries), self.layer_cycle or len(entries)
        return entries[number] if past < 0 else entries[len(entries) - cycle + past % cycle]

    @property
    def groups(self) -> int:
        """Number of distinct blocks; the layers of one group share a block."""
        return self.layer_groups or self.layers

    def group_of(self, layer: int) -> int:
        """Return the group of a layer, which is also the index of its block."""
        return layer * self.groups // self.layers

    @property
    def rotary_bases(self) -> list[float]:
        """The distinct rotary bases of all layers, in ascending order."""
        layer_bases = (self.layer(number).rotary_base for number in range(self.layers))
        return sorted({base or self.rotary_base for base in layer_bases})

    @property
    def table_width(self) -> int:
        """Width of a token embedding."""
        return self.embedding_width or self.width

    @property
    def channels(self) -> int:
        """Channels per position of a computed position table; 0 if no table is computed."""
        widths = {"sinusoidal": self.table_width, "rotary": self.head_width}
        return widths.get(self.positions, 0)

    @property
    def head_width(self) -> int:
        """Channels of one attention head."""
        return self.head_size or self.width // self.heads


class SearchSettings(Settings):
    """Settings of text generation: greedy, beam search or sampling."""

    beam_size: Annotated[int, Field(ge=1, le=64)] = 1  # 1 is greedy
    # Log-probabilities are divided by length^length_penalty: 0 favours short texts, 1 compares
    # means per token.
    length_penalty: Annotated[float, Field(ge=0.0, le=5.0)] = 1.0
    max_length: Count | None = None  # tokens; None: 10 more than twice the source
    sample: bool = False  # draw tokens by their probability
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0  # below 1 favours likely tokens
    top_k: Annotated[int, Field(ge=0)] = 0  # draw among the k most likely tokens; 0: all
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # fewest tokens with this probability
    seed: Annotated[int, Field(ge=0)] = 0

    old_names: ClassVar[Mapping[str, str]] = {
        "beams": "beam_size",
        "penalty": "length_penalty",
        "longest": "max_length",
    }

    @model_validator(mode="after")
    def _sampling_fits(self) -> Self:
        if not self.sample:
            why = "it only applies to sampling; set sample = true."
            refuse_unread(self, "temperature", "top_k", "top_p", "seed", why=why)
        if self.beam_size == 1:
            why = "greedy search compares nothing; use a beam size above 1."
            refuse_unread(self, "length_penalty", why=why)
        if self.sample and self.beam_size > 1:
            raise ValueError("sampling and beam search exclude each other. Use one of them.")
        return self


# (layers, width) of base and large by Devlin et al. 2018, of the others by Turc et al. 2019. A head
# has 64 channels, and the inner width of the feed-forward layer is four times the width.
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


def sized(name: str, vocab_size: int = 30_522) -> ModelConfig:
    """Return the config of a named size."""
    if name not in SIZES:
        raise SettingsError(unknown_name("size", name, SIZES, in_order=True))
    layers, width = SIZES[name]
    return ModelConfig(
        vocab_size=vocab_size, width=width, layers=layers, heads=width // 64, inner_width=4 * width
    )
