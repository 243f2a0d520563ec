"""A toy language pair: each word has one translation, and the order is reversed."""

import random
from collections.abc import Sequence
from pathlib import Path

from unmask.data.labelled.parallel import Pair
from unmask.jobs.inputs.labelled import LabelledFiles

WORDS = {
    "hund": "dog",
    "katze": "cat",
    "haus": "house",
    "baum": "tree",
    "rot": "red",
    "gross": "big",
    "alt": "old",
}


def toy_pairs(count: int, *, seed: int = 0) -> list[Pair]:
    """Texts of one to four words, and what they are in the other language."""
    rng, found = random.Random(seed), []
    for number in range(count):
        words = [rng.choice(list(WORDS)) for _ in range(rng.randint(1, 4))]
        target = " ".join(WORDS[word] for word in reversed(words))
        found.append(Pair(" ".join(words), target, f"toy:{number + 1}"))
    return found


def write_pairs(
    folder: Path, train: int = 200, dev: int = 20, languages: tuple[str, str] = ("xx", "yy")
) -> Path:
    """The same as a folder of parallel files."""
    folder.mkdir(parents=True, exist_ok=True)
    first, second = languages
    for name, count, seed in (("train", train, 0), ("val", dev, 1)):
        pairs = toy_pairs(count, seed=seed)
        (folder / f"{name}.{first}").write_text("".join(f"{pair.source}\n" for pair in pairs))
        (folder / f"{name}.{second}").write_text("".join(f"{pair.target}\n" for pair in pairs))
    return folder


SMALL = [  # a recipe's settings for a model that learns them in seconds
    "tokenizer.size=60",
    "loop.batch_size=20",
    "schedule.epochs=2.0",
    "evaluate.times=2",
    "optimizer.learning_rate=5e-3",
    "task.label_smoothing=0.0",
]
SHAPE = ["model.width=32", "model.layers=1", "model.init_std=0.1", "model.dropout=0.0"]
TRANSFORMER = [*SMALL, *SHAPE, "model.heads=2", "model.inner_width=64"]
RECURRENT = [*SMALL, *SHAPE, "model.inner_width=32"]


def toy_files(train: int, dev: int) -> LabelledFiles:
    """Pairs to learn from and to be scored on, as a user gives them in Python."""
    return LabelledFiles(rows_of(toy_pairs(train)), rows_of(toy_pairs(dev, seed=1)))


def rows_of(pairs: Sequence[Pair]) -> list[dict[str, str | None]]:
    """What would be the lines of a JSONL file."""
    return [{"source": pair.source, "target": pair.target} for pair in pairs]
