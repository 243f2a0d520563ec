"""`make faults`: inject every kind of fault many times, print a table, fail on any loss."""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults import full, kills, nans, saves, workers
from benchmarks.faults.world import make_world
from benchmarks.measure import save

Trial = Callable[[], dict[str, Any]]
Check = Callable[[dict[str, Any]], object]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="unmask-faults-") as place:
        world = make_world(Path(place))
        sizes, limits = list(range(60, 1500, 40)), list(range(2000, 60_000, 4000))
        trials: dict[str, tuple[Trial, Check]] = {
            "SIGKILL at random moments": (
                lambda: kills.random_kills(world, 320),
                lambda r: r["kills"] >= 300 and r["identical"] == r["runs"] and not r["lost"],
            ),
            "SIGTERM and SIGINT": (
                lambda: kills.gentle_signals(world, 50),
                lambda r: r["right"] == r["signals"] and r["identical"] == r["runs"],
            ),
            "SIGKILL at every call of a save": (
                lambda: saves.kill_at_every_call(world),
                lambda r: r["before"] + r["after"] == r["calls"] and r["after"] and not r["bad"],
            ),
            "errors at every writing call": (
                lambda: saves.errors_at_every_call(world),
                lambda r: not any(found["bad"] for found in r.values()),
            ),
            "disk full: file system": (
                lambda: full.small_file_system(world, sizes),
                lambda r: r["intact"] == r["identical"] == r["tried"] and r["named"] == r["full"],
            ),
            "disk full: file size": (
                lambda: full.limited_files(world, limits),
                lambda r: r["intact"] == r["identical"] == r["tried"],
            ),
            "NaN": (
                lambda: nans.injections(world, 42),
                lambda r: not r["poisoned_checkpoints"] and r["left_out"] == r["injections"],
            ),
        }
        for job, count in (("pretrain", 20), ("finetune", 20), ("translate", 5)):
            trials[f"killed workers: {job}"] = (
                partial(workers.killed_workers, world, count, job=job),
                lambda r: r["ended"] == r["one_restart"] == r["identical"] == r["kills"] > 0,
            )
        if os.geteuid() != 0:
            trials.pop("disk full: file system")
            print("skipped: disk full by a small file system, because mounting needs root")
        results: dict[str, object] = {}
        failed = []
        for name, (trial, check) in trials.items():
            begun = time.monotonic()
            found = trial()
            failed += [] if check(found) else [name]
            results[name] = {**found, "passed": name not in failed}
            print(f"{name}: {results[name]}  ({time.monotonic() - begun:.0f} s)", flush=True)
        save("faults", {"results": results})
        if failed:
            raise SystemExit(f"failed: {', '.join(failed)}")
