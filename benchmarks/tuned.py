"""Fine-tuning with transformers, for comparison: its heads, and a loop like that of its Trainer.

It trains on the same windows as unmask, one per row, padded to the longest of their batch.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import theirs
from benchmarks.theirs import IGNORED
from unmask.tasks.labels import LabelTask, LabelWindow, Scores
from unmask.train.optim.schedules import ScheduleSettings
from unmask.train.recipe import Recipe

TYPES = {"classify": "single_label_classification", "regress": "regression"}


def network(task: LabelTask[Any, Any], path: Path, seed: int) -> Any:
    """Load transformers' model for a task, with the weights of a folder and a new head."""
    from transformers import (
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    torch.manual_seed(seed)
    if task.name == "qa":
        return AutoModelForQuestionAnswering.from_pretrained(path)
    count = len(task.head.names)
    if task.name == "ner":
        return AutoModelForTokenClassification.from_pretrained(path, num_labels=count)
    return AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=count, problem_type=TYPES[task.name]
    )


def rows_of(
    task: LabelTask[Any, Any], windows: Sequence[LabelWindow], *, known: bool = True
) -> dict[str, Tensor]:
    """Build a batch like transformers' collators, with labels if they are `known`."""
    shape = len(windows), max(len(window.ids) for window in windows)
    names = "input_ids", "token_type_ids", "attention_mask"
    rows = {name: torch.zeros(shape, dtype=torch.long) for name in names}
    for i, window in enumerate(windows):
        size = len(window.ids)
        rows["input_ids"][i, :size] = torch.as_tensor(np.asarray(window.ids))
        rows["token_type_ids"][i, :size] = torch.as_tensor(np.asarray(window.segments))
        rows["attention_mask"][i, :size] = 1
    return {**rows, **_answers(task, windows, shape)} if known else rows


def _answers(
    task: LabelTask[Any, Any], windows: Sequence[LabelWindow], shape: tuple[int, int]
) -> dict[str, Tensor]:
    truths = task.truths(windows)
    if task.name == "qa":
        return {"start_positions": truths[:, 0], "end_positions": truths[:, 1]}
    if task.name != "ner":
        return {"labels": truths}
    labels = torch.full(shape, IGNORED)
    for i, window in enumerate(windows):
        labels[i, list(window.places)] = torch.tensor(window.truth)
    return {"labels": labels}


def train(
    model: Any,
    task: LabelTask[Any, Any],
    windows: Sequence[LabelWindow],
    optimizer: torch.optim.Optimizer,
    schedule: ScheduleSettings,
    recipe: Recipe,
    *,
    seed: int,
) -> float:
    """Train for all steps of a schedule and return the seconds."""
    torch.manual_seed(seed)
    model.train()
    assert schedule.steps is not None
    chosen = batches(len(windows), recipe.loop.batch_size, seed)
    begun = time.monotonic()
    for step in range(schedule.steps):
        rate = recipe.optimizer.learning_rate * schedule.factor((step + 0.5) / schedule.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        part = rows_of(task, [windows[i] for i in next(chosen)])
        theirs.step(model, optimizer, [part], recipe.optimizer.max_grad_norm)
    return time.monotonic() - begun


def batches(count: int, size: int, seed: int) -> Iterator[list[int]]:
    """Yield batches of window numbers forever, reshuffled in each epoch."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(count).tolist()
        for at in range(0, count, size):
            yield order[at : at + size]


@torch.inference_mode()
def scores(
    model: Any, task: LabelTask[Any, Any], windows: Sequence[LabelWindow], *, batch: int
) -> list[Scores]:
    """Return the model's scores at the scored places of each window, in order."""
    model.eval()
    found: list[Scores] = []
    for at in range(0, len(windows), batch):
        some = windows[at : at + batch]
        said = model(**rows_of(task, some, known=False))
        if task.name == "qa":
            table = torch.stack([said.start_logits, said.end_logits], dim=-1)
        else:
            table = said.logits if task.name == "ner" else said.logits[:, None]
        found += [table[i, list(window.places)].numpy() for i, window in enumerate(some)]
    return found
