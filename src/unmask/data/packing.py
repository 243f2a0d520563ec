"""Lengths -> rows and batches: which texts share a row, so that little of a batch is padding.

Best fit, longest first: a text goes into the fullest row that still has room for it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

BATCH_TOKENS = 2048  # per pass: large enough for the matrix products, small enough for the cache
WORKER_TOKENS = 512  # of a worker that has a core, and its cache, for itself
ROW_TOKENS = 128  # short texts may share rows of this length
ATTENTION = 600  # tokens of a row at which attention costs as much as all the rest

RowPlan = list[list[int]]  # the numbers of the texts in each row


def pack(lengths: Sequence[int], row_length: int) -> RowPlan:
    """Put texts into rows of at most `row_length` tokens; a longer text has a row of its own.

    >>> pack([3, 7, 2, 5], 10)
    [[1, 0], [3, 2]]
    """
    rows: RowPlan = []
    by_room: list[tuple[int, int]] = []  # (room left, row), smallest room first
    for text in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[text]
        fits = bisect_left(by_room, (length, 0))
        if fits == len(by_room):
            rows.append([text])
            insort(by_room, (max(row_length - length, 0), len(rows) - 1))
        else:
            room, row = by_room.pop(fits)
            rows[row].append(text)
            insort(by_room, (room - length, row))
    return rows


def neighbours(lengths: Sequence[int], most: int | None = None) -> Iterator[list[int]]:
    """Group lengths, shortest first, about `most` in each sum: the places of each group."""
    most = most or BATCH_TOKENS
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and tokens + lengths[i] > most:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += lengths[i]
    if batch:
        yield batch


def rows_of(lengths: Sequence[int]) -> RowPlan:
    """Which texts share a row: short rows, unless long ones are fuller."""
    longest = max(lengths)
    widths = [*range(longest, ROW_TOKENS, longest), max(longest, ROW_TOKENS)]
    plans = [(pack(lengths, width), width) for width in widths]
    rows, _ = min(plans, key=lambda plan: len(plan[0]) * _row_cost(plan[1]))
    return rows


def _row_cost(width: int) -> float:
    return width * (1.0 + width / ATTENTION)
