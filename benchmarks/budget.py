"""Minutes to a held-out loss: the `budget` recipe beside a plain Hugging Face loop.

Both get the same corpus, one vocabulary, the same held-out examples at 15 %, two threads, and so
many minutes of training, evaluation not counted. Theirs is BertForPreTraining as its authors
configured it, tiny and mini, each with three rates; its rate too falls to nothing by the clock.

    python -m benchmarks budget CORPUS [--minutes 10] [--only NAME ...]
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import theirs
from benchmarks.measure import RESULTS, save
from unmask.data.corpus import open_corpus
from unmask.data.examples import split_documents
from unmask.data.kinds import ExampleSettings
from unmask.data.stream import Cursor, Stream
from unmask.model.config import sized
from unmask.objectives.base import OnePass
from unmask.objectives.mlm import MaskedLM, MaskSettings
from unmask.objectives.pairs import PairOrder, PairSettings
from unmask.train.curves import Chart, Line, column
from unmask.train.distributed import Processes
from unmask.train.evaluate import SEED, Evaluation
from unmask.train.run import read_metrics
from unmask.train.schedule import OptimizerSettings, ScheduleSettings

THREADS, LENGTH, ROWS, HELD_OUT, EVALUATIONS = 2, 128, 16, 50, 20
SIZES, RATES = ("tiny", "mini"), (5e-4, 1e-3, 2e-3)


def train_theirs(corpus_path: Path, size: str, rate: float, minutes: float) -> list[dict[str, Any]]:
    """A plain loop for so many minutes; returns its evaluations."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    corpus = open_corpus(corpus_path, check=False)
    vocabulary = corpus.tokenizer.vocabulary
    objective = OnePass(
        [MaskedLM(MaskSettings(), vocabulary), PairOrder(PairSettings(), vocabulary)]
    )
    seen, held = split_documents(len(corpus.documents) - 1, HELD_OUT)
    stream = Stream(corpus, seen, ExampleSettings(), 0, LENGTH)
    unseen = Stream(corpus, held, ExampleSettings(), SEED, LENGTH)
    evaluation = Evaluation(unseen, objective, Processes(), tokens=40_000, micro_rows=ROWS)
    model = theirs.bert(sized(size, len(vocabulary)))
    optimizer = theirs.adamw(model, OptimizerSettings(rate=rate))
    schedule = ScheduleSettings(minutes=minutes, warmup=0.05)
    cursor, seconds, tokens, step = Cursor(), 0.0, 0, 0
    found: list[dict[str, Any]] = []
    while True:
        progress = schedule.progress(step, seconds)
        if len(found) <= progress * EVALUATIONS or progress >= 1.0:
            scores = theirs.scores(model, evaluation.batches, LENGTH)
            found.append({"seconds": seconds, "tokens": tokens, "step": step, **scores})
            print(f"{size} {rate:g}: {json.dumps(found[-1])}", flush=True)
        if progress >= 1.0:
            return found
        begun = time.monotonic()
        rows, cursor = stream.take(cursor, ROWS)
        batch = objective.prepare(stream.batch(rows), step)
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule.factor(max(progress, 1e-4))
        theirs.step(model, optimizer, [theirs.apart([batch], LENGTH)], clip=1.0)
        tokens, step = tokens + batch.real, step + 1
        seconds += time.monotonic() - begun


def train_ours(corpus: Path, out: Path, minutes: float, flags: list[str]) -> list[dict[str, Any]]:
    """`unmask pretrain budget` for so many minutes; returns its evaluations."""
    command = [sys.executable, "-m", "unmask", "pretrain", "budget", str(corpus)]
    command += ["--minutes", str(minutes), "--out", str(out), "--overwrite"]
    command += ["--threads", str(THREADS), *flags]
    subprocess.run(command, check=True)
    return [entry for entry in read_metrics(out) if entry["kind"] == "eval"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks budget")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", help="unmask, tiny-0.001, ...; all if left out")
    given = parser.parse_args(sys.argv[2:])
    runs = {f"{size}-{rate:g}": (size, rate) for size in SIZES for rate in RATES}
    wanted = given.only or ["unmask", *runs]
    path = RESULTS / f"budget-{given.minutes:g}"
    path.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        if name == "unmask":
            found = train_ours(given.corpus, path / "run", given.minutes, [])
        else:
            found = train_theirs(given.corpus, *runs[name], given.minutes)
        (path / f"{name}.json").write_text(json.dumps(found))
    summarise(path, given.minutes)


def summarise(path: Path, minutes: float) -> None:
    """What there is so far: a table, a figure, and when ours reached the best of theirs."""
    curves = {file.stem: json.loads(file.read_text()) for file in sorted(path.glob("*.json"))}
    others = {name: curve for name, curve in curves.items() if name != "unmask"}
    ours = curves.get("unmask", [])
    lines = [
        Line(
            name, [e["seconds"] / 60 for e in curve], [e["mlm"] for e in curve], faint=name != best
        )
        for best in [min(others, key=lambda n: others[n][-1]["mlm"], default=None)]
        for name, curve in curves.items()
    ]
    figure = Chart("Loss on hidden tokens, held-out text", lines, across="minutes")
    (path / "curves.svg").write_text(column([figure]))
    result: dict[str, Any] = {"minutes": minutes, "curves": curves}
    for name, curve in curves.items():
        last = curve[-1]
        print(f"| {name} | {last['tokens']:,} | {last['mlm']:.3f} | {last['mlm_accuracy']:.1%} |")
    if others and ours:
        best = min(curve[-1]["mlm"] for curve in others.values())
        reached = next((e["seconds"] for e in ours if e["mlm"] <= best), None)
        result |= {"best_of_theirs": best, "reached_after_seconds": reached}
        print(f"theirs ends at {best:.3f}; ours was there after {reached} seconds")
    save(f"budget-{minutes:g}", result)
