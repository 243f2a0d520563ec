"""Lengths -> rows: which texts share a row, so that little of a batch is padding.

Best fit, longest first: a text goes into the fullest row that still has room for it.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

Rows = list[list[int]]  # the numbers of the texts in each row


def pack(lengths: Sequence[int], row_length: int) -> Rows:
    """Put texts into rows of at most `row_length` tokens; a longer text has a row of its own.

    >>> pack([3, 7, 2, 5], 10)
    [[1, 0], [3, 2]]
    """
    rows: Rows = []
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
