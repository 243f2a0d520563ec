"""OpenMP threads of the server: a single thread pool, with a short active wait.

Every Python thread that runs torch operations on several cores owns an OpenMP pool, and one
sentence synchronizes that pool about a hundred times. Between two operations the workers spin,
which is fast, but two situations spoil it:

- With more OpenMP threads than cores, workers sleep after each operation instead of spinning, and a
  sentence takes half as long again. So only the inference thread may own a pool.
- If another process keeps a core busy, spinning workers get in each other's way for milliseconds,
  and a sentence takes up to thirty times as long. So the workers spin only briefly.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unmask.infer.model import Model

SPIN_VARIABLE = "GOMP_SPINCOUNT"  # read by GNU OpenMP, which torch uses on Linux
SPINS = 10_000  # spins for about 0.1 ms; the default is some 3 ms
# If the user has set one of these, the server changes neither.
USER_VARIABLES = SPIN_VARIABLE, "OMP_WAIT_POLICY"


def wait_briefly() -> None:
    """Limit how long OpenMP workers of this process spin; call it before torch is imported.

    OpenMP reads the environment once, while torch is imported.
    """
    if not any(name in os.environ for name in USER_VARIABLES):
        os.environ[SPIN_VARIABLE] = str(SPINS)


def load(folders: Mapping[str, str | Path]) -> "dict[str, Model]":
    """Load the models in a temporary thread, so that no OpenMP pool is left over from loading."""
    from unmask.infer.model import Model  # imports torch, which must follow `wait_briefly`

    # A thread's pool ends with the thread. A pool of the main thread would live on beside that of
    # the inference thread: more workers than cores, and 98 sleeps per sentence instead of 0.8.
    with ThreadPoolExecutor(1) as pool:
        return dict(zip(folders, pool.map(Model.load, folders.values()), strict=True))
