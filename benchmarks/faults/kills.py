"""SIGKILL, SIGTERM and SIGINT at random moments: nothing lost, bit-identical final weights."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

from benchmarks.faults.world import World, digest_of, end_of, fork, newest_step, run_here


def random_kills(world: World, kills: int, *, seed: int = 0) -> dict[str, object]:
    """Kill and resume runs until they end; each must end with the weights of the reference run."""
    dice = random.Random(seed)
    begun = time.monotonic()
    undisturbed = _time_of_a_run(world)
    done = runs = identical = lost = 0
    while done < kills:
        out = world.path / f"killed-{runs}"
        while True:
            before = newest_step(out)
            pid = fork(lambda out=out: run_here(world.corpus, out))
            killed = _kill_after(pid, dice.uniform(0.0, 0.6) * undisturbed)
            lost += newest_step(out) < before
            if not killed:
                break
            done += 1
        runs += 1
        identical += _ended_the_same(world, out)
    return {
        "kills": done,
        "runs": runs,
        "identical": identical,
        "lost": lost,
        "seconds": round(time.monotonic() - begun, 1),
    }


def gentle_signals(world: World, signals: int, *, seed: int = 0) -> dict[str, object]:
    """Send SIGTERM or SIGINT at random moments; the run must save and stop with the right code."""
    dice = random.Random(seed)
    undisturbed = _time_of_a_run(world)
    done = right = identical = runs = 0
    slowest = 0.0
    while done < signals:
        out = world.path / f"stopped-{runs}"
        while True:
            pid = fork(lambda out=out: run_here(world.corpus, out))
            time.sleep(dice.uniform(0.05, 0.6) * undisturbed)
            number = dice.choice([signal.SIGTERM, signal.SIGINT])
            sent = time.monotonic()
            os.kill(pid, number)
            code = end_of(pid)
            if code == 0:
                break
            done += 1
            slowest = max(slowest, time.monotonic() - sent)
            # Before training begins there is nothing to save, and the default handler ends the run.
            right += code in (128 + number, -number)
        runs += 1
        identical += _ended_the_same(world, out)
    return {
        "signals": done,
        "right": right,
        "runs": runs,
        "identical": identical,
        "slowest_seconds": round(slowest, 2),
    }


def _ended_the_same(world: World, out: Path) -> bool:
    """Compare the final weights of a run with the reference, and delete the run."""
    same = digest_of(out) == world.reference
    shutil.rmtree(out)
    return same


def _time_of_a_run(world: World) -> float:
    out: Path = world.path / "timed"
    begun = time.monotonic()
    assert end_of(fork(lambda: run_here(world.corpus, out))) == 0
    shutil.rmtree(out)
    return time.monotonic() - begun


def _kill_after(pid: int, seconds: float) -> bool:
    """Kill a child after some seconds; return False if it ended by itself before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0, "a run failed by itself"
            return False
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return end_of(pid) != 0  # 0: it ended between the last look and the kill
