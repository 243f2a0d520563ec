"""Batches of made-up examples, without a corpus."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from unmask.data.batch import Batch, collate
from unmask.data.corpus.examples import NO_PAIR
from unmask.data.packing import pack
from unmask.text.vocabulary import SPECIALS, Vocabulary

PAD, UNKNOWN, CLS, SEP, MASK = range(5)  # as in a vocabulary that begins with SPECIALS


class Text(NamedTuple):
    ids: list[int]
    segments: list[int]


def letters(size: int) -> Vocabulary:
    """A vocabulary of this size, the special tokens first."""
    return Vocabulary([*SPECIALS, *(f"w{i}" for i in range(size - len(SPECIALS)))])


def around(ids: Sequence[int], second: Sequence[int] = ()) -> Text:
    """An example with its special tokens."""
    head, tail = [CLS, *ids, SEP], [*second, SEP] if second else []
    return Text([*head, *tail], [0] * len(head) + [1] * len(tail))


def batch_of(
    texts: Sequence[Text],
    *,
    continues: Sequence[Sequence[bool]] | None = None,
    pair: Sequence[int] | None = None,
    seed: int = 0,
    row_length: int = 512,
) -> Batch:
    """Texts in rows, each with a number, a label and, if told, which tokens continue a word."""
    batch = collate(texts, pack([len(text.ids) for text in texts], row_length), pad_id=PAD)
    told = torch.zeros_like(batch.tokens, dtype=torch.bool)
    for i, flags in enumerate(continues or []):
        start = int(batch.start[i])
        told[batch.row[i], start : start + len(flags)] = torch.tensor(flags)
    draw = torch.Generator().manual_seed(seed)
    number = torch.randint(-(2**63), 2**63 - 1, (len(texts),), generator=draw)
    label = torch.tensor(list(pair) if pair is not None else [NO_PAIR] * len(texts))
    return batch.with_examples(number=number, pair=label, continues=told)
