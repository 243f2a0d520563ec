"""One fault at every system call of a save: a kill, or an error such as a full disk.

A child process waits until strace is attached and then saves. strace injects the fault at the
child's N-th system call, for N = 1, 2, ... until a save finishes without a fault.
"""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.faults.world import World, end_of, fork, newest_step, quietly, recipe, run_here
from unmask.checkpoint.folder import save_folder
from unmask.checkpoint.state import load_state, newest_state, prune, write_state

CALLS = "%file,%desc"  # everything that touches a file or a descriptor
WRITING = "write,pwrite64,fsync,rename,mkdir,openat,ftruncate,unlink,unlinkat,rmdir"
STRACE = shutil.which("strace")


@dataclass(frozen=True)
class Scene:
    """Checkpoints of steps 3 and 6, and the training state of step 9, which is to be saved."""

    template: Path
    state: Path


def kill_at_every_call(world: World, *, every: int = 1) -> dict[str, object]:
    """Send SIGKILL at each call; each time, the old or the new checkpoint must be complete."""
    return _strike(world, CALLS, "signal=SIGKILL", every)


def errors_at_every_call(world: World, *, every: int = 1) -> dict[str, object]:
    """Make each writing call fail (disk full, quota, I/O); a complete checkpoint must remain."""
    results = {}
    for error in ("ENOSPC", "EDQUOT", "EIO"):
        results[error] = _strike(world, WRITING, f"error={error}", every)
    return results


def _strike(world: World, calls: str, fault: str, every: int) -> dict[str, object]:
    scene = _scene(world)
    out = world.path / "struck"
    struck = old = new = bad = 0
    number = 1
    messages: set[str] = set()
    while True:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(scene.template, out)
        code, hit = _save_under_strace(scene, out, calls, fault, number)
        if not hit:
            break
        struck += 1
        found = newest_state(out, quietly)
        step = -1 if found is None else int(found.facts["step"])
        old, new, bad = old + (step == 6), new + (step == 9), bad + (step not in (6, 9))
        if fault.startswith("error") and code == 2:
            messages.add((out.parent / "said.txt").read_text().strip()[-160:])
        number += every
    shutil.rmtree(out, ignore_errors=True)
    result: dict[str, object] = {"calls": struck, "before": old, "after": new, "bad": bad}
    return result | ({"messages": sorted(messages)[:3]} if messages else {})


def _save_under_strace(
    scene: Scene, out: Path, calls: str, fault: str, number: int
) -> tuple[int, bool]:
    """Save in a child with a fault at its N-th call; return its exit code, and if it was hit."""
    assert STRACE, "strace is not installed"
    said = out.parent / "said.txt"
    ready, tell = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # inherited, so it cannot be missed

    def work() -> None:
        state = load_state(scene.state)
        tokenizer = _tokenizer(scene.state)
        with said.open("w") as file:
            os.dup2(file.fileno(), 1)
        os.write(tell, b"x")
        signal.sigwait([signal.SIGUSR1])  # strace injects no fault into this kind of call
        write = partial(write_state, moments=state.optimizer, own=state.own, facts=state.facts)
        place = out / "step-9"
        save_folder(place, state.network, tokenizer, recipe={}, provenance={}, beside=write)
        prune(out, 2)

    pid = fork(work)
    os.close(tell)
    assert os.read(ready, 1), "the child did not get as far as the save"
    os.close(ready)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    log = out.parent / "strace.txt"
    inject = f"inject={calls}:{fault}:when={number}"
    command = [STRACE, "-f", "-q", "-o", str(log), "-p", str(pid)]
    with subprocess.Popen([*command, "-e", f"trace={calls}", "-e", inject]) as tracer:
        _wait_until_traced(pid)
        os.kill(pid, signal.SIGUSR1)
        code = end_of(pid)
        tracer.wait()
    text = log.read_text()
    return code, code < 0 or "(INJECTED)" in text


def _wait_until_traced(pid: int) -> None:
    """Wait until strace is attached to the child."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text():
            break
        time.sleep(0.002)
    time.sleep(0.02)  # attached, but perhaps not yet tracing


def _scene(world: World) -> Scene:
    """Train to step 9 once, keep every checkpoint and move the last one away."""
    scene = Scene(world.path / "template", world.path / "step-9-apart")
    if not scene.template.exists():
        out = world.path / "scene"
        table = recipe(schedule={"steps": 9}, loop={"keep_checkpoints": 9})
        assert end_of(fork(lambda: run_here(world.corpus, out, table))) == 0
        assert newest_step(out) == 9
        (out / "checkpoints" / "step-9").rename(scene.state)
        (out / "checkpoints").rename(scene.template)
        shutil.rmtree(out)
    return scene


def _tokenizer(folder: Path):  # noqa: ANN202
    from unmask.text.tokenizer_files import read_tokenizer

    return read_tokenizer(folder)
