"""Heads of BERT in one call, for networks that tests make."""

from collections.abc import Mapping

from unmask.model.shape import (
    DECODER,
    LABELS,
    PAIR,
    PAIRS,
    POOLER,
    TOKENS,
    DecoderConfig,
    Heads,
    LabelAnswer,
    LabelKind,
    LabelsConfig,
    PoolerConfig,
    TokensConfig,
)


def bert_heads(
    *,
    pooler: bool = True,
    tokens: bool = False,
    pair: bool = False,
    labels: LabelKind | None = None,
    label_names: tuple[str, ...] = (),
    label_answer: LabelAnswer = "one",
    label_dropout: float = 0.1,
    layers: tuple[int, ...] = (),
    several: Mapping[str, LabelsConfig] | None = None,
    decoder: DecoderConfig | None = None,
) -> Heads:
    """A pooler unless it is unwanted, and whatever else is asked for."""
    heads: Heads = {POOLER: PoolerConfig()} if pooler else {}
    if tokens:
        heads[TOKENS] = TokensConfig()
    if pair:
        heads[PAIR] = PAIRS
    if labels:
        heads[LABELS] = LabelsConfig(
            on=labels,
            names=label_names,
            answer=label_answer,
            dropout=label_dropout,
            mix=layers or "last",
        )
    heads |= several or {}
    if decoder:
        heads[DECODER] = decoder
    return heads
