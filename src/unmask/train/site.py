"""Where a job runs: processes, output folder, console, clock and stop request."""

from dataclasses import dataclass

from unmask.system.console import Console
from unmask.system.distributed import Processes
from unmask.system.signals import StopRequest
from unmask.train.recipe import Recipe
from unmask.train.run_folder import RunFolder


@dataclass(frozen=True)
class Site:
    """What `Run` has set up before it asks a job for its ingredients."""

    processes: Processes
    folder: RunFolder
    console: Console
    stop: StopRequest
    started: float  # reading of the monotonic clock
    stored: Recipe | None = None  # recipe of the run to resume; None for a new run
    check: bool = False  # run the preflight before the first step
