"""Where a job runs: processes, folder, console, clock and stop requests."""

from dataclasses import dataclass

from unmask.system.console import Console
from unmask.system.distributed import Processes
from unmask.system.signals import StopRequest
from unmask.train.recipe import Recipe
from unmask.train.run_folder import RunFolder


@dataclass(frozen=True)
class Site:
    """What `Run` has opened before it asks a job for anything."""

    processes: Processes
    folder: RunFolder
    console: Console
    stop: StopRequest
    started: float  # by the monotonic clock
    stored: Recipe | None = None  # of a run that is resumed
    check: bool = False  # is the run to be checked before its first step?
