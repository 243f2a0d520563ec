"""Texts -> answers in order: encode ahead, sort by length, pack rows, run, put back in order.

Memory does not grow with the input: texts are taken in groups, and only a group is held. What a
text's answer is does not depend on the texts that happened to share its row or its group.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from unmask.data.batches import Batch, Example, collate
from unmask.data.packing import pack
from unmask.model.network import Network

GROUP = 4096  # texts that are sorted together: enough to find neighbours of equal length
BATCH_TOKENS = 2048  # per pass: large enough for the matrix products, small enough for the cache
ROW_TOKENS = 128  # short texts share rows of this length; attention costs its square

E = TypeVar("E", bound=Example)
A = TypeVar("A")
Reader = Callable[
    [Batch, list[Tensor]], Sequence[A]
]  # batch, [B, S, D] per layer -> an answer each


def run(network: Network, examples: Iterable[E], read: Reader[A], *, pad_id: int) -> Iterator[A]:
    """Yield what `read` makes of each example, in the order they came."""
    examples = iter(examples)
    while group := list(islice(examples, GROUP)):
        answers: list[A | None] = [None] * len(group)
        for chosen in _batches(group):
            batch = lay_out([group[i] for i in chosen], pad_id=pad_id)
            with torch.inference_mode():
                found = read(batch, states(network, batch))
            for i, answer in zip(chosen, found, strict=True):
                answers[i] = answer
        yield from answers  # type: ignore[misc]


def lay_out(examples: Sequence[E], *, pad_id: int) -> Batch:
    """Pack examples into rows no longer than the longest of them needs."""
    lengths = [len(example.ids) for example in examples]
    return collate(examples, pack(lengths, max(ROW_TOKENS, *lengths)), pad_id=pad_id)


def states(network: Network, batch: Batch) -> list[Tensor]:
    """The embeddings and the output of every block: layers + 1 tensors [B, S, D]."""
    batch = batch.to(network.encoder.tokens.weight.device)
    trace: list[Tensor] = []
    network.encoder(batch.tokens, batch.segments, batch.index, batch.owner, trace=trace)
    return trace


def _batches(group: Sequence[E]) -> Iterator[list[int]]:
    """Neighbours in length together, about BATCH_TOKENS at a time."""
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(group)), key=lambda i: len(group[i].ids)):
        length = len(group[i].ids)
        if batch and tokens + length > BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += length
    if batch:
        yield batch
