"""Raw text -> vocabulary, pre-trained model, fine-tuned tasks; and the gain from pre-training.

    python -m benchmarks story DATA --out DIR [--language zh] [--minutes 30] [--model FOLDER]
        [--threads N]

The commands are those of docs/story.md; each is printed before it runs. Each task is fine-tuned
twice: from the pre-trained model, and from a model of the same shape with random weights. Existing
results are kept.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measure import save
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.integrity import verify
from unmask.model.network import Network


@dataclass(frozen=True)
class Tuned:
    """A task with its data (paths below DATA), settings and metrics."""

    task: str
    train: str
    dev: str
    settings: tuple[str, ...]
    metrics: tuple[str, ...]
    lines: int | None = None  # of the training file; None: all


@dataclass(frozen=True)
class Story:
    """A language: raw texts, a given vocabulary (None: learn one) and tasks."""

    texts: tuple[str, ...]
    vocabulary: str | None
    tasks: dict[str, Tuned]


RATE = ("--learning-rate", "3e-4")  # small networks need a higher rate than the recipes' 5e-5
FEW = 501  # lines: as many labels, or one fewer if the first line is a header
SST2 = Tuned(
    "classify",
    "glue/SST-2/train.tsv",
    "glue/SST-2/dev.tsv",
    ("--epochs", "2", "--set", "evaluate.times=4"),
    ("accuracy",),
)
REVIEWS = Tuned(
    "classify",
    "chinese/chnsenticorp/train.tsv",
    "chinese/chnsenticorp/dev.tsv",
    ("--epochs", "3", "--max-length", "256"),
    ("accuracy",),
)
STORIES = {
    "en": Story(
        ("corpus/books.jsonl.gz", "corpus/enwiki_00.jsonl.gz", "corpus/enwiki_01.jsonl.gz"),
        None,
        {
            "mood": SST2,
            "mood of few": replace(SST2, settings=("--epochs", "20"), lines=FEW),
            "names": Tuned(
                "ner", "conll2003/eng.train", "conll2003/eng.testa", ("--epochs", "5"), ("f1",)
            ),
            "answers": Tuned(
                "qa",
                "squad/train-v1.1-36-articles.json",
                "squad/dev-v1.1-12-articles.json",
                ("--epochs", "4", "--max-length", "256"),
                ("exact", "f1"),
            ),
        },
    ),
    "zh": Story(
        ("corpus/zhwiki_00.jsonl.gz",),
        "vocab/bert-base-chinese-vocab.txt",
        {
            "mood": REVIEWS,
            "mood of few": replace(
                REVIEWS, settings=("--epochs", "20", "--max-length", "256"), lines=FEW
            ),
            "names": Tuned(
                "ner",
                "chinese/weibo-ner/train.conll",
                "chinese/weibo-ner/dev.conll",
                ("--epochs", "10", "--set", "task.lenient=true"),
                ("f1",),
            ),
        },
    ),
}


def run(*arguments: object) -> None:
    """Print an `unmask` command and run it."""
    command = [str(argument) for argument in arguments]
    print("$ unmask", *command, flush=True)
    subprocess.run([sys.executable, "-m", "unmask", *command], check=True)


def pretrained(story: Story, data: Path, out: Path, minutes: float, threads: list[str]) -> Path:
    """Make vocabulary, corpus and pre-trained model, unless they exist; return the model."""
    texts = [data / name for name in story.texts]
    vocabulary = out / "vocabulary"
    if not vocabulary.exists():
        if story.vocabulary is None:
            run("vocab", "learn", *texts, "--size", 8192, "--out", vocabulary)
        else:
            vocabulary.mkdir()
            (vocabulary / "vocab.txt").write_bytes((data / story.vocabulary).read_bytes())
    if not (out / "corpus").exists():
        run("prepare", *texts, "--tokenizer", vocabulary, "--out", out / "corpus")
    if not (out / "pretrained" / "model").exists():
        goal = ["--minutes", minutes, "--out", out / "pretrained", *threads]
        run("pretrain", "budget", out / "corpus", *goal)
    return out / "pretrained" / "model"


def untrained(model: Path, out: Path) -> Path:
    """Save a model of the same shape with random weights."""
    if not out.exists():
        folder = load_folder(model)
        assert folder.tokenizer is not None
        save_folder(out, Network(folder.network.shape), folder.tokenizer)
    return out


def tune(tuned: Tuned, model: Path, data: Path, out: Path, threads: list[str]) -> dict[str, Any]:
    """Fine-tune a model for a task; return the best scores on the development file."""
    if not (out / "model").exists():
        train = data / tuned.train
        if tuned.lines:
            few = train.read_text(encoding="utf-8").splitlines(keepends=True)[: tuned.lines]
            train = out.with_name(f"few-{train.name}")
            train.write_text("".join(few), encoding="utf-8")
        files = ["--train", train, "--dev", data / tuned.dev]
        goal = [*files, "--out", out, "--overwrite", *RATE, *tuned.settings, *threads]
        run("finetune", tuned.task, model, *goal)
    manifest = verify(out / "model")
    assert manifest is not None
    scores: dict[str, Any] = manifest["provenance"]["scores"]
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks story")
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--language", choices=STORIES, default="en")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of pre-training")
    parser.add_argument("--model", type=Path, help="start from this pre-trained model")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args(sys.argv[2:])
    story = STORIES[arguments.language]
    threads = ["--threads", str(arguments.threads)] if arguments.threads else []
    arguments.out.mkdir(parents=True, exist_ok=True)
    model = arguments.model or pretrained(
        story, arguments.data, arguments.out, arguments.minutes, threads
    )
    begins = {"pretrained": model, "untrained": untrained(model, arguments.out / "untrained")}
    found: dict[str, Any] = {}
    for name, tuned in story.tasks.items():
        found[name] = {
            begin: tune(
                tuned,
                folder,
                arguments.data,
                arguments.out / f"{name}-{begin}".replace(" ", "-"),
                threads,
            )
            for begin, folder in begins.items()
        }
        for metric in tuned.metrics:
            cells = " | ".join(f"{100 * found[name][begin][metric]:.1f}" for begin in begins)
            print(f"| {name} | {metric} | {cells} |", flush=True)
    save(f"story-{arguments.language}", found)
