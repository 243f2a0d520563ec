"""Every recipe that comes with unmask, with none of its settings changed, on two processes.

Pre-training would take days: its recipes are given one step, or one minute.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpora import chatter, corpus_of
from tests.jobs.small import WORDS
from tests.shapes import bert_heads
from tests.train.conftest import metrics
from unmask.checkpoint.folder import save_folder
from unmask.model.config import ModelConfig
from unmask.model.factory import make_network
from unmask.model.shape import Shape
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]

RECIPES = Path(__file__).parents[2] / "recipes"
FINETUNE = sorted(path.stem for path in (RECIPES / "finetune").glob("*.toml"))
TRANSLATE = sorted(path.stem for path in (RECIPES / "translate").glob("*.toml"))
TEXTS = [" ".join(WORDS[(3 * i + j) % len(WORDS)] for j in range(4 + i % 5)) for i in range(60)]


def trained(words: list[str], run: Path) -> str:
    """Train on two processes; what was printed, if it has ended well."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, "-m", "unmask", *words, "--out", str(run), "--threads", "1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "loop.micro_batches is raised from 1 to 2" in done.stdout
    assert metrics(run)
    assert (run / "model" / "model.safetensors").exists()
    return done.stdout


def labelled(place: Path, task: str) -> Path:
    """A file for a task."""
    if task == "qa":
        paragraphs = []
        for number, text in enumerate(TEXTS):
            answer = {"text": text.split()[1], "answer_start": text.index(" ") + 1}
            asked = {"id": str(number), "question": "who is it", "answers": [answer]}
            paragraphs.append({"context": text, "qas": [asked]})
        table = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (place / "qa.json").write_text(json.dumps(table))
        return place / "qa.json"
    if task == "ner":
        tagged = ("".join(f"{word} O\n" for word in text.split()) for text in TEXTS)
        (place / "ner.conll").write_text("john B-PER\nlives O\n\n" + "\n".join(tagged))
        return place / "ner.conll"
    if task == "translate":
        rows = "".join(f"{text}\t{' '.join(reversed(text.split()))}\n" for text in TEXTS)
        (place / "translate.tsv").write_text(f"source\ttarget\n{rows}")
        return place / "translate.tsv"
    label = {"classify": lambda i: "ab"[i % 2], "regress": lambda i: i / 10}[task]
    rows = "".join(f"{text}\t{label(i)}\n" for i, text in enumerate(TEXTS))
    (place / f"{task}.tsv").write_text(f"text\tlabel\n{rows}")
    return place / f"{task}.tsv"


@pytest.mark.parametrize("task", FINETUNE)
def test_a_task_is_learned_by_its_recipe(tmp_path, task):
    tokenizer = Tokenizer(Vocabulary([*SPECIALS, *WORDS]))
    size = len(tokenizer.vocabulary)
    config = ModelConfig(vocab_size=size, width=32, layers=1, heads=2, inner_width=64)
    save_folder(tmp_path / "encoder", make_network(Shape.of(config, bert_heads()), 0), tokenizer)
    file = str(labelled(tmp_path, task))
    files = ["--train", file, "--dev", file]
    trained(["finetune", task, str(tmp_path / "encoder"), *files], tmp_path / "run")


@pytest.mark.parametrize("recipe", TRANSLATE)
def test_a_translator_is_trained_by_its_recipe(tmp_path, recipe):
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    for part in ("train", "val"):
        (pairs / f"{part}.xx").write_text("".join(f"{text}\n" for text in TEXTS))
        (pairs / f"{part}.yy").write_text("".join(f"{text[::-1]}\n" for text in TEXTS))
    words = ["translate", "train", str(pairs), "--from", "xx", "--to", "yy", "--recipe", recipe]
    trained(words, tmp_path / "run")


@pytest.mark.parametrize(
    ("recipe", "length"), [("bert", ["--steps", "1"]), ("budget", ["--minutes", "1"])]
)
def test_an_encoder_is_trained_by_its_recipe(tmp_path, recipe, length):
    assert {path.stem for path in RECIPES.glob("*.toml")} == {"bert", "budget"}
    corpus = corpus_of(tmp_path, chatter(3000))
    trained(["pretrain", recipe, str(corpus.path), *length], tmp_path / "run")
