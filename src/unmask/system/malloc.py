"""Memory that is freed is used again, instead of being asked for anew with every step.

The C library gives large blocks back to the system. A training step, or a batch of texts, asks for
the same ones again and again, and each time the system clears them page by page: 60,000 pages a
step, for a network of 11 million weights.
"""

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
_NEVER = 2**31 - 1
_LARGEST = 2**25  # above this, glibc does not keep a block whatever it is told


def keep_freed_memory() -> bool:
    """From now on, in this process; False where the C library has no such switch."""
    if sys.platform != "linux":
        return False
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
    return False
