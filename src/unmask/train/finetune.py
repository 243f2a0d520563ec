"""Labelled texts + a model -> a classifier: the same loop on another source of batches."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from unmask.data import draws
from unmask.data.labelled import Labelled, LabelledStream
from unmask.data.stream import Cursor
from unmask.model.network import Network
from unmask.tasks.classify import Classify
from unmask.text.tokenizer import Tokenizer
from unmask.train.course import Course, Position
from unmask.train.distributed import Processes
from unmask.train.evaluate import score
from unmask.train.loop import Loop
from unmask.train.recipe import TrainSettings
from unmask.train.run import begin, environment, open_run
from unmask.train.schedule import OptimizerSettings, ScheduleSettings
from unmask.train.signals import stop_wishes
from unmask.train.step import Piece, Trainee

ROW = 128  # tokens of a row; short texts share one
_HEAD, _DROPOUT = 300, 301  # one key per kind of draw


class LabelledSource:
    """The batches of each step: so many rows."""

    def __init__(self, stream: LabelledStream, task: Classify, rows: int, seed: int) -> None:
        self.stream, self.task, self.rows, self.seed = stream, task, rows, seed

    def pieces(
        self, cursor: dict[str, int], step: int, progress: float
    ) -> tuple[Sequence[Piece], dict[str, int]]:
        """The next rows, as one piece."""
        rows, then = self.stream.take(Cursor(**cursor), self.rows)
        seed = draws.key(self.seed, _DROPOUT, step) % 2**63
        piece = Piece(self.task.prepare(self.stream.batch(rows), 0), seed)
        return [piece], {"epoch": then.epoch, "row": then.row}


def with_task(encoder: Network, task: Classify, seed: int) -> Network:
    """A network with a task's head on the encoder (and pooler) of another."""
    torch.manual_seed(draws.key(seed, _HEAD) % 2**63)
    network = Network(encoder.config, task.heads)
    known = network.state_dict()
    found = {name: t for name, t in encoder.state_dict().items() if name in known}
    network.load_state_dict({**known, **found})
    return network


def fine_tune(
    start: Network,
    tokenizer: Tokenizer,
    task: Classify,
    train: Sequence[Labelled],
    dev: Sequence[Labelled],
    out: Path,
    *,
    steps: int,
    rate: float = 3e-4,
    rows: int = 8,
    seed: int = 0,
    evaluations: int = 4,
    notice: Callable[[str], None] = print,
) -> dict[str, float]:
    """Train a task's head and everything below it; the scores on `dev` at the end."""
    network = with_task(start, task, seed)
    pad = tokenizer.vocabulary.pad
    held = LabelledStream(dev, seed, ROW, pad).in_order(16)
    batches = [task.prepare(batch, 0) for batch in held]
    last: dict[str, float] = {}

    def evaluate(position: Position, network: Network) -> dict[str, Any]:
        found = score(task, network, batches, ["label"], Processes())
        last.update(label=found["label"], accuracy=found["label_accuracy"])
        notice(f"step {position.step}: accuracy on held-out texts {last['accuracy']:.1%}")
        return dict(last)

    settings = {"steps": steps, "rate": rate, "rows": rows, "seed": seed, "labels": len(task.names)}
    facts = environment(corpus="", tokenizer=tokenizer.digest(), processes=1, shard=False)
    with (
        stop_wishes() as wish,
        open_run(out, resume=False, overwrite=False, writes=True, notice=notice) as folder,
    ):
        begin(folder, settings, facts)
        course = Course(
            network,
            Trainee(network, task),
            LabelledSource(LabelledStream(train, seed, ROW, pad), task, rows, seed),
            tokenizer,
            OptimizerSettings(rate=rate),
            ScheduleSettings(steps=steps, warmup=0.1),
            TrainSettings(evaluations=evaluations),
            Processes(),
            folder,
            settings,
            {"task": "classify"},
            wish=wish,
            evaluate=evaluate,
        )
        Loop(course).run()
    return last
