"""The shape of a network: its encoders and its heads, each by a name. Needs no torch.

A head names the encoder whose states it reads, and from which layers. Those of BERT have their
usual names here; an objective or a task may add others.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmask.model.config import TABLE_LIMIT, Cell, Count, ModelConfig, ModuleName, Share, refuse_set
from unmask.system.settings import Settings, validate

LabelKind = Literal["text", "token", "span"]
LabelAnswer = Literal["one", "several", "number"]  # of labels on a text
Context = Literal["last", "mapped", "all"]  # the last state; a map of it; a map of all states
Feeds = Literal["nothing", "word", "context", "both"]
Scoring = Literal["additive", "dot", "general"]
# Not strict, because JSON has lists instead of tuples.
Names = Annotated[tuple[str, ...], Field(strict=False)]
Layers = Annotated[
    tuple[Annotated[int, Field(ge=-513, le=513)], ...], Field(strict=False, min_length=1)
]
# The last layer, some layers side by side, or a learned weighted mean of all (Peters et al. 2018).
Mix = Literal["last", "weighted"] | Layers

MAIN = "main"  # the encoder that every network has
POOLER, TOKENS, PAIR, LABELS, DECODER = "pooler", "tokens", "pair", "labels", "decoder"
USUAL = (POOLER, TOKENS, PAIR, LABELS, DECODER)  # a task among several has a name of its own
MOST = 64  # encoders, and heads, of a network
MOST_LAYERS = 1024  # of all encoders and decoders together: two of the deepest
MOST_COMPUTED = 4 * TABLE_LIMIT  # numbers of tables of positions that are computed, not read


class HeadInput(Settings):
    """What a head reads: the states of an encoder."""

    encoder: ModuleName = MAIN
    mix: Mix = "last"  # 0 is the embeddings, -1 the last layer


class PoolerConfig(HeadInput):
    """A tanh layer on [CLS]."""

    kind: Literal["pooler"] = "pooler"


class TokensConfig(HeadInput):
    """Predicts masked tokens, by comparing states with the token embeddings of its encoder."""

    kind: Literal["tokens"] = "tokens"


class LabelsConfig(HeadInput):
    """A linear layer on the pooled text, on each token, or on each token as an end of a span."""

    kind: Literal["labels"] = "labels"
    on: LabelKind = "text"
    names: Annotated[Names, Field(min_length=1)]
    dropout: Share = 0.1
    answer: LabelAnswer = "one"  # one label, any of them, or a number

    @property
    def pooled(self) -> bool:
        """Does it read the pooler?"""
        return self.on == "text" and self.mix == "last"

    @model_validator(mode="after")
    def _answer_fits(self) -> Self:
        if self.answer != "one" and self.on != "text":
            raise ValueError('answer is of labels on a text; need on = "text".')
        if self.answer == "number" and len(self.names) != 1:
            raise ValueError("a number has one name; need one in names.")
        return self


class VectorConfig(HeadInput):
    """A linear map to vectors of another width."""

    kind: Literal["vector"] = "vector"
    width: Annotated[Count, Field(le=2**15)]
    bias: bool = True


class DecoderConfig(HeadInput):
    """What says a text word by word, having read the states of another.

    Its width, heads and positions are the encoder's. The last four are of recurrent ones: a context
    is made of the encoder's states; it is where the decoder begins (feeds nothing or the word
    before), or is fed at every step (context, or both). With attention there is another context for
    every word: it is fed at the next step (both), or only read (word).
    """

    kind: Literal["decoder"] = "decoder"
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
            refuse_set(self, "context", "feeds", "attention", why=why)
        if self.attention and self.feeds not in ("word", "both"):
            raise ValueError(
                f'attention with feeds = "{self.feeds}"; a decoder that looks at the source is fed '
                "the word before: need word or both."
            )
        if self.mix != "last":
            raise ValueError("a decoder reads the last layer; leave mix out.")
        return self


HeadConfig = Annotated[
    PoolerConfig | TokensConfig | LabelsConfig | VectorConfig | DecoderConfig,
    Field(discriminator="kind"),
]
Heads = dict[str, HeadConfig]
# The next-sentence head; its labels have these numbers in BERT.
PAIRS = LabelsConfig(names=("follows", "differs"), dropout=0.0)


class Shape(Settings):
    """Which encoders and heads a network has."""

    encoders: Annotated[dict[ModuleName, ModelConfig], Field(max_length=MOST)]
    heads: Annotated[dict[ModuleName, HeadConfig], Field(max_length=MOST)] = Field(
        default_factory=dict
    )

    @classmethod
    def of(cls, config: ModelConfig, heads: Mapping[str, HeadConfig] | None = None) -> "Shape":
        """One encoder with heads."""
        table = {"encoders": {MAIN: config}, "heads": dict(heads or {})}
        return validate(cls, table, where="network")

    @property
    def main(self) -> ModelConfig:
        """The config of the main encoder."""
        return self.encoders[MAIN]

    @property
    def labels(self) -> LabelsConfig | None:
        """The labels of a network that has one task."""
        found = self.heads.get(LABELS)
        return found if isinstance(found, LabelsConfig) else None

    @property
    def decoder(self) -> DecoderConfig | None:
        """The decoder, if there is one."""
        found = self.heads.get(DECODER)
        return found if isinstance(found, DecoderConfig) else None

    def reader(self, name: str) -> str:
        """The head that reads the states for a head: the pooler, for labels of a pooled text."""
        head = self.heads[name]
        return POOLER if isinstance(head, LabelsConfig) and head.pooled else name

    def reads(self, name: str | None) -> HeadInput:
        """The encoder and the layers that a head reads; None: the last layer of the main one."""
        return HeadInput() if name is None else self.heads[self.reader(name)]

    def several(self) -> dict[str, LabelsConfig]:
        """The labels of each of several tasks, by their names."""
        return {
            name: head
            for name, head in self.heads.items()
            if isinstance(head, LabelsConfig) and name not in USUAL
        }

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if MAIN not in self.encoders:
            raise ValueError(f"encoders: need one that is called {MAIN}.")
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """Say what does not fit together."""
        yield from self._giants()
        for name, config in self.encoders.items():
            if config.borrows is not None:
                yield from self._borrowed(name, config)
        for name, head in self.heads.items():
            if head.encoder not in self.encoders:
                yield f"heads: '{name}' reads the encoder '{head.encoder}'; there is none."
                continue
            config = self.encoders[head.encoder]
            if isinstance(head, LabelsConfig) and head.pooled and not self._pools(head.encoder):
                yield f"heads: '{name}' reads the pooler; need one of the same encoder."
            for layer in head.mix if isinstance(head.mix, tuple) else ():
                if not -config.layers - 1 <= layer <= config.layers:
                    yield (
                        f"heads: '{name}' reads layer {layer}, and the encoder has "
                        f"{config.layers}; need {-config.layers - 1} to {config.layers}."
                    )
            if not isinstance(head, DecoderConfig) or not head.shared:
                continue
            if head.vocab_size != config.vocab_size:
                yield (
                    f"decoder: {head.vocab_size:,} words, and the encoder has "
                    f"{config.vocab_size:,}; in one table (shared) there are as many of both. "
                    "Change vocab_size, or share nothing."
                )
            if config.table_width != config.width:
                yield (
                    f"decoder: its words are {config.width} wide, and the token embeddings of the "
                    f"encoder {config.table_width} (embedding_width); they cannot be in one table "
                    "(shared). Leave one of the two out."
                )

    def _giants(self) -> Iterator[str]:
        """Each part may be within its limits, and many of them beyond what a machine can hold."""
        parts = [(own, own.layers, own.max_length) for own in self.encoders.values()]
        parts += [
            (self.encoders[own.encoder], own.layers, own.max_length)
            for own in self.heads.values()
            if isinstance(own, DecoderConfig) and own.encoder in self.encoders
        ]
        layers = sum(count for _, count, _ in parts)
        if layers > MOST_LAYERS:
            yield f"encoders: {layers:,} layers in all; a network has at most {MOST_LAYERS:,}."
        computed = sum(config.channels * length for config, _, length in parts)
        if computed > MOST_COMPUTED:
            yield (
                f"encoders: tables of {computed:,} numbers for their positions; a network has at "
                f"most {MOST_COMPUTED:,}. Lower max_length."
            )

    def _pools(self, encoder: str) -> bool:
        pooler = self.heads.get(POOLER)
        return isinstance(pooler, PoolerConfig) and pooler.encoder == encoder

    def _borrowed(self, name: str, config: ModelConfig) -> Iterator[str]:
        lender = self.encoders.get(config.borrows or "")
        if lender is None or lender.borrows is not None:
            yield f"encoders: '{name}' borrows the tokens of '{config.borrows}', which has none."
        elif lender.vocab_size != config.vocab_size:
            yield f"encoders: '{name}' borrows tokens and has another vocab_size than they."
        elif lender.table_width != config.table_width:
            yield (
                f"encoders: '{name}' borrows tokens of width {lender.table_width}, and its own "
                f"are {config.table_width} wide; set its embedding_width to {lender.table_width}."
            )
