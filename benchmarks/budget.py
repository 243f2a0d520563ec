"""Held-out loss after a time budget: the `budget` recipe beside a plain Hugging Face loop.

Both sides train masked-token prediction on the same stretches of the same corpus, with the same
vocabulary and two threads, and are evaluated on the same held-out stretches with 15 % of the tokens
masked. The other side is BertForMaskedLM with its default configuration, tiny and mini, each with
three learning rates. Its learning rate follows the clock, as unmask's does. Evaluation counts in
unmask's minutes, but not in those of the other side.

    python -m benchmarks budget CORPUS [--minutes 10] [--only NAME ...]
        [--pace SECONDS] [--threads N]

With `--pace`, the seconds that a step of the other side took in an earlier run on a quiet machine,
its steps are counted instead of timed. Such a run may share the machine and use fewer threads.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import theirs
from benchmarks.measure import RESULTS, save
from unmask.checkpoint.folder import load_folder
from unmask.data.corpus.config import ExampleSettings
from unmask.data.corpus.corpus import open_corpus
from unmask.data.corpus.examples import split_documents
from unmask.data.corpus.stream import Cursor, Stream
from unmask.evaluation.language_model import SEED, Evaluation
from unmask.evaluation.report.charts import Chart, Line, stacked
from unmask.model.config import sized
from unmask.objectives.mlm import MaskedLM, MaskSettings
from unmask.system.distributed import Processes
from unmask.train.optim.schedules import OptimizerSettings, ScheduleSettings
from unmask.train.run_folder import read_metrics

THREADS, LENGTH, ROWS, HELD_OUT = 2, 128, 16, 50
EVALUATIONS, SCORED = 20, 40_000  # number of evaluations, tokens of each


@dataclass(frozen=True)
class Plain:
    """A run of the plain loop: model size, learning rate, with or without dropout."""

    size: str
    rate: float
    dropout: bool = True

    @property
    def name(self) -> str:
        """Return the name of the run in tables and files."""
        return f"{self.size}-{self.rate:g}" + ("" if self.dropout else "-no-dropout")


RATES = {"tiny": (5e-4, 1e-3, 2e-3), "mini": (2.5e-4, 5e-4, 1e-3)}  # the best one is the middle one
PLAIN = [Plain(size, rate) for size, rates in RATES.items() for rate in rates]
BESIDES = [Plain("tiny", 1e-3, dropout=False)]  # a change that needs no other tool


class Examples:
    """The text that both sides train on, and the held-out text that both are evaluated on."""

    def __init__(self, path: Path) -> None:
        corpus = open_corpus(path, check=False)
        self.vocabulary = corpus.tokenizer.vocabulary
        self.objective = MaskedLM(MaskSettings(), self.vocabulary)
        seen, held = split_documents(len(corpus.documents) - 1, HELD_OUT)
        kind = ExampleSettings(pairs="off")
        self.stream = Stream(corpus, seen, kind, 0, LENGTH)
        unseen = Stream(corpus, held, kind, SEED, LENGTH)
        self.evaluation = Evaluation(
            unseen, self.objective, Processes(), tokens=SCORED, micro_rows=ROWS
        )


def train_theirs(
    examples: Examples, plain: Plain, minutes: float, pace: float | None = None
) -> list[dict[str, Any]]:
    """Train the plain loop for some minutes (by `pace`, if given) and return its evaluations."""
    torch.manual_seed(0)
    config = sized(plain.size, len(examples.vocabulary))
    if not plain.dropout:
        config = config.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})
    model = theirs.bert(config, pairs=False)
    optimizer = theirs.adamw(model, OptimizerSettings(learning_rate=plain.rate))
    schedule = ScheduleSettings(minutes=minutes, warmup=0.05)
    cursor, seconds, tokens, step = Cursor(), 0.0, 0, 0
    evaluations: list[dict[str, Any]] = []
    while True:
        progress = schedule.progress(step, seconds)
        if len(evaluations) <= progress * EVALUATIONS or progress >= 1.0:
            scores = theirs.scores(model, examples.evaluation.batches, LENGTH)
            evaluations.append({"seconds": seconds, "tokens": tokens, "step": step, **scores})
            print(f"{plain.name}: {json.dumps(evaluations[-1])}", flush=True)
        if progress >= 1.0:
            return evaluations
        begun = time.monotonic()
        rows, cursor = examples.stream.take(cursor, ROWS)
        batch = examples.objective.prepare(examples.stream.batch(rows), step, progress)
        for group in optimizer.param_groups:
            # The factor is 0 at the very start, where a step would be wasted.
            group["lr"] = plain.rate * schedule.factor(max(progress, 1e-4))
        part = theirs.trimmed(theirs.apart([batch], LENGTH, pairs=False))
        theirs.step(model, optimizer, [part], clip=1.0)
        tokens, step = tokens + batch.real, step + 1
        seconds += pace or time.monotonic() - begun


def train_ours(examples: Examples, corpus: Path, out: Path, minutes: float) -> list[dict[str, Any]]:
    """Run `unmask pretrain budget` for some minutes and return its evaluations."""
    command = [sys.executable, "-m", "unmask", "pretrain", "budget", str(corpus)]
    command += ["--minutes", str(minutes), "--out", str(out), "--overwrite"]
    command += ["--threads", str(THREADS), "--set", f"evaluate.times={EVALUATIONS}"]
    command += ["--set", f"evaluate.tokens={SCORED}", "--set", f"data.held_out={HELD_OUT}"]
    subprocess.run(command, check=True)
    evaluations = [entry for entry in read_metrics(out) if entry["kind"] == "eval"]
    network = load_folder(out / "model").network
    # Both sides must be scored on the same tokens, or the comparison means nothing.
    again = examples.evaluation(network, examples.objective, {})["mlm"]
    if abs(again - evaluations[-1]["mlm"]) > 1e-3:
        raise SystemExit(
            f"the run reports a loss of {evaluations[-1]['mlm']:.4f}, and this benchmark "
            f"{again:.4f}: they were not scored on the same tokens. Give more --minutes."
        )
    return evaluations


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks budget")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", help="unmask, tiny-0.001, ...; all by default")
    parser.add_argument("--pace", type=float, help="fixed seconds per step of the plain loop")
    parser.add_argument("--threads", type=int, default=THREADS, help="threads of the plain loop")
    arguments = parser.parse_args(sys.argv[2:])
    torch.set_num_threads(arguments.threads)
    plain = {loop.name: loop for loop in [*PLAIN, *BESIDES]}
    path = RESULTS / f"budget-{arguments.minutes:g}"
    path.mkdir(parents=True, exist_ok=True)
    examples = Examples(arguments.corpus)
    for name in arguments.only or ["unmask", *plain]:
        if name == "unmask":
            evaluations = train_ours(examples, arguments.corpus, path / "run", arguments.minutes)
        else:
            evaluations = train_theirs(examples, plain[name], arguments.minutes, arguments.pace)
        (path / f"{name}.json").write_text(json.dumps(evaluations))
    summarise(path, arguments.minutes)


def summarise(path: Path, minutes: float) -> None:
    """Print a table, draw the curves, and report when unmask reached the best of the other side."""
    curves = {file.stem: json.loads(file.read_text()) for file in sorted(path.glob("*.json"))}
    ends = {name: curve[-1]["mlm"] for name, curve in curves.items() if name != "unmask"}
    best = min(
        (loop.name for loop in PLAIN if loop.name in ends), key=lambda name: ends[name], default=""
    )
    lines = [
        Line(name, [e["seconds"] / 60 for e in curve], [e["mlm"] for e in curve], faint=faint)
        for name, curve in curves.items()
        for faint in [name not in ("unmask", best)]
    ]
    figure = Chart("Loss on masked tokens, held-out text", lines, across="minutes")
    (path / "curves.svg").write_text(stacked([figure]))
    for name, curve in curves.items():
        last = curve[-1]
        print(f"| {name} | {last['tokens']:,} | {last['mlm']:.3f} | {last['mlm_accuracy']:.1%} |")
    result: dict[str, Any] = {"minutes": minutes, "curves": curves}
    if best and "unmask" in curves:
        after = [e["seconds"] for e in curves["unmask"] if e["mlm"] <= ends[best]]
        result |= {"best_of_theirs": best, "loss": ends[best], "reached_after": after[:1]}
        print(
            f"the plain loop ends at {ends[best]:.3f} ({best}); unmask reached this after "
            f"{after[:1]} seconds"
        )
    save(f"budget-{minutes:g}", result)
