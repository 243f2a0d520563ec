"""Full disks: a small file system or a limit on file sizes; then room again, and a resumed run."""

import ctypes
import os
import resource
import shutil
from pathlib import Path

from benchmarks.faults.world import World, digest_of, end_of, fork, newest_step, run_here
from unmask.checkpoint.state import newest_state

CLONE_NEWNS = 0x00020000


def small_file_system(world: World, sizes: list[int]) -> dict[str, object]:
    """Run on a tmpfs of each size in kilobytes; enlarge it when it is full, and resume."""
    full = identical = intact = named = 0
    for size in sizes:
        read, write = os.pipe()

        def work(size: int = size, write: int = write) -> None:
            os.write(write, _on_tmpfs(world, size).encode())

        pid = fork(work)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read().split()
        assert end_of(pid) == 0, "mounting needs root"
        full += said[0] == "full"
        intact += said[1] == "intact"
        named += said[2] == "named"
        identical += said[3] == world.reference
    return {
        "tried": len(sizes),
        "full": full,
        "intact": intact,
        "named": named,
        "identical": identical,
    }


def _on_tmpfs(world: World, kilobytes: int) -> str:
    """Run in a new tmpfs until it is full, check the checkpoints, enlarge it, resume to the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = world.path / f"tmpfs-{kilobytes}"
    place.mkdir(exist_ok=True)

    def mount(flags: int, size: str) -> None:
        arguments = (b"tmpfs", str(place).encode(), b"tmpfs", flags, f"size={size}".encode())
        if libc.mount(*arguments):
            raise OSError(ctypes.get_errno(), "mount")

    # A mount namespace of its own, made private: the rest of the machine never sees these mounts.
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None):
        raise OSError(ctypes.get_errno(), "unshare")
    mount(0, f"{kilobytes}k")
    said = world.path / f"said-{kilobytes}.txt"
    out = place / "run"
    code = end_of(fork(lambda: _aloud(said, world, out)))
    message = said.read_text()
    before = newest_step(out)
    good = before < 0 or newest_state(out / "checkpoints", print) is not None
    mount(32, "64m")  # MS_REMOUNT
    after = end_of(fork(lambda: run_here(world.corpus, out)))
    named = str(out) in message and "bytes are free" in message and code == 2
    digest = digest_of(out) if after == 0 else "failed"
    return " ".join(
        ["full" if code else "fits", "intact" if good else "bad", "named" if named else "-", digest]
    )


def limited_files(world: World, sizes: list[int]) -> dict[str, object]:
    """Run with a limit on file sizes, for each size in bytes; then resume without the limit."""
    full = identical = intact = 0
    for size in sizes:
        out = world.path / f"limited-{size}"

        def work(size: int = size, out: Path = out) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            run_here(world.corpus, out)

        full += end_of(fork(work)) != 0
        intact += newest_step(out) < 0 or newest_state(out / "checkpoints", print) is not None
        assert end_of(fork(lambda out=out: run_here(world.corpus, out))) == 0
        identical += digest_of(out) == world.reference
        shutil.rmtree(out)
    return {"tried": len(sizes), "full": full, "intact": intact, "identical": identical}


def _aloud(said: Path, world: World, out: Path) -> None:
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
    run_here(world.corpus, out)
