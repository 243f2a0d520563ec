"""(g) A text said in reverse, beside a helper that imitates a teacher: an objective of a task."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unmask
from unmask.data.batch import Batch
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.parallel import Pair
from unmask.data.read.lines import ErrorPolicy, read_lines
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.objectives.base import Companions, Objective, Sums, Term, TextStatistics
from unmask.objectives.next_token import NextToken
from unmask.tasks.base import Task
from unmask.tasks.forward import Forward
from unmask.tasks.growing import GrowingAnswers
from unmask.tasks.translate import Translate, TranslateSettings, Translation
from unmask.text.tokens import Tokenizers

HARDER = 10.0  # times as large is the distance in training


class TutorSettings(TranslateSettings):
    teacher: str


class Tutored(NextToken):
    """The next word, and a second encoder whose mapped states come close to the teacher's."""

    config: TutorSettings
    factor = HARDER

    def describe(self) -> list[Term]:
        return [Term("distance", "the teacher's states"), *super().describe()]

    def companions(self) -> dict[str, str]:
        return {"teacher": self.config.teacher}

    def encoders(self, shape: Shape) -> dict[str, ModelConfig]:
        return {"helper": shape.main}

    def publish(self) -> dict[str, Sequence[str]]:
        return {"model": ("main", "decoder"), "models/helper": ("helper",)}

    def build(self, shape: Shape, companions: Companions) -> None:
        self.map = nn.Linear(shape.main.width, companions["teacher"].config.width)

    def begin(self, network: Network, statistics: TextStatistics) -> None:
        """The helper begins as the main encoder."""
        network.encoder_of("helper").load_state_dict(network.encoder.state_dict())

    def standard(self) -> Objective:
        found = copy(super().standard())
        assert isinstance(found, Tutored)
        found.factor = 1.0
        return found

    def prepare(self, batch: Batch, key: int, progress: float) -> Batch:
        batch = super().prepare(batch, key, progress)
        return batch.with_labels(int((batch.owner >= 0).sum()), "distance")

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        real = (batch.owner >= 0).flatten()
        states = network.encode(batch, encoder="helper").flatten(0, 1)[real]
        with torch.no_grad():
            truth = companions["teacher"].encode(batch).flatten(0, 1)[real]
        gap = (self.map(states) - truth).square().mean(dim=-1).sum()
        return {**super().forward(network, batch, companions), "distance": gap * self.factor}


class Unfinished(GrowingAnswers[Translation]):
    """An answer that shows whether it is complete."""

    def answers(self) -> list[Translation]:
        end = "" if self.done else " ..."
        return [Translation(own.text + end, own.score) for own in super().answers()]


class SayReversed(Translate):
    name = "tutored"
    Config = TutorSettings
    metric = "right"
    decodes = parallel = False
    detail = Task.detail
    config: TutorSettings

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Pair]:
        for number, line in read_lines(paths[0], watcher):
            yield Pair(line, " ".join(line.split()[::-1]), f"{paths[0]}:{number}")

    resolve_columns = Task.resolve_columns

    @property
    def objective(self) -> Objective:
        return Tutored(self.config, term=self.name)

    def stream(self, forward: Forward, records: Iterable[Pair], tokens: Tokenizers) -> Unfinished:
        found = super().stream(forward, records, tokens)
        return Unfinished(found.session, found.parts)

    def score(self, records: Sequence[Pair], answers: Sequence[Translation]) -> dict[str, float]:
        pairs = zip(records, answers, strict=True)
        return {"right": sum(a.text == r.target for r, a in pairs) / len(records)}


unmask.register("task", "tutored", SayReversed)
