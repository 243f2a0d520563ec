"""Counter-based random numbers: each is a function of its key and its index alone.

There is no state to save and no order to keep: the millionth number costs as much as the first, and
it does not matter which process draws it. The mixing function is SplitMix64's finalizer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits64 = NDArray[np.uint64]

# SplitMix64's increment (2^64 divided by the golden ratio) and its multipliers.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def key(*parts: int) -> int:
    """Combine numbers into one key; their order matters.

    >>> key(1, 2) == key(1, 2), key(1, 2) == key(2, 1)
    (True, False)
    """
    combined = np.zeros(1, dtype=np.uint64)
    for part in parts:
        combined = _mix(combined ^ np.array([part % 2**64], dtype=np.uint64))
    return combined.item(0)


def random_bits(root: int, index: NDArray[Any] | Sequence[int]) -> Bits64:
    """Draw 64 random bits for each index."""
    counter = np.asarray(index).astype(np.uint64)
    # The index is mixed before the key is added: otherwise keys that differ in a few low bits would
    # give the same numbers in another order.
    return _mix(_mix(counter) ^ np.uint64(root))


def uniform(root: int, index: NDArray[Any] | Sequence[int]) -> NDArray[np.float64]:
    """Draw a number in [0, 1) for each index."""
    # The upper 53 bits: as many as a float64 holds exactly, so that no draw is rounded up to 1.
    return (random_bits(root, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(bound: NDArray[Any] | int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Turn draws in [0, 1) into integers in [0, bound)."""
    bounds = np.asarray(bound)
    # The product may be rounded up to the bound itself.
    drawn: NDArray[np.int64] = np.minimum((draws * bounds).astype(np.int64), bounds - 1)
    return drawn


def permutation(root: int, count: int) -> NDArray[np.int64]:
    """Return all integers below `count` in random order."""
    return np.argsort(random_bits(root, np.arange(count)), kind="stable")


def _mix(x: Bits64) -> Bits64:
    x = x + _STEP  # uint64 wraps around, as it should here
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    mixed: Bits64 = x ^ (x >> np.uint64(31))
    return mixed
