"""Keep freed memory in the process, instead of requesting it again from the system in every step.

glibc returns large blocks to the system. A training step, or a batch of texts, requests the same
blocks again and again, and each time the system clears them page by page: 60,000 page faults per
step, for a network of 11 million parameters.
"""

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, from malloc.h
_MAX_INT = 2**31 - 1
_LARGEST = 2**25  # 32 MB: the largest threshold that glibc accepts


def keep_freed_memory() -> bool:
    """Change this for the whole process; return False if the C library has no such switch."""
    if sys.platform != "linux":
        return False
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _MAX_INT))
    return False
