"""Fine-tuning beside transformers, from the same weights: scores and speed.

    python -m benchmarks finetune DATA [--only speed sst2 conll stsb squad] [--seeds 3]
        [--threads 2] [--rate R]

Scores: both sides train on the same windows with the same settings and several seeds, and the same
functions turn scores into metrics. results/finetune-NAME-runs.json keeps the runs, which are not
repeated: remove it when the code has changed.
Speed: training steps, evaluation and prediction on SST-2's sentences, in turn. The transformers
side pads each batch to its longest sentence, as its Trainer does.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import theirs, tuned
from benchmarks.measure import RESULTS, Apart, interleaved, ratio, save
from tests.stepping import take_step
from unmask.checkpoint.fetch import get
from unmask.checkpoint.folder import Folder, load_folder
from unmask.data.batch import Batch
from unmask.evaluation.tasks import Labelled
from unmask.infer.answering import answer_records
from unmask.infer.model import Model
from unmask.jobs.finetune import Finetune
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.settings_read import FINETUNE
from unmask.model.factory import make_network
from unmask.model.kernels.malloc import keep_freed_memory
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.system.console import Console
from unmask.system.distributed import Processes
from unmask.tasks.base import Task
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import LiveForward
from unmask.tasks.labels import LabelTask, LabelWindow, label_tasks
from unmask.text.tokens import Tokenizers
from unmask.train.compose import compose
from unmask.train.optim.optimizers import make_optimizer
from unmask.train.recipe import Recipe
from unmask.train.run import Run
from unmask.train.sources import Dealer, ShuffledWindows
from unmask.train.steps.base import TrainingModule

THREADS, BATCH, STEPS, TEXTS = 2, 32, 16, 1000
SIDES = ("unmask", "transformers")
# SST-2's training file has mostly phrases, 13 tokens on average; the development file has 25.
MEASURED = [("step", "train"), ("evaluate", "train"), ("predict", "train")]
MEASURED += [("evaluate", "dev"), ("predict", "dev")]


@dataclass(frozen=True)
class Quality:
    """A task, its data, and how much of it is used."""

    task: str
    train: str
    dev: str
    first: int  # training examples, from the beginning of the file
    epochs: float
    length: int
    metrics: tuple[str, ...]
    scored: int = 10**9  # examples to evaluate on
    rate: float = 1e-4


CASES = {
    "sst2": Quality(
        "classify", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 6400, 2.0, 128, ("accuracy",)
    ),
    "conll": Quality("ner", "conll2003/eng.train", "conll2003/eng.testa", 3500, 3.0, 128, ("f1",)),
    "stsb": Quality(
        "regress",
        "glue/STS-B/train.tsv",
        "glue/STS-B/dev.tsv",
        2800,
        2.0,
        128,
        ("spearman",),
        rate=2e-4,  # the head starts at 0 and has 175 steps to reach 2.7, the mean
    ),
    "squad": Quality(
        "qa",
        "squad/train-v1.1-36-articles.json",
        "squad/dev-v1.1-12-articles.json",
        3000,
        1.0,
        256,
        ("exact", "f1"),
        scored=1000,
        rate=2e-4,  # with 1e-4 and two epochs of 1,500 questions, unmask answered a fifth
    ),
}


def settings(case: Quality, seed: int) -> Recipe:
    """Return the settings of a case, which both sides share."""
    table = {
        "seed": seed,
        "task": {"name": case.task},
        "tokenizer": {"max_length": case.length},
        "optimizer": {"learning_rate": case.rate, "epsilon": 1e-8},
        "schedule": {"warmup": 0.1, "epochs": case.epochs},
        "loop": {"batch_size": BATCH, "precision": "fp32"},
        "evaluate": {"times": 1},
    }
    return compose(FINETUNE, table)


def read_case(case: Quality, folder: Path) -> Labelled:
    """Read the files of a case."""
    choice = settings(case, 0).task
    assert choice is not None
    return LabelledFiles(folder / case.train, folder / case.dev).read(choice)


def quality(name: str, case: Quality, folder: Path, model: Path, seeds: int) -> dict[str, Any]:
    """Run both sides of a case with all seeds; return their scores and seconds."""
    found = read_case(case, folder)
    data = Labelled(found.task, found.train[: case.first], found.dev[: case.scored])
    written = RESULTS / f"finetune-{name}-runs.json"
    runs = json.loads(written.read_text()) if written.exists() else {}
    sides: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for seed in range(seeds):
        for side, run in (("unmask", _ours), ("transformers", _theirs)):
            key = f"{side}, seed {seed}, {torch.get_num_threads()} threads, {case}"
            if key not in runs:
                runs[key] = run(data, model, settings(case, seed))
                written.parent.mkdir(exist_ok=True)
                written.write_text(json.dumps(runs, indent=2))
            sides[side].append(runs[key])
            print(f"{name}, seed {seed}, {side}: {runs[key]}", flush=True)
    result: dict[str, Any] = {"runs": sides}
    for metric in (*case.metrics, "seconds"):
        values = {side: [run[metric] for run in own] for side, own in sides.items()}
        result[metric] = {
            side: {"mean": statistics.mean(v), "deviation": statistics.stdev(v) if seeds > 1 else 0}
            for side, v in values.items()
        }
    return result


def _ours(data: Labelled, model: Path, recipe: Recipe) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        timed = Timed()
        found = Run(Finetune(model, data), recipe, Path(folder) / "run", timed).go().summary
        ends = timed.ends
        # Steps only; the first one has no known start and counts as an average one.
        seconds = (ends[-1] - ends[0]) * len(ends) / (len(ends) - 1)
        return {**{k: float(v) for k, v in found.items()}, "seconds": seconds}


class Timed(Console):
    """A console that records the time at which each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def progress(self, what: str, *about: Any, **more: Any) -> None:
        """Record the end of a step."""
        self.ends.append(time.monotonic())


def task_of(data: Labelled) -> LabelTask[Any, Any]:
    """Return the task of the data."""
    return label_tasks({"": data.task})[""]


def windows_of(data: Labelled, tokens: Tokenizers) -> list[LabelWindow]:
    """Turn the training data into windows."""
    found = task_of(data).windows(data.train, tokens, learn=True)
    return [window.compact() for _, windows in found for window in windows]


def _theirs(data: Labelled, model: Path, recipe: Recipe) -> dict[str, float]:
    assert recipe.tokenizer.max_length is not None
    tokens = Tokenizers(load_folder(model).needed_tokenizer(), recipe.tokenizer.max_length)
    task, windows = task_of(data), windows_of(data, tokens)
    network = tuned.network(task, model, recipe.seed)
    optimizer = theirs.adamw(network, recipe.optimizer)
    schedule = recipe.schedule.in_steps(len(windows) / recipe.loop.batch_size)
    seconds = tuned.train(network, task, windows, optimizer, schedule, recipe, seed=recipe.seed)
    pairs = list(task.windows(data.dev, tokens))
    flat = [window for _, some in pairs for window in some]
    tables = iter(tuned.scores(network, task, flat, batch=recipe.loop.batch_size))
    said = [
        task.decode(record, some, [next(tables) for _ in some], tokens) for record, some in pairs
    ]
    task, settled = task.choose_thresholds(data.dev, said)
    return {**task.score(data.dev, settled), "seconds": seconds}


def _network(folder: Folder, task: Task[Any, Any]) -> Network:
    """Return the network of a folder with the head of a task."""
    config = folder.network.config
    heads = task.heads(config, Tokenizers(folder.needed_tokenizer(), config.max_length), {})
    return make_network(Shape.of(config, heads), 0, start=folder.network)


def _tokens(folder: Folder) -> Tokenizers:
    """Return the tokenizer of a folder, with at most 128 tokens per text."""
    return Tokenizers(folder.needed_tokenizer(), 128)


class Speed:
    """One side of a speed measurement on SST-2; runs in a process of its own."""

    def __init__(self, side: str, what: str, file: str, folder: Path, model: Path) -> None:
        torch.set_num_threads(THREADS)
        case = CASES["sst2"]
        self.recipe = settings(case, 0)
        data = read_case(case, folder)
        read = {"train": data.train, "dev": data.dev}[file]
        self.data = Labelled(data.task, data.train[: BATCH * STEPS], read[-TEXTS:])
        self.model = model
        if side == "unmask":
            keep_freed_memory()
        made: Callable[[], Callable[[], object]] = getattr(self, f"_{what}_{side}")
        self.run = made()
        self.about = {"texts": len(self.data.train if what == "step" else self.data.dev)}

    def __call__(self) -> None:
        """Run one round."""
        self.run()

    def _step_unmask(self) -> Callable[[], object]:
        folder = load_folder(self.model)
        task, tokens, group = self.data.task, _tokens(folder), Processes()
        objective = task.objective
        module = TrainingModule(_network(folder, task).train(), objective)
        optimizer = make_optimizer(module, self.recipe.optimizer)
        items = [[window] for window in windows_of(self.data, tokens)]

        def lay_out(some: Sequence[Any]) -> Batch:
            return task.batch(some, tokens)

        deal = Dealer(ShuffledWindows(items, lay_out, objective, self.recipe), group)

        def steps() -> None:
            cursor: dict[str, int] = {}
            for step in range(STEPS):
                dealt = deal.take(cursor, step, 0.0)
                cursor = dealt.cursor
                clip = self.recipe.optimizer.max_grad_norm
                take_step(module, dealt.micro_batches, optimizer, group, clip=clip)

        return steps

    def _step_transformers(self) -> Callable[[], object]:
        windows = windows_of(self.data, _tokens(load_folder(self.model)))
        task, recipe = task_of(self.data), self.recipe
        network = tuned.network(task, self.model, 0)
        schedule = recipe.schedule.model_copy(update={"steps": STEPS, "epochs": None})
        optimizer = theirs.adamw(network, recipe.optimizer)
        return lambda: tuned.train(network, task, windows, optimizer, schedule, recipe, seed=0)

    def _evaluate_unmask(self) -> Callable[[], object]:
        folder, task = load_folder(self.model), self.data.task
        network, tokens = _network(folder, task).eval(), _tokens(folder)
        known = Criterion(network, task.objective)
        return lambda: list(
            answer_records(LiveForward(network), tokens, task, self.data.dev, known=known)
        )

    def _evaluate_transformers(self) -> Callable[[], object]:
        tokens, task = _tokens(load_folder(self.model)), task_of(self.data)
        network = tuned.network(task, self.model, 0)

        def evaluate() -> None:
            found = [some[0] for _, some in task.windows(self.data.dev, tokens)]
            tuned.scores(network, task, found, batch=BATCH)

        return evaluate

    def _predict_unmask(self) -> Callable[[], object]:
        folder = load_folder(self.model)
        network = _network(folder, self.data.task).eval()
        model = Model(replace(folder, network=network))
        texts = [record.text for record in self.data.dev]
        return lambda: model.classify(texts)

    def _predict_transformers(self) -> Callable[[], object]:
        """Predict labels from text, in batches in the order of the file."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.model)
        network = tuned.network(task_of(self.data), self.model, 0).eval()
        texts = [record.text for record in self.data.dev]

        @torch.inference_mode()
        def predict() -> None:
            for at in range(0, len(texts), BATCH):
                some = tokenizer(
                    texts[at : at + BATCH], padding=True, truncation=True, return_tensors="pt"
                )
                network(**some).logits.softmax(dim=-1).tolist()

        return predict


def speed(folder: Path, model: Path, rounds: int) -> dict[str, Any]:
    """Measure steps, evaluation and prediction, both sides in turn."""
    results = {}
    for what, file in MEASURED:
        sides = {side: Apart(Speed, side, what, file, folder, model) for side in SIDES}
        texts = sides["unmask"].about["texts"]
        seconds = interleaved(dict(sides), rounds)
        memory = {name: side.close() for name, side in sides.items()}
        middle = {name: texts / statistics.median(spent) for name, spent in seconds.items()}
        found = ratio(seconds, "unmask", "transformers")
        results[f"{what} {file}"] = {
            "texts_a_second": middle, "speedup": found, "peak_bytes": memory, "seconds": seconds
        }  # fmt: skip
        print(
            f"| {what}, {file} file | {middle['transformers']:,.0f} | {middle['unmask']:,.0f} | "
            f"{found['median']:.2f}x ({found['lowest']:.2f} to {found['highest']:.2f}) |"
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks finetune")
    parser.add_argument("data", type=Path, help="the folder with glue/, conll2003/ and squad/")
    parser.add_argument("--only", nargs="*", default=["speed", *CASES])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, default=THREADS, help="threads of the runs for scores"
    )
    parser.add_argument(
        "--rate", type=float, help="learning rate of both sides; by default each case has its own"
    )
    arguments = parser.parse_args(sys.argv[2:])
    torch.set_num_threads(arguments.threads)
    model = get("minilm")
    for name in arguments.only:
        if name == "speed":
            save("finetune-speed", speed(arguments.data, model, arguments.rounds))
            continue
        case = replace(CASES[name], rate=arguments.rate or CASES[name].rate)
        scores = quality(name, case, arguments.data, model, arguments.seeds)
        for metric in (*case.metrics, "seconds"):
            cells = [
                f"{side['mean']:.4g} ({side['deviation']:.2g})" for side in scores[metric].values()
            ]
            print(f"| {name} | {metric} | {' | '.join(cells)} |")
        save(f"finetune-{name}", scores)
