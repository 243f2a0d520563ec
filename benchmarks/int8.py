"""What int8 costs a fine-tuned model: scores before and after `unmask compile`.

    python -m benchmarks int8 DATA [--only sst2 conll stsb]

MiniLM is fine-tuned as in `python -m benchmarks finetune` and compiled with texts of the training
file. Both models are evaluated on the development file.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.finetune import CASES, read_case, settings
from benchmarks.measure import RESULTS, save
from unmask.checkpoint.fetch import get
from unmask.data.labelled.columns import Columns
from unmask.evaluation.tasks import Labelled
from unmask.infer.compiled.compile import compile_model
from unmask.infer.model import Model
from unmask.infer.predict import evaluate_file
from unmask.jobs.finetune import Finetune
from unmask.train.run import Run

TEXTS = 400  # for calibration


def trained(name: str, data: Labelled, out: Path) -> Model:
    """Return the fine-tuned model of an earlier call, or train it."""
    if not (out / "model").exists():
        Run(Finetune(get("minilm"), data), settings(CASES[name], 0), out).go()
    return Model.load(out / "model")


def compared(name: str, folder: Path) -> dict[str, Any]:
    """Return the scores and seconds of both models."""
    case, place = CASES[name], RESULTS / "int8" / name
    read = read_case(case, folder)
    data = Labelled(read.task, read.train[: case.first], read.dev)
    live = trained(name, data, place)
    out = place / "int8"
    if not out.exists():
        said = compile_model(live, out, data.train[:TEXTS], int8=True)
        print(f"{name}: {said.text}")
    found: dict[str, Any] = {}
    for kind, model in {"fp32": live, "int8": Model.load(out)}.items():
        begun = time.perf_counter()
        scores, _, _ = evaluate_file(model, [folder / case.dev], Columns())
        found[kind] = {**scores, "seconds": time.perf_counter() - begun}
    for metric in case.metrics:
        full, bytes_ = (100 * found[kind][metric] for kind in ("fp32", "int8"))
        print(f"{name}: {metric} {full:.2f} in fp32, {bytes_:.2f} in int8: {bytes_ - full:+.2f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks int8")
    parser.add_argument("data", type=Path)
    kinds = ["sst2", "conll", "stsb"]
    parser.add_argument("--only", nargs="*", choices=kinds, default=kinds)
    arguments = parser.parse_args(sys.argv[2:])
    for name in arguments.only:
        save(f"int8-{name}", compared(name, arguments.data))
