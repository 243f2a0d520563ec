"""Predict a large file: how much memory it takes, and whether every line gets an answer.

    python -m benchmarks predict [--megabytes 1000] [--task classify] [--threads N]

The texts are stretches of the standard library's documentation, of 20 to 20,000 characters. The
model is tiny and was trained for a single step, since its answers do not matter.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from benchmarks.measure import save
from tests.shapes import bert_heads
from unmask.checkpoint.fetch import get
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.start import finetune_files
from unmask.model.config import sized
from unmask.model.network import Network
from unmask.model.shape import Shape

SHORTEST, LONGEST = 20, 20_000  # characters; lengths are log-uniform in between
TAUGHT: dict[str, list[dict[str, Any]]] = {
    "classify": [{"text": "good", "label": "yes"}, {"text": "bad", "label": "no"}],
    "ner": [{"text": "In Rome", "entities": [{"start": 3, "end": 7, "label": "LOC"}]}],
}


def taught(task: str, place: Path) -> Path:
    """Train a tiny model for a task, for one step."""
    tokenizer = load_folder(get("minilm")).tokenizer
    assert tokenizer is not None
    network = Network(Shape.of(sized("tiny", len(tokenizer.vocabulary)), bert_heads()))
    save_folder(place / "start", network, tokenizer)
    changes = ["loop.batch_size=2", "schedule.steps=1", "evaluate.times=1"]
    rows = TAUGHT[task]
    finetune_files(task, place / "start", LabelledFiles(rows, rows), place / "run", changes=changes)
    return place / "run" / "model"


def write_texts(path: Path, size: int) -> int:
    """Write a JSONL file of at least `size` bytes; return its number of lines."""
    prose = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    rng, lines = random.Random(0), 0
    with path.open("w") as file:
        while file.tell() < size:
            length = round(SHORTEST * (LONGEST / SHORTEST) ** rng.random())
            at = rng.randrange(len(prose) - length)
            file.write(json.dumps({"id": lines, "text": prose[at : at + length]}) + "\n")
            lines += 1
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks predict")
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--task", choices=TAUGHT, default="classify")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args(sys.argv[2:])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = taught(arguments.task, place)
        lines = write_texts(place / "texts.jsonl", round(arguments.megabytes * 1e6))
        texts = str(place / "texts.jsonl")
        command = [sys.executable, "-m", "unmask", "predict", str(model), texts]
        begun = time.perf_counter()
        with (place / "answers.jsonl").open("w") as out:
            child = subprocess.Popen(
                command, stdout=out, env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
            )
            _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begun
        with (place / "answers.jsonl").open() as answers:
            answered = sum(1 for _ in answers)
    peak = used.ru_maxrss * 1024
    print(
        f"{lines:,} lines, {arguments.megabytes:,.0f} MB: {answered:,} answered in {seconds:,.0f} "
        f"s, exit {os.waitstatus_to_exitcode(status)}; {peak / 1e6:,.0f} MB of memory at most"
    )
    save(
        f"predict-{arguments.task}",
        {"lines": lines, "answered": answered, "seconds": seconds, "peak_bytes": peak},
    )
