"""torch's helpers in a server: one team of them, which waits awake for a moment and then sleeps.

Every thread that lets torch use several cores has a team, and a sentence brings it together about
a hundred times. Between two steps helpers wait awake, which is quick. But OpenMP has them sleep at
once as soon as there are more of them than cores, and a sentence takes half as long again; and if
something else keeps a core busy, they wait awake for milliseconds in each other's way, and it takes
thirty times as long. So: one thread with a team, and short waits.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unmask.infer.model import Model

WAIT = "GOMP_SPINCOUNT"  # of GNU's OpenMP, torch's on Linux
TURNS = 10_000  # a tenth of a millisecond, about; by itself it takes thirty times that
ASKED = (WAIT, "OMP_WAIT_POLICY")  # who sets one of these knows better


def wait_briefly() -> None:
    """For the rest of this process; OpenMP asks when torch is imported, and not again."""
    if not any(name in os.environ for name in ASKED):
        os.environ[WAIT] = str(TURNS)


def load(folders: Mapping[str, str | Path]) -> "dict[str, Model]":
    """The models, read in a thread that ends with its team: the one that answers needs its own."""
    from unmask.infer.model import Model

    with ThreadPoolExecutor(1) as apart:
        return dict(zip(folders, apart.map(Model.load, folders.values()), strict=True))
