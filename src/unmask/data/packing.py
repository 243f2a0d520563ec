"""Lengths -> rows: which texts share a row, so that little of a batch is padding.

Best fit, longest first: a text goes into the fullest row that still has room for it.
"""

from bisect import insort
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
        fits = _first_with_room(by_room, length)
        if fits == len(by_room):
            rows.append([text])
            insort(by_room, (max(row_length - length, 0), len(rows) - 1))
        else:
            room, row = by_room.pop(fits)
            rows[row].append(text)
            insort(by_room, (room - length, row))
    return rows


def _first_with_room(by_room: list[tuple[int, int]], length: int) -> int:
    """The place of the fullest row that can still take `length` tokens."""
    low, high = 0, len(by_room)
    while low < high:
        middle = (low + high) // 2
        if by_room[middle][0] < length:
            low = middle + 1
        else:
            high = middle
    return low
