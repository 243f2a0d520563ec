"""The shape of a network: the configs of its encoders and heads, by name. Does not import torch.

A head names the encoder whose hidden states it reads, and the layers it reads them from. BERT's
heads have their usual names here; an objective or a task may add heads of other names.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmask.model.config import (
    TABLE_LIMIT,
    Cell,
    Count,
    ModelConfig,
    ModuleName,
    Share,
    refuse_unread,
)
from unmask.system.settings import Settings, validate

LabelKind = Literal["text", "token", "span"]
LabelAnswer = Literal["one", "several", "number"]  # single-label, multi-label, regression
Context = Literal["last", "mapped", "all"]  # last state; projected; mean of all, projected
Feeds = Literal["nothing", "word", "context", "both"]
Scoring = Literal["additive", "dot", "general"]
# Not strict, because JSON has lists instead of tuples.
Names = Annotated[tuple[str, ...], Field(strict=False)]
Layers = Annotated[
    tuple[Annotated[int, Field(ge=-513, le=513)], ...], Field(strict=False, min_length=1)
]
# The last layer, a concatenation of chosen layers, or a learned weighted mean of all layers
# (Peters et al. 2018).
Mix = Literal["last", "weighted"] | Layers

MAIN = "main"  # the encoder that every network has
POOLER, TOKENS, PAIR, LABELS, DECODER = "pooler", "tokens", "pair", "labels", "decoder"
# In multi-task models a label head has the name of its task, so it is none of these.
RESERVED_NAMES = (POOLER, TOKENS, PAIR, LABELS, DECODER)
MAX_PARTS = 64  # encoders of a network, and heads
MOST_LAYERS = 1024  # of all encoders and decoders together: twice the limit of a single one
MOST_COMPUTED = 4 * TABLE_LIMIT  # numbers in all computed position tables together


class HeadInput(Settings):
    """Where a head gets its hidden states from: an encoder and its layers."""

    encoder: ModuleName = MAIN
    mix: Mix = "last"  # as layer numbers: 0 is the embeddings, -1 the last layer


class PoolerConfig(HeadInput):
    """Pooler: a linear layer with tanh on the state of [CLS]."""

    kind: Literal["pooler"] = "pooler"


class TokensConfig(HeadInput):
    """Token prediction head, with the token embeddings of its encoder as output weights."""

    kind: Literal["tokens"] = "tokens"


class LabelsConfig(HeadInput):
    """Classification head: a linear layer on the pooled text, on each token, or for span ends."""

    kind: Literal["labels"] = "labels"
    on: LabelKind = "text"
    names: Annotated[Names, Field(min_length=1)]
    dropout: Share = 0.1
    answer: LabelAnswer = "one"

    @property
    def pooled(self) -> bool:
        """Whether the head reads the pooler's output rather than hidden states."""
        return self.on == "text" and self.mix == "last"

    @model_validator(mode="after")
    def _answer_fits(self) -> Self:
        if self.answer != "one" and self.on != "text":
            raise ValueError(
                f'answer = "{self.answer}" only applies to labels of a text; set on = "text".'
            )
        if self.answer == "number" and len(self.names) != 1:
            raise ValueError(
                f'answer = "number" needs exactly one name; names has {len(self.names)}.'
            )
        return self


class VectorConfig(HeadInput):
    """Projection head: a linear layer to vectors of another width."""

    kind: Literal["vector"] = "vector"
    width: Annotated[Count, Field(le=2**15)]
    bias: bool = True


class DecoderConfig(HeadInput):
    """Decoder that generates a text token by token from an encoder's hidden states.

    Its width, attention heads and positions are the encoder's. `context`, `feeds` and `attention`
    are of recurrent cells only:

    - `context` is how a context vector is made of the encoder's states.
    - `feeds` is the input of each step. With "nothing" or "word" (the previous token), the context
      is the initial state; with "context" or "both", it is also an input at every step.
    - With `attention`, each step computes a context of its own: from the previous state and as an
      input ("both"), or from the new state and for the output only ("word").
    """

    kind: Literal["decoder"] = "decoder"
    vocab_size: Annotated[Count, Field(le=2**22)]
    layers: Annotated[Count, Field(le=512)]
    max_length: Annotated[Count, Field(le=2**17)] = 512
    shared: bool = False  # share the encoder's token embeddings
    cell: Cell = "attention"
    context: Context = "last"
    feeds: Feeds = "both"
    attention: Scoring | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.cell == "attention":
            why = "Transformer decoders do not use it; only lstm and gru do. Remove it."
            refuse_unread(self, "context", "feeds", "attention", why=why)
        if self.attention and self.feeds not in ("word", "both"):
            raise ValueError(
                f'attention with feeds = "{self.feeds}": a decoder with attention needs the '
                'previous token as input. Set feeds to "word" or "both".'
            )
        if self.mix != "last":
            raise ValueError("a decoder always reads the last layer. Remove mix.")
        return self


HeadConfig = Annotated[
    PoolerConfig | TokensConfig | LabelsConfig | VectorConfig | DecoderConfig,
    Field(discriminator="kind"),
]
Heads = dict[str, HeadConfig]
# The next-sentence head. The order is BERT's: label 0 is the true next sentence.
PAIRS = LabelsConfig(names=("follows", "differs"), dropout=0.0)


class Shape(Settings):
    """Configs of all encoders and heads of a network, by name."""

    encoders: Annotated[dict[ModuleName, ModelConfig], Field(max_length=MAX_PARTS)]
    heads: Annotated[dict[ModuleName, HeadConfig], Field(max_length=MAX_PARTS)] = Field(
        default_factory=dict
    )

    @classmethod
    def of(cls, config: ModelConfig, heads: Mapping[str, HeadConfig] | None = None) -> "Shape":
        """Make the shape of a single encoder with heads."""
        table = {"encoders": {MAIN: config}, "heads": dict(heads or {})}
        return validate(cls, table, where="network")

    @property
    def main(self) -> ModelConfig:
        """The config of the main encoder."""
        return self.encoders[MAIN]

    @property
    def labels(self) -> LabelsConfig | None:
        """Config of the label head of a single-task network, if it has one."""
        head = self.heads.get(LABELS)
        return head if isinstance(head, LabelsConfig) else None

    @property
    def decoder(self) -> DecoderConfig | None:
        """Config of the decoder, if there is one."""
        head = self.heads.get(DECODER)
        return head if isinstance(head, DecoderConfig) else None

    def reader(self, name: str) -> str:
        """Return the name of the head that reads the encoder: the pooler, for pooled labels."""
        head = self.heads[name]
        return POOLER if isinstance(head, LabelsConfig) and head.pooled else name

    def reads(self, name: str | None) -> HeadInput:
        """Return the encoder and layers that a head reads; None: the main encoder's last layer."""
        return HeadInput() if name is None else self.heads[self.reader(name)]

    def several(self) -> dict[str, LabelsConfig]:
        """Return the label heads of a multi-task network, by task name."""
        return {
            name: head
            for name, head in self.heads.items()
            if isinstance(head, LabelsConfig) and name not in RESERVED_NAMES
        }

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if MAIN not in self.encoders:
            raise ValueError(f"encoders: need one called '{MAIN}'.")
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """Yield an error message for each inconsistency between encoders and heads."""
        yield from self._size_problems()
        for name, config in self.encoders.items():
            if config.borrows is not None:
                yield from self._borrowing_problems(name, config)
        for name, head in self.heads.items():
            if head.encoder not in self.encoders:
                yield (
                    f"heads: '{name}' reads the encoder '{head.encoder}', which does not exist; "
                    f"need one of {', '.join(self.encoders)}."
                )
                continue
            config = self.encoders[head.encoder]
            if (
                isinstance(head, LabelsConfig)
                and head.pooled
                and not self._has_pooler(head.encoder)
            ):
                yield f"heads: '{name}' needs a pooler on the encoder '{head.encoder}'. Add one."
            for layer in head.mix if isinstance(head.mix, tuple) else ():
                if not -config.layers - 1 <= layer <= config.layers:
                    yield (
                        f"heads: '{name}' reads layer {layer}, but its encoder only has layers "
                        f"{-config.layers - 1} to {config.layers}."
                    )
            if not isinstance(head, DecoderConfig) or not head.shared:
                continue
            if head.vocab_size != config.vocab_size:
                yield (
                    f"decoder: its vocab_size is {head.vocab_size:,}, but the encoder's is "
                    f"{config.vocab_size:,}; to share one embedding table (shared = true), both "
                    "must be equal. Change vocab_size, or set shared = false."
                )
            if config.table_width != config.width:
                yield (
                    f"decoder: its token embeddings have width {config.width}, but the encoder's "
                    f"have {config.table_width} (embedding_width), so they cannot share one table "
                    "(shared = true). Remove one of the two settings."
                )

    def _size_problems(self) -> Iterator[str]:
        """Yield errors for networks too large as a whole, though each part is within limits."""
        # A decoder computes a position table like its encoder's, for its own maximum length.
        parts = [(config, config.layers, config.max_length) for config in self.encoders.values()]
        parts += [
            (self.encoders[head.encoder], head.layers, head.max_length)
            for head in self.heads.values()
            if isinstance(head, DecoderConfig) and head.encoder in self.encoders
        ]
        layers = sum(count for _, count, _ in parts)
        if layers > MOST_LAYERS:
            yield f"encoders: {layers:,} layers in total; at most {MOST_LAYERS:,} are allowed."
        computed = sum(config.channels * length for config, _, length in parts)
        if computed > MOST_COMPUTED:
            yield (
                f"encoders: position tables of {computed:,} numbers in total; at most "
                f"{MOST_COMPUTED:,} are allowed. Lower max_length."
            )

    def _has_pooler(self, encoder: str) -> bool:
        pooler = self.heads.get(POOLER)
        return isinstance(pooler, PoolerConfig) and pooler.encoder == encoder

    def _borrowing_problems(self, name: str, config: ModelConfig) -> Iterator[str]:
        lender = self.encoders.get(config.borrows or "")
        # Borrowing from a borrower is refused, so that a lookup takes one step and has no cycles.
        if lender is None or lender.borrows is not None:
            yield (
                f"encoders: '{name}' borrows the token embeddings of '{config.borrows}', which "
                "does not exist or has none of its own."
            )
        elif lender.vocab_size != config.vocab_size:
            yield (
                f"encoders: '{name}' borrows the token embeddings of '{config.borrows}', but its "
                f"vocab_size is {config.vocab_size:,} instead of {lender.vocab_size:,}."
            )
        elif lender.table_width != config.table_width:
            yield (
                f"encoders: '{name}' borrows token embeddings of width {lender.table_width}, but "
                f"expects width {config.table_width}; set its embedding_width to "
                f"{lender.table_width}."
            )
