"""Embed a million texts while the job is killed: are rows lost or repeated, does memory grow?

    python -m benchmarks million DATA [--texts 1000000] [--kills 10] [--longest 120] [--model M]

The texts are SST-2's training sentences, repeated, so that every row can be compared with the
vector of its sentence, which is computed once in this process.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from benchmarks.measure import kilobytes, save
from unmask.data.read.texts import read_texts
from unmask.infer.model import Model

BLOCK = 50_000  # rows to compare at once
# Least cosine between a row and its text. int8 rounds a text differently in another batch (0.998
# was the least in a million); a lost or repeated row would shift all rows behind it.
SAME = 0.99


def write_texts(data: Path, path: Path, count: int) -> list[str]:
    """Write `count` texts, one per line, and return the distinct ones."""
    read = read_texts(data / "glue/SST-2/train.tsv", column="sentence")
    texts = [" ".join(record.text.split()) for record in islice(read, count)]
    with path.open("w") as file:
        file.writelines(f"{text}\n" for text in islice(cycle(texts), count))
    return texts


class Life:
    """A run of the command, until it ends or is killed, with samples of its memory."""

    def __init__(self, command: list[str], record: Path) -> None:
        self.process, self.record = subprocess.Popen(command), record
        self.memory: list[tuple[int, int]] = []  # rows written so far, bytes

    def watch(self, seconds: float) -> bool:
        """Sample its memory for some seconds, then kill it; return whether it ended by itself."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                return True
            used = 1024 * kilobytes(self.process.pid, "status", "VmRSS:")
            self.memory.append((self._rows(), used))
            time.sleep(0.5)
        self.process.kill()
        self.process.wait()
        return False

    def _rows(self) -> int:
        with suppress(OSError, ValueError):  # not written yet, or removed at the end
            return int(json.loads(self.record.read_text())["rows"])
        return 0


def lives(command: list[str], record: Path, kills: int, longest: float) -> Iterator[Life]:
    """Run the command until it ends, and kill it `kills` times, each after at most `longest` s."""
    rng = random.Random(0)
    for number in range(kills + 1):
        life = Life(command, record)
        ended = life.watch(rng.uniform(1, longest) if number < kills else 10**9)
        yield life
        if ended:
            return


def differences(model: Model, texts: list[str], path: Path) -> float:
    """Return the least cosine between a row and the vector of its text."""
    truth, rows = model.embed(texts), np.load(path, mmap_mode="r")
    least = 1.0
    for at in range(0, len(rows), BLOCK):
        some = rows[at : at + BLOCK]
        own = truth[(at + np.arange(len(some))) % len(texts)]
        least = min(least, float((some * own).sum(axis=1).min()))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks million")
    parser.add_argument("data", type=Path)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--longest", type=float, default=120.0)
    parser.add_argument("--model", default="minilm")
    arguments = parser.parse_args(sys.argv[2:])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        texts = write_texts(arguments.data, place / "texts.txt", arguments.texts)
        out = place / "vectors.npy"
        command = [sys.executable, "-m", "unmask", "embed", arguments.model]
        command += [str(place / "texts.txt"), "--out", str(out)]
        record = place / ".vectors.npy.unfinished" / "record.json"
        begun = time.perf_counter()
        lived = list(lives(command, record, arguments.kills, arguments.longest))
        seconds = time.perf_counter() - begun
        if lived[-1].process.returncode or not out.exists():
            sys.exit("the command failed")
        count = len(np.load(out, mmap_mode="r"))
        least = differences(Model.load(arguments.model), texts, out)
    kills = len(lived) - 1
    seen = [sample for life in lived for sample in life.memory]
    early = max((used for rows, used in seen if 0 < rows <= arguments.texts / 10), default=0)
    peak = max(used for _, used in seen)
    print(
        f"{count:,} rows of {arguments.texts:,} texts after {kills} kills in {seconds:,.0f} s; "
        f"least cosine of a row to its text's vector {least:.6f}; memory {peak / 1e6:,.0f} MB at "
        f"most, {early / 1e6:,.0f} MB in the first tenth"
    )
    found = {"rows": count, "texts": arguments.texts, "kills": kills, "seconds": seconds}
    save("million", {**found, "least": least, "peak_bytes": peak, "early_bytes": early})
    if count != arguments.texts or least < SAME:
        sys.exit("rows were lost, repeated or changed")
