"""Small corpora, made in the process of the test."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WORDS
from unmask.data.corpus.prepare import PrepareSettings, PrepareTask, prepare

Prepare = Callable[..., Path]


def prose(sentences: int, *, seed: int = 0) -> str:
    """Sentences of known words, one a line, with a blank line after some of them."""
    rng = random.Random(seed)
    words = [word for word in WORDS if word.isalpha()]
    return "".join(
        " ".join(rng.choices(words, k=rng.randint(2, 9))) + rng.choice([".\n", "!\n", ".\n\n"])
        for _ in range(sentences)
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a corpus with its bytes; locks say who was at work, not on what."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock-")
    }


@pytest.fixture
def prepared(tmp_path, tokenizer) -> Prepare:
    """Write files of these contents and prepare them; the folder of the corpus.

    Shards are as small as may be, so that a page of text fills several.
    """

    def run(
        files: dict[str, bytes | str],
        out: str = "corpus",
        *,
        task: PrepareTask | None = None,
        workers: int = 1,
        by=tokenizer,
        notice=lambda line: None,
        **settings,
    ) -> Path:
        for name, raw in files.items():
            (tmp_path / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)
        chosen = PrepareSettings(**{"shard_characters": 1000, **settings})
        paths = [str(tmp_path / name) for name in files]
        folder = tmp_path / out
        prepare(paths, by, folder, chosen, task=task, workers=workers, notice=notice)
        return folder

    return run
