"""`make faults`: every kind of fault, many times; a table, and a failure if anything was lost."""

import os
import tempfile
import time
from pathlib import Path

from benchmarks.faults import full, kills, nans, saves, workers
from benchmarks.faults.world import make_world
from benchmarks.measure import save


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="unmask-faults-") as place:
        world = make_world(Path(place))
        trials = {
            "SIGKILL at random moments": lambda: kills.random_kills(world, 320),
            "SIGTERM and SIGINT": lambda: kills.gentle_signals(world, 50),
            "SIGKILL at every call of a save": lambda: saves.kill_at_every_call(world),
            "errors at every writing call": lambda: saves.errors_at_every_call(world),
            "disk full: file system": lambda: full.small_file_system(
                world, list(range(60, 1500, 40))
            ),
            "disk full: file size": lambda: full.limited_files(
                world, list(range(2000, 60_000, 4000))
            ),
            "NaN": lambda: nans.injections(world, 42),
            "killed workers": lambda: workers.killed_workers(world, 20),
        }
        if os.geteuid() != 0:
            trials.pop("disk full: file system")
            print("disk full by a small file system is left out: mounting needs root")
        results: dict[str, object] = {}
        for name, trial in trials.items():
            begun = time.monotonic()
            results[name] = trial()
            print(f"{name}: {results[name]}  ({time.monotonic() - begun:.0f} s)", flush=True)
        save("faults", {"results": results})
