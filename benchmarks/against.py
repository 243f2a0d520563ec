"""`python -m benchmarks against OLD NEW DATA`: is one checkout as fast as another?

Measures unmask's side of `benchmarks pretrain`, `benchmarks finetune DATA --only speed` and
`benchmarks infer`: OLD, NEW and OLD again as a control, each in a process of its own. They take
turns, in a different order each round. All processes are restarted several times, because the speed
of a process depends on its random memory layout.

The table has the speed of NEW over that of OLD (above 1: faster), and of OLD over OLD, each with a
90 % bootstrap interval over the rounds. While the interval of NEW is wider than 0.1, rounds are
added. The script fails with the names of the cases whose interval begins below 0.95.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STARTS, ROUNDS = 3, 5  # starts of each process, and rounds per start
# At most this many starts; the interval to reach; the speed of NEW that must not be undercut.
MOST_STARTS, WIDE, ASKED = 9, 0.1, 0.95
TEXTS = 200  # to embed in a round
PRETRAIN = "mini, 30,522 pieces|mini, 8,192 pieces|MiniLM's size, 30,522 pieces".split("|")
PRETRAIN += ["base, 30,522 pieces", "mini, 30,522 pieces, one short pair a row"]
CASES = [
    *(f"pretrain: {name}" for name in PRETRAIN),
    *(f"finetune: {name}" for name in ("step train", "evaluate dev", "predict dev")),
    *(f"infer batch: {name}" for name in ("fp32, not compiled", "fp32", "int8")),
    *(f"infer one: {name}" for name in ("fp32, not compiled", "fp32", "int8")),
]


class Side:
    """A process that runs a case with the code of a checkout."""

    def __init__(self, checkout: Path, case: str, data: Path, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": f"{checkout}:{checkout / 'src'}"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--child", case, str(data), str(place)],
            env=environment,
            cwd=place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()  # sent when the case is prepared

    def __call__(self) -> float:
        """Run one round and return its seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a side has ended with {self.process.wait()}; see above")
        return line


def measure(
    case: str,
    old: Path,
    new: Path,
    data: Path,
    work: Path,
    starts: int = STARTS,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Measure a case with at least `starts` starts, until its interval is narrow enough."""
    seconds: dict[str, list[float]] = {"old": [], "new": [], "control": []}
    for name in seconds:  # an earlier run may have left models that other code has compiled
        shutil.rmtree(work / name, ignore_errors=True)
    intervals: dict[str, Any] = {}
    for start in range(max(MOST_STARTS, starts)):
        sides = {
            name: Side({"new": new}.get(name, old), case, data, work / name) for name in seconds
        }
        for side in sides.values():
            side()  # warm-up, not counted
        for number in range(rounds):
            # Another order each round, so that no side is always the first.
            names = list(sides)
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                seconds[name].append(sides[name]())
        for side in sides.values():
            side.close()
        intervals = {
            name: interval(seconds["old"], seconds[name]) for name in seconds if name != "old"
        }
        if start + 1 >= starts and intervals["new"]["high"] - intervals["new"]["low"] <= WIDE:
            break
    return {"case": case, "rounds": len(seconds["old"]), **intervals, "seconds": seconds}


def interval(old: list[float], new: list[float], draws: int = 10_000) -> dict[str, float]:
    """Return the speed of NEW over OLD: the ratio of medians and its 90 % bootstrap interval.

    Rounds are drawn with replacement. Both sides of a round are drawn together, because a busy
    moment of the machine affects both.
    """
    generator = np.random.default_rng(0)
    chosen = generator.integers(0, len(old), (draws, len(old)))
    ratios = np.median(np.array(old)[chosen], axis=1) / np.median(np.array(new)[chosen], axis=1)
    low, high = np.quantile(ratios, [0.05, 0.95])
    middle = statistics.median(old) / statistics.median(new)
    return {"ratio": middle, "low": float(low), "high": float(high)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks against", description=__doc__)
    parser.add_argument("old", type=Path, help="the checkout to compare with")
    parser.add_argument("new", type=Path, help="the checkout to test")
    parser.add_argument("data", type=Path, help="the folder with glue/")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--starts", type=int, default=STARTS, help="minimum starts of each process")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each start")
    parser.add_argument("--work", type=Path, default=Path("results/against"))
    arguments = parser.parse_args(sys.argv[2:])
    paths = [
        path.resolve() for path in (arguments.old, arguments.new, arguments.data, arguments.work)
    ]
    slow = []
    print("| case | rounds | new / old | 90 % interval | old / old | 90 % interval |")
    print("|---|---|---|---|---|---|", flush=True)
    for case in CASES:
        if arguments.only not in case:
            continue
        result = measure(case, *paths, arguments.starts, arguments.rounds)
        with (paths[3] / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        cells = [
            f"{side['ratio']:.3f} | {side['low']:.3f} to {side['high']:.3f}"
            for side in (result["new"], result["control"])
        ]
        print(f"| {case} | {result['rounds']} | {' | '.join(cells)} |", flush=True)
        if result["new"]["low"] < ASKED:
            slow.append(case)
    if slow:
        raise SystemExit(f"these cases may be slower than {ASKED} of the old speed: {slow}")


def made(case: str, data: Path, place: Path) -> Callable[[], object]:
    """Prepare a case, with the benchmarks of the checkout on the Python path."""
    kind, _, name = case.partition(": ")
    if kind == "pretrain":
        from benchmarks import pretrain

        return pretrain.Steps(next(c for c in pretrain.CASES if c.name == name), "unmask")
    from unmask import load  # the same name in all versions
    from unmask.checkpoint.fetch import get

    if kind == "finetune":
        from benchmarks import finetune

        what, file = name.split()
        return finetune.Speed("unmask", what, file, data, get("minilm"))
    from benchmarks import infer
    from benchmarks.embed import texts_of_known_length

    texts, calls = texts_of_known_length(load(get("minilm")), TEXTS), 1
    if kind == "infer one":
        texts, calls = [min(texts, key=lambda text: abs(len(text.split()) - 18))], 50
    embed = infer.SIDES[f"unmask {name}"](place, 2)

    def embed_all() -> None:
        for _ in range(calls):
            embed(texts)

    return embed_all


def child() -> None:
    """For each line on standard input, run a round and print its seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints must not mix with the answers
    case, data, place = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    run = made(case, data, place)
    answers.write("ready\n")
    answers.flush()
    for _ in sys.stdin:
        begun = time.perf_counter()
        run()
        answers.write(f"{time.perf_counter() - begun}\n")
        answers.flush()


if __name__ == "__main__":
    child()
