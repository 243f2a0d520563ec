"""The shape of a network: one frozen table, and BERT's named sizes.

The limits are far above any BERT; they keep a hostile or mistyped config from asking for more
than a machine can hold.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmask.errors import SettingsError, unknown
from unmask.settings import Settings

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]
Norm = Literal["post", "pre"]
Scheme = Literal["learned", "sinusoidal", "shaw", "t5", "rotary", "none"]
Cell = Literal["attention", "lstm", "gru"]
LabelKind = Literal["text", "token", "span"]
Answer = Literal["one", "several", "number"]  # of labels on a text

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
# Not strict, because JSON has lists instead of tuples.
Names = Annotated[tuple[str, ...], Field(strict=False)]
Layers = Annotated[tuple[Annotated[int, Field(ge=-513, le=513)], ...], Field(strict=False)]

TABLE_LIMIT = 2**23  # numbers of a table that is computed, not read: 32 MB
READ_BY_SCHEME = {  # settings that only some positions read
    "reach": ("shaw", "t5"),
    "buckets": ("t5",),
    "rotary_base": ("rotary",),
}


def _refuse_set(settings: Settings, *names: str, why: str) -> None:
    """Refuse settings that differ from their defaults, where nothing would read them."""
    for name in names:
        if getattr(settings, name) != type(settings).model_fields[name].default:
            raise ValueError(f"{name} is set, but {why}")


class ModelConfig(Settings):
    """Everything that decides which weights there are and what they compute."""

    vocab_size: Annotated[Count, Field(le=2**22)]
    width: Annotated[Count, Field(le=2**15)]
    layers: Annotated[Count, Field(le=512)]
    heads: Annotated[Count, Field(le=512)]
    inner_width: Annotated[Count, Field(le=2**17)]
    max_length: Annotated[Count, Field(le=2**17)] = 512
    segments: Annotated[Count, Field(le=64)] = 2
    activation: Activation = "gelu"
    gated: bool = False  # the feed-forward layer multiplies what is bent with what is not
    norm: Norm = "post"
    norm_epsilon: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-12
    dropout: Share = 0.1
    attention_dropout: Share = 0.1
    init_std: Annotated[float, Field(ge=0.0, le=1.0)] = 0.02

    positions: Scheme = "learned"
    reach: Annotated[Count, Field(le=2**12)] = 128  # shaw, t5: farther distances count as this one
    buckets: Annotated[int, Field(ge=4, le=2**12)] = 32  # t5: distances share this many biases
    rotary_base: Annotated[float, Field(gt=1.0)] = 10_000.0

    cell: Cell = "attention"  # what a layer is: a Transformer's block, or one that reads on and on
    causal: bool = False  # each token sees only itself and what came before
    window: Annotated[Count, Field(le=2**17)] | None = None  # ... and nothing farther than this

    @model_validator(mode="after")
    def _cell_fits(self) -> Self:
        if self.cell == "attention":
            return self
        fixed = {"heads": 1, "inner_width": self.width, "positions": "none"}
        fixed |= {"window": None, "gated": False, "norm": "post"}
        for name, need in fixed.items():
            if getattr(self, name) != need:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, and a layer of {self.cell} has none; need "
                    f"{need!r}."
                )
        if self.width % 2 and not self.causal:
            raise ValueError(
                f"width {self.width} is odd, and each of the two directions has half of it. Need "
                "an even width, or causal = true."
            )
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of heads {self.heads}; every head takes an "
                "equal share of the width. Change one of the two."
            )
        for name, schemes in READ_BY_SCHEME.items():
            if self.positions not in schemes:
                needs = f"only {' and '.join(schemes)} do. Leave it out."
                _refuse_set(self, name, why=f"{self.positions} positions do not read it; {needs}")
        channels = {"sinusoidal": self.width, "rotary": self.head_width}.get(self.positions, 0)
        if channels % 2:
            raise ValueError(
                f"{self.positions} positions use pairs of channels, and there are {channels}; "
                "need an even number. Change width or heads."
            )
        if self.max_length * channels > TABLE_LIMIT:
            raise ValueError(
                f"max_length {self.max_length} times {channels} channels; the table of "
                f"{self.positions} positions holds at most {TABLE_LIMIT:,}. Lower max_length."
            )
        if self.positions == "t5" and self.reach <= self.buckets // 2:
            raise ValueError(
                f"reach {self.reach} with {self.buckets} buckets; need a reach above half the "
                "buckets, which are spent on the nearest distances. Raise reach."
            )
        return self

    @property
    def head_width(self) -> int:
        """Channels of one head."""
        return self.width // self.heads


Context = Literal["last", "mapped", "all"]  # the last state; a map of it; a map of all states
Feeds = Literal["nothing", "word", "context", "both"]
Scoring = Literal["additive", "dot", "general"]


class DecoderConfig(Settings):
    """What says a text word by word, having read the states of another.

    Its width, heads and positions are the encoder's. The last four are of recurrent ones: a context
    is made of the encoder's states; it is where the decoder begins (feeds nothing or the word
    before), or is fed at every step (context, or both). With attention there is another context for
    every word: it is fed at the next step (both), or only read (word).
    """

    vocab_size: Annotated[Count, Field(le=2**22)]
    layers: Annotated[Count, Field(le=512)]
    max_length: Annotated[Count, Field(le=2**17)] = 512
    shared: bool = False  # its words are the encoder's, in one table
    cell: Cell = "attention"
    context: Context = "last"
    feeds: Feeds = "both"
    attention: Scoring | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.cell == "attention":
            why = "a Transformer does not read it; only lstm and gru do. Leave it out."
            _refuse_set(self, "context", "feeds", "attention", why=why)
        if self.attention and self.feeds not in ("word", "both"):
            raise ValueError(
                f'attention with feeds = "{self.feeds}"; a decoder that looks at the source is fed '
                "the word before: need word or both."
            )
        return self


class LabelsConfig(Settings):
    """A label head, if there is one."""

    labels: LabelKind | None = None  # a linear layer: on the pooled text, each token, span ends
    label_names: Names = ()
    label_dropout: Share = 0.1
    label_answer: Answer = "one"  # one label, any of them, or a number

    @model_validator(mode="after")
    def _labels_fit(self) -> Self:
        if (self.labels is None) != (not self.label_names):
            raise ValueError("labels and label_names go together; give both or neither.")
        if self.label_answer != "one" and self.labels != "text":
            raise ValueError("label_answer is of labels on a text; need labels = text.")
        if self.label_answer == "number" and len(self.label_names) != 1:
            raise ValueError("a number has one name; need one in label_names.")
        return self

    def alone(self) -> "HeadsConfig":
        """What stands on an encoder that has no other head."""
        return HeadsConfig(pooler=self.labels == "text", **self.model_dump())


class HeadsConfig(LabelsConfig):
    """What stands on the encoder."""

    pooler: bool = True  # tanh layer on [CLS]
    tokens: bool = False  # guesses hidden tokens, tied to the token embeddings
    pair: bool = False  # is the second text the next one?
    layers: Layers = ()  # whose states the labels read, side by side; () the usual ones
    several: dict[str, LabelsConfig] = Field(default_factory=dict)  # instead of labels: by name
    decoder: DecoderConfig | None = None  # says a text of its own

    def only(self, name: str) -> "HeadsConfig":
        """One of several heads, as if it stood alone."""
        return self.several[name].alone()

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        pooled = self.pair or (self.labels == "text" and not self.layers)
        if pooled and not self.pooler:
            raise ValueError("a pair head or text labels read the pooler; need pooler = true.")
        for name, own in self.several.items():
            if own.labels is None:
                raise ValueError(f"several: '{name}' has no labels; need labels and label_names.")
        return self


class SearchSettings(Settings):
    """How a target is looked for."""

    beams: Annotated[int, Field(ge=1, le=64)] = 1  # kept at every step; 1 is greedy
    penalty: Annotated[float, Field(ge=0.0, le=5.0)] = 1.0  # scores / length^penalty; 0: short ones
    longest: Count | None = None  # words; None: ten more than twice those of the source
    sample: bool = False  # draw words by their probability
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0  # below 1: nearer to the likeliest
    top_k: Annotated[int, Field(ge=0)] = 0  # draw among so many; 0: all
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # ... among the fewest with this share
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _is_read(self) -> Self:
        if not self.sample:
            why = "nothing is drawn; set sample = true."
            _refuse_set(self, "temperature", "top_k", "top_p", "seed", why=why)
        if self.beams == 1:
            _refuse_set(self, "penalty", why="nothing is compared; set beams above 1.")
        if self.sample and self.beams > 1:
            raise ValueError("sample and beams: words are drawn, or the best are kept. Give one.")
        return self


# Devlin et al. 2018 (base, large) and Turc et al. 2019: layers, width. A head has 64 channels,
# and the inner width of the feed-forward layer is four times the width.
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
        raise SettingsError(unknown("size", name, SIZES))
    layers, width = SIZES[name]
    return ModelConfig(
        vocab_size=vocab_size, width=width, layers=layers, heads=width // 64, inner_width=4 * width
    )
