"""Training runs that the package has put together, stopped just before their first step.

A run is started the way a user starts it, with a recipe and files on disk, and is handed back at
the moment its loop would begin. Tests with recorded numbers see the network, optimizer and batches
of real runs, and only this file knows how runs are put together: when that changes, this file
changes and the recorded numbers stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.optim import Optimizer

import unmask
from tests.corpora import chatter, corpus_of
from tests.pairs import toy_pairs
from tests.shapes import bert_heads
from unmask.checkpoint.folder import save_folder
from unmask.evaluation.tasks import Labelled
from unmask.jobs.finetune import Finetune
from unmask.jobs.multi_task import MultiTask
from unmask.jobs.pretrain import Pretrain
from unmask.jobs.settings_read import TRANSLATE
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.tasks.translate import Translate, TranslateSettings
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.compose import compose
from unmask.train.loop import Loop
from unmask.train.optim.optimizers import average
from unmask.train.optim.schedules import set_learning_rate
from unmask.train.run import Run
from unmask.train.steps.base import MicroBatch, StepSite

WORDS = "red green blue six seven is it the john paris lives in . who where".split()
SHAPE = {"width": 32, "layers": 2, "heads": 2, "inner_width": 64, "max_length": 64}
TRANSLATORS = {
    "transformer": ["model.width=32", "model.layers=2", "model.heads=2", "model.inner_width=64"],
    "attention": ["model.width=32", "model.inner_width=32"],
}
RECORDS = 8  # in every labelled file, all of them in each step: shuffling changes no batch's shape
# Kernels depend on the precision, and "auto" depends on the CPU.
PRECISION = "fp32"


@dataclass(frozen=True)
class Assembled:
    """A run before its first step."""

    network: Network
    optimizer: Optimizer
    step: Callable[[], None]  # forward, backward, clipping, optimizer and running average
    set_learning_rate: Callable[[float], None]  # sets the highest learning rate


class _Ready(Exception):
    def __init__(self, loop: Loop) -> None:
        self.loop = loop


def assembled(start: Callable[[], object], *, term: str | None = None) -> Assembled:
    """Start a run and stop it before its first step; `term` chooses a task of a multi-task run."""

    def stop(loop: Loop) -> None:
        raise _Ready(loop)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Ready) as caught:
        patch.setattr(Loop, "run", stop)
        start()
    loop = caught.value.loop
    pieces = _pieces(loop, term)

    def step() -> None:
        site = StepSite(loop.processes, loop.precision, loop.optimizer_settings.max_grad_norm)
        result = loop.step(loop.module, pieces, site)
        assert result is not None
        assert result.taken
        loop.optimizer.step()
        if loop.settings.weight_average:
            for module in (loop.ingredients.network, loop.ingredients.objective):
                average(module, loop.optimizer, 0.1)

    return Assembled(
        loop.ingredients.network,
        loop.optimizer,
        step,
        lambda rate: set_learning_rate(loop.optimizer, rate),
    )


def _pieces(loop: Loop, term: str | None) -> Sequence[MicroBatch]:
    """The micro-batches of the first step, or of the first that trains the task `term`."""
    for step in range(100):
        pieces = loop.dealer.take({}, step, 0.0).micro_batches
        if term is None or all(set(piece.batch.counts) == {term} for piece in pieces):
            return pieces
    raise AssertionError(f"none of the first 100 steps trains {term}")


def pretraining(recipe: str, place: Path, *changes: str) -> Assembled:
    """A step of two micro-batches, each of four sequences of 32 tokens."""
    corpus = corpus_of(place, chatter(80))
    shape = ['model.size="tiny"', *(f"model.{name}={value}" for name, value in SHAPE.items())]
    sizes = ["data.held_out=10", f"loop.micro_batch_tokens={4 * 32}", "schedule.steps=4"]
    phases = f"schedule.phases=[{{length = 32, batch_tokens = {8 * 32}}}]"
    precision = f'loop.precision="{PRECISION}"'
    chosen = compose(Pretrain.scope, recipe, [*shape, *sizes, phases, precision, *changes])
    return assembled(Run(Pretrain(corpus.path), chosen, place / "run").go)


def finetuning(task: str, place: Path, **settings: float) -> Assembled:
    """One task on a small BERT."""
    file = labelled(task, place)
    chosen = {"loop.batch_size": RECORDS, "loop.precision": PRECISION, **settings}
    model, out = small_bert(place / "bert"), place / "run"
    return assembled(
        lambda: unmask.finetune(task, model, train=file, dev=file, out=out, settings=chosen)
    )


def finetuning_several(place: Path, *, term: str | None = None, **rates: float) -> Assembled:
    """Two tasks on a small BERT, "number" and "entities"."""
    tasks = []
    for name, task in (("number", "classify"), ("entities", "ner")):
        file = str(labelled(task, place))
        tasks.append({"name": name, "task": {"name": task}, "train": file, "dev": file})
    table = {
        "tasks": tasks,
        "optimizer": rates,
        "loop": {"batch_size": RECORDS, "precision": PRECISION},
    }
    job, recipe = MultiTask(small_bert(place / "bert")), compose(MultiTask.scope, table)
    return assembled(Run(job, recipe, place / "run").go, term=term)


def translating(recipe: str, place: Path, *changes: str) -> Assembled:
    """An encoder and a decoder, both from scratch."""
    pairs = toy_pairs(RECORDS)
    sizes = ["tokenizer.size=60", f"loop.batch_size={RECORDS}", f'loop.precision="{PRECISION}"']
    chosen = compose(TRANSLATE, recipe, [*sizes, *TRANSLATORS[recipe], *changes])
    assert chosen.task is not None
    assert isinstance(chosen.task.settings, TranslateSettings)
    data = Labelled(Translate(chosen.task.settings), pairs, pairs)
    return assembled(Run(Finetune(None, data, scope=TRANSLATE), chosen, place / "run").go)


def small_bert(path: Path) -> Path:
    """A folder with a BERT of two layers and random weights."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(Vocabulary([*SPECIALS, *WORDS]))
    config = ModelConfig(vocab_size=len(tokenizer.vocabulary), init_std=0.1, **SHAPE)
    save_folder(path, Network(Shape.of(config, bert_heads(tokens=True, pair=True))), tokenizer)
    return path


def labelled(task: str, place: Path) -> Path:
    """A file for a task, with records of different lengths."""
    place.mkdir(parents=True, exist_ok=True)
    numbers = range(RECORDS)
    if task == "classify":
        path, texts = place / "classify.tsv", [" the" * (i % 3) for i in numbers]
        rows = [f"it is {('six', 'seven')[i % 2]}{text}" for i, text in enumerate(texts)]
        lines = [f"{row}\t{('six', 'seven')[i % 2]}\n" for i, row in enumerate(rows)]
        path.write_text("text\tlabel\n" + "".join(lines))
        return path
    path = place / "ner.conll"
    tagged = ["john B-PER", "lives O", "in O", "paris B-LOC", ". O"]
    path.write_text("".join("\n".join(tagged[: 2 + i % 4]) + "\n\n" for i in numbers))
    return path
