"""Numbers -> random numbers, by counting: each is a function of its key and its index alone.

There is no state to save and no order to keep: drawing the millionth number costs as much as the
first, and who draws it, in which process, changes nothing. The mixing is SplitMix64's finisher.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def key(*parts: int) -> int:
    """Join numbers into one key; another order is another key.

    >>> key(1, 2) == key(1, 2), key(1, 2) == key(2, 1)
    (True, False)
    """
    joined = np.zeros(1, dtype=np.uint64)
    for part in parts:
        joined = _mixed(joined ^ np.array([part % 2**64], dtype=np.uint64))
    return joined.item(0)


def words(root: int, index: NDArray[Any] | Sequence[int]) -> Words:
    """One word of 64 random bits for each index."""
    counter = np.asarray(index).astype(np.uint64)
    return _mixed(_mixed(counter) ^ np.uint64(root))


def uniform(root: int, index: NDArray[Any] | Sequence[int]) -> NDArray[np.float64]:
    """Numbers in [0, 1), one for each index."""
    return (words(root, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(bound: NDArray[Any] | int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Turn draws in [0, 1) into whole numbers in [0, bound)."""
    top = np.asarray(bound)
    drawn: NDArray[np.int64] = np.minimum((draws * top).astype(np.int64), top - 1)
    return drawn


def permutation(root: int, count: int) -> NDArray[np.int64]:
    """All numbers below `count`, in a random order."""
    return np.argsort(words(root, np.arange(count)), kind="stable")


def _mixed(x: Words) -> Words:
    x = x + _STEP  # wraps round, as it should
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    mixed: Words = x ^ (x >> np.uint64(31))
    return mixed
