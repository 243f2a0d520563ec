"""Fine-tuning so small that it takes a fraction of a second: a model, labelled data, recipes."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from tests.shapes import bert_heads
from tests.train.conftest import Heard
from unmask.checkpoint.folder import Folder, load_folder, save_folder
from unmask.data.labelled.columns import Sample
from unmask.evaluation.best_step import BestStep, TaskScorer
from unmask.evaluation.report.answers import TaskScores
from unmask.evaluation.tasks import Labelled
from unmask.jobs.finetune import Finetune
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.settings_read import FINETUNE
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.objectives.base import Objective
from unmask.system.console import Console
from unmask.tasks.classify import Classify, ClassifySettings
from unmask.tasks.results import Detail
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.compose import compose
from unmask.train.ingredients import Ingredients
from unmask.train.recipe import Recipe
from unmask.train.run import Job, Outcome, Run, RunOptions
from unmask.train.site import Site

WORDS = "red green blue six seven is was it the a john paris lives in . who where".split()
TABLE: dict[str, Any] = {
    "task": {"name": "classify"},
    "optimizer": {"learning_rate": 3e-3},
    "schedule": {"steps": 16, "warmup": 0.1},
    "loop": {"batch_size": 8, "precision": "fp32"},
    "evaluate": {"times": 4},
}


def small_model(path: Path) -> Folder:
    """A small encoder with a pooler, on disk as any other."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(Vocabulary([*SPECIALS, *WORDS]))
    config = ModelConfig(
        vocab_size=len(tokenizer.vocabulary),
        width=32,
        layers=2,
        heads=2,
        inner_width=64,
        max_length=32,
        init_std=0.1,
    )
    save_folder(path, Network(Shape.of(config, bert_heads(tokens=True, pair=True))), tokenizer)
    return load_folder(path)


def samples(count: int, *, start: int = 0) -> list[Sample]:
    """A text with six or seven in it: the label says which."""
    colours = "red", "green", "blue"
    return [
        Sample(
            f"it is {('six', 'seven')[i % 2]} {colours[i % 3]} " + "the " * (i % 5),
            None,
            (("six", "seven")[i % 2],),
            f"here:{i}",
        )
        for i in range(start, start + count)
    ]


def data(train: int = 40, dev: int = 12) -> Labelled:
    task = Classify(ClassifySettings(), ["seven", "six"])
    return Labelled(task, samples(train), samples(dev, start=97))


def names(place: Path) -> Labelled:
    """Sentences with a person and a place in them, to learn from and to be scored on."""
    path = place / "names.conll"
    path.write_text("john B-PER\nlives O\nin O\nparis B-LOC\n. O\n\nit O\nis O\nred O\n\n" * 6)
    return LabelledFiles(path, path).read(recipe(task={"name": "ner"}).task)


def written(place: Path, name: str, records: Iterable[Sample]) -> str:
    """The path of a table of records."""
    path = place / name
    rows = "".join(f"{record.text}\t{record.label[0]}\n" for record in records)
    path.write_text("text\tlabel\n" + rows)
    return str(path)


def recipe(**changes: Any) -> Recipe:
    table = dict(TABLE)
    for name, value in changes.items():
        table[name] = {**table.get(name, {}), **value} if isinstance(value, dict) else value
    return compose(FINETUNE, table)


def run(
    job: Job,
    out: Path,
    recipe: Recipe | None,
    *,
    said: list[str] | None = None,
    console: Console | None = None,
    **options: Any,
) -> Outcome:
    return Run(job, recipe, out, console or Heard(said), RunOptions(**options)).go()


def finetune(
    model: Folder, data: Labelled, out: Path, recipe: Recipe, **how: Any
) -> dict[str, Any]:
    """The scores of the best step."""
    return run(Finetune(model, data), out, recipe, **how).summary


class At(Heard):
    """Does something once training has reached a step."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        super().__init__()
        self.step, self.act = step, act

    def progress(self, what, unit, done, total=None, *, note="", seconds_left=None) -> None:
        if what == "training" and done == self.step:
            self.act()


class Marks:
    """An exam that gives marks that were settled before, one after the other."""

    def __init__(self, marks: Iterable[float]) -> None:
        self.marks = iter(marks)

    def measure(
        self, network: Network, objective: Objective | None
    ) -> tuple[dict[str, TaskScores], list[float]]:
        scores = {"accuracy": next(self.marks)}
        return {"": TaskScores("classify", "accuracy", ClassifySettings(), scores, Detail())}, [0.0]


class Examined(Finetune):
    """Fine-tuning that is scored by another exam."""

    def __init__(self, model: Folder, data: Labelled, exam: TaskScorer) -> None:
        super().__init__(model, data)
        self.exam = exam

    def build(self, recipe: Recipe, site: Site) -> Ingredients:
        given = super().build(recipe, site)
        assert isinstance(given.evaluator, BestStep)
        given.evaluator.scorer = self.exam
        return given
