"""Lengths -> rows and batches: which texts share a packed row, so that there is little padding.

Best fit, longest first: each text goes into the fullest row that still has room for it. `pack`
fills rows of a given length, for pre-training; `cheapest_rows` also chooses the length.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

BATCH_TOKENS = 2048  # per pass: enough for efficient matrix products, little enough for the cache
WORKER_TOKENS = 512  # for a worker that has a core, and its cache, to itself
ROW_TOKENS = 128  # short texts may share rows of up to this length
ATTENTION_ROW_LENGTH = 600  # row length at which attention costs as much as everything else

RowPlan = list[list[int]]  # the indices of the texts in each row


def pack(lengths: Sequence[int], row_length: int) -> RowPlan:
    """Pack texts into rows of at most `row_length` tokens; a longer text has a row of its own.

    >>> pack([3, 7, 2, 5], 10)
    [[1, 0], [3, 2]]
    """
    rows: RowPlan = []
    rows_by_room: list[tuple[int, int]] = []  # (room left, row), least room first
    for text in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[text]
        # The rows are sorted by the room they have left, so the fullest one with enough room is
        # found by bisection; (length, 0) comes before every row with exactly this room.
        position = bisect_left(rows_by_room, (length, 0))
        if position == len(rows_by_room):
            rows.append([text])
            insort(rows_by_room, (max(row_length - length, 0), len(rows) - 1))
        else:
            room, row = rows_by_room.pop(position)
            rows[row].append(text)
            insort(rows_by_room, (room - length, row))
    return rows


def group_by_length(lengths: Sequence[int], most: int | None = None) -> Iterator[list[int]]:
    """Group texts of similar length, shortest first, into batches of at most `most` tokens.

    A longer text is a batch of its own. Yields the indices of the texts of each batch.
    """
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


def cheapest_rows(lengths: Sequence[int]) -> RowPlan:
    """Choose the cheapest packing: rows as short as the longest text, or longer, fuller ones."""
    longest = max(lengths)
    # Attention is cheaper in short rows, but a row with room for several texts can be fuller:
    # try every multiple of the longest text.
    widths = [*range(longest, ROW_TOKENS, longest), max(longest, ROW_TOKENS)]
    plans = [(pack(lengths, width), width) for width in widths]
    rows, _ = min(plans, key=lambda plan: len(plan[0]) * _row_cost(plan[1]))
    return rows


def _row_cost(width: int) -> float:
    # Everything but attention is linear in the length of a row; attention is quadratic.
    return width * (1.0 + width / ATTENTION_ROW_LENGTH)
