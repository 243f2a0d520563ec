"""Prepare 109 MB of books, and ten times as much: speed, memory, same results after kills."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import kilobytes, save
from unmask.checkpoint.fetch import locate
from unmask.data.corpus.layout import MANIFEST
from unmask.data.read.texts import read_texts
from unmask.system.disk import sha256_of_file

CORPUS = Path("../shared/data/corpus/books.jsonl.gz")
WORKERS, EVERY, SLICES = 2, 0.2, 10  # EVERY: seconds between two samples of the memory
MB = 1e6


def main(corpus: Path = CORPUS, copies: tuple[int, ...] = (1, 10), kills: int = 20) -> None:
    if not corpus.exists():
        raise SystemExit(f"{corpus} is not there: this measurement needs the development data")
    size = sum(len(record.text.encode("utf-8", "replace")) for record in read_texts(corpus))
    with tempfile.TemporaryDirectory() as scratch:
        runs = {count: _measured(corpus, count, size, Path(scratch)) for count in copies}
        whole = Path(scratch) / f"{copies[0]} copies"
        seconds = float(runs[copies[0]]["seconds"])
        killed = _killed(corpus, copies[0], whole, kills=kills, longest=max(seconds / 4, 2.0))
    print(f"\n{corpus.name}: {size / MB:.0f} MB of text, {WORKERS} workers\n")
    print("| copies | seconds | MB a second | ... in tenths of the time | peak RSS | peak PSS |")
    print("|---|---|---|---|---|---|")
    for count, run in runs.items():
        slices = " ".join(f"{rate:.2f}" for rate in run["slices"])
        memory = f"{run['peak_rss'] / MB:.0f} MB | {run['peak_pss'] / MB:.0f} MB"
        print(f"| {count} | {run['seconds']:.1f} | {run['rate']:.2f} | {slices} | {memory} |")
    print(
        f"\n{killed['kills']} kills, {killed['shards']} shards at the time of the kills; "
        f"{killed['compared']} corpora compared with the uninterrupted one, "
        f"{killed['different']} different"
    )
    save("prepare", {"text_bytes": size, "workers": WORKERS, "runs": runs, "killed": killed})


def _started(corpus: Path, copies: int, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "unmask", "prepare", *[str(corpus)] * copies]
    command += ["--tokenizer", str(locate("minilm")), "--out", str(out)]
    command += ["--workers", str(WORKERS)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def _measured(corpus: Path, copies: int, size: int, scratch: Path) -> dict[str, Any]:
    """Prepare once and sample the memory of all its processes."""
    out = scratch / f"{copies} copies"
    begun, rss, pss = time.time(), [0], [0]
    process = _started(corpus, copies, out)
    while process.poll() is None:
        tree = _tree(process.pid)
        rss.append(sum(kilobytes(pid, "status", "VmRSS:") for pid in tree) * 1024)
        pss.append(sum(kilobytes(pid, "smaps_rollup", "Pss:") for pid in tree) * 1024)
        time.sleep(EVERY)
    seconds = time.time() - begun
    _refuse_failure(process)
    return {
        "seconds": seconds,
        "rate": copies * size / MB / seconds,
        "slices": _slices(out, begun, seconds, copies * size),
        "peak_rss": max(rss),
        "peak_pss": max(pss),
        "pss": pss[:: max(len(pss) // 100, 1)],  # about a hundred samples, to see a growth
        "shards": len(list(out.glob("shard-*.json"))),
    }


def _slices(out: Path, begun: float, seconds: float, size: int) -> list[float]:
    """Return MB of text per second in each tenth of the time, from the times of the shards."""
    shards = sorted(out.glob("shard-*.json"), key=lambda path: path.stat().st_mtime)
    times = [0.0, *(path.stat().st_mtime - begun for path in shards)]
    characters = [json.loads(path.read_text())["statistics"]["characters"] for path in shards]
    done = np.cumsum([0, *characters]) * (size / sum(characters) / MB)
    edges = np.linspace(0, seconds, SLICES + 1)
    return [float(rate) for rate in np.diff(np.interp(edges, times, done)) * SLICES / seconds]


def _tree(root: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # the process has ended meanwhile
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _killed(
    corpus: Path, copies: int, whole: Path, *, kills: int, longest: float
) -> dict[str, Any]:
    """Kill a preparation at random moments, restart it, and compare its result with `whole`.

    If it finishes before all kills are done, the next preparation is killed.
    """
    expected, draw = _digests(whole), random.Random()
    shards: list[int] = []
    compared = different = 0
    out = whole.with_name("killed 0")
    while len(shards) < kills or not (out / MANIFEST).exists():
        process = _started(corpus, copies, out)
        try:
            process.wait(draw.uniform(0, longest) if len(shards) < kills else None)
            _refuse_failure(process)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shards.append(len(list(out.glob("shard-*.json"))))
            print(f"kill {len(shards)}: {shards[-1]} shards are complete", flush=True)
            continue
        compared += 1
        different += _digests(out) != expected
        if len(shards) < kills:
            out = whole.with_name(f"killed {compared}")
    return {"kills": len(shards), "shards": shards, "compared": compared, "different": different}


def _digests(out: Path) -> dict[str, str]:
    """Return the SHA-256 of the manifest and of every file of the shards."""
    return {
        path.name: sha256_of_file(path) for path in [out / MANIFEST, *sorted(out.glob("shard-*"))]
    }


def _refuse_failure(process: "subprocess.Popen[bytes]") -> None:
    if process.returncode:
        raise SystemExit(f"unmask prepare ended with {process.returncode}")
