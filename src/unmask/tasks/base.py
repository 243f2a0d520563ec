"""What training, evaluation and prediction ask of a task.

    record -> windows -> rows -> encoder -> scores where they matter -> answer -> metrics

A record is a piece of data as a person sees it: a text, a question with its passage, a sentence. A
window is as much of it as fits the model; most records are one. The scores of a record's windows
become its answer in one function of the task, whoever asks: training, `evaluate`, `predict`, the
server.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nlargest
from itertools import islice, tee
from math import fsum
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.data.batches import Batch
from unmask.data.columns import Columns, Sample, read_samples
from unmask.data.lines import Watcher
from unmask.errors import DataError, unknown
from unmask.model.config import HeadsConfig, LabelsConfig
from unmask.model.network import Network
from unmask.objectives.base import Sums
from unmask.settings import Settings
from unmask.tasks import engine
from unmask.tasks.engine import READ, Forward, scores_of
from unmask.text.tokenizer import Tokenizer

Scores = NDArray[np.float32]  # [P, C]: at each place that is read
HELD = 2**24  # characters of records that are answered together
WORST = 20  # mistakes that are shown
TRUTH = "truth"  # among a batch's labels: what must be answered


@dataclass(frozen=True, slots=True)
class Window:
    """What the model reads at once."""

    ids: Sequence[int]
    segments: Sequence[int]
    places: Sequence[int]  # of its tokens: those whose states are scored
    truth: Any = None  # what the scores should say, where it is known
    about: Any = None  # whatever the task needs to understand the scores
    cut: int = 0  # tokens at its end that did not fit


@dataclass(frozen=True)
class Mistake:
    """An answer that was wrong, and by how much."""

    where: str
    text: str
    truth: str
    said: str
    badness: float  # the larger, the worse


@dataclass
class Detail:
    """What is shown of a score besides its numbers."""

    table: list[dict[str, Any]] = field(default_factory=list)  # a line for each label
    confusion: dict[str, Any] | None = None  # names, and counts [truth][said]
    mistakes: list[Mistake] = field(default_factory=list)  # only the worst are kept, worst first

    def __post_init__(self) -> None:
        self.mistakes = nlargest(WORST, self.mistakes, key=attrgetter("badness"))


def unknown_label(where: str, label: str, known: Sequence[str]) -> DataError:
    """The error for a label that a trained task cannot know."""
    return DataError(
        f"{where}: {unknown('label', label, known)} It does not occur in the training data. "
        "Mend it, or add examples of it there."
    )


@dataclass
class Tally:
    """What answering counts on its way."""

    losses: list[float] = field(default_factory=list)  # summed, of each batch
    counts: list[int] = field(default_factory=list)  # of answers that have a truth
    cut_texts: int = 0  # were too long and lost their end
    cut_tokens: int = 0

    @property
    def mean(self) -> float:
        """The loss of one answer; the same in whichever order batches were done."""
        return fsum(self.losses) / max(sum(self.counts), 1)


class Task(Protocol):
    """A kind of question with its head, its loss, its answers and its metrics."""

    name: ClassVar[str]
    tabular: ClassVar[bool] = False  # its records are rows of tables, whose columns must be known
    settings: ClassVar[type[Settings]]
    answers: ClassVar[type]  # a dataclass that JSON can carry
    metric: str  # the best model is the one with the most of it
    how: Settings

    @classmethod
    def read(cls, path: str | Path, columns: Columns, watcher: Watcher, how: Any) -> Iterator[Any]:
        """The records of a file."""

    @classmethod
    def learn(cls, how: Any, records: Sequence[Any]) -> "Task":
        """The task that these records pose: with their labels."""

    @classmethod
    def restore(cls, heads: HeadsConfig, how: Any) -> "Task | None":
        """The task that a network with these heads was trained for; None if it is another one."""

    @property
    def head(self) -> LabelsConfig:
        """The layer that its scores come from."""

    @property
    def heads(self) -> HeadsConfig:
        """What stands on the encoder, where this is the only task."""
        return self.head.alone()

    def check(self, records: Sequence[Any]) -> None:
        """Refuse records that it cannot be asked, such as with labels it does not know."""

    def windows(
        self, records: Iterable[Any], tokenizer: Tokenizer, limit: int
    ) -> Iterator[tuple[Any, list[Window]]]:
        """Every record with its windows, at least one."""

    def truths(self, windows: Sequence[Window]) -> Tensor:
        """What must be answered.  -> [N] or [N, K]"""

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """How wrong scores are beside the batch's truths, summed over answers.  [P, C] -> []"""

    def answer(self, record: Any, windows: Sequence[Window], scores: Sequence[Scores]) -> Any:
        """What the scores of a record's windows say."""

    def score(self, records: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        """Metrics by name."""

    def mistake(self, record: Any, answer: Any) -> tuple[str, str, float] | None:
        """What is true, what was said and how bad that is; None where the answer is right."""

    def detail(self, records: Sequence[Any], answers: Sequence[Any]) -> Detail:
        """What else is worth seeing: the worst mistakes, and what a task adds to them."""
        wrong = []
        for record, answer in zip(records, answers, strict=True):
            if mistake := self.mistake(record, answer):
                wrong.append(Mistake(record.where, " | ".join(record.key), *mistake))
        return Detail(mistakes=wrong)

    def settle(
        self, records: Sequence[Any], answers: Sequence[Any]
    ) -> "tuple[Task, Sequence[Any]]":
        """With what is best chosen on held-out records, such as a threshold; answers with it."""
        return self, answers


class TextTask(Task, Protocol):
    """A task that reads a text or a pair of texts at its [CLS]."""

    tabular: ClassVar[bool] = True

    @classmethod
    def read(
        cls, path: str | Path, columns: Columns, watcher: Watcher, how: Any
    ) -> Iterator[Sample]:
        """Texts or pairs, with their labels where the table has them."""
        return read_samples(path, columns, watcher, partial(cls.understand, how))

    @classmethod
    def understand(cls, how: Any, sample: Sample) -> Any:
        """The label of a file as the task has it; refuses one that it cannot have."""

    def truth(self, record: Sample) -> Any:
        """What the scores of a labelled record should say."""

    def windows(
        self, records: Iterable[Sample], tokenizer: Tokenizer, limit: int
    ) -> Iterator[tuple[Sample, list[Window]]]:
        """One window each; a text that is too long loses its end."""
        records, again = tee(records)
        encoded = tokenizer.encode_many((record.texts for record in again), limit=limit)
        for record, found in zip(records, encoded, strict=True):
            truth = None if record.label is None else self.truth(record)
            yield record, [Window(found.ids, found.segments, [0], truth, cut=found.cut)]


class Supervised:
    """A task as the training loop sees it: an objective."""

    def __init__(self, task: Task) -> None:
        self.task, self.terms, self.chance = task, [task.name], None

    def __call__(self, network: Network, batch: Batch) -> Sums:
        """One loss term, called after the task."""
        return {self.task.name: self.task.loss(scores_of(network, batch), batch)}


def batch_of(
    task: Task,
    windows: Sequence[Window],
    *,
    pad_id: int,
    known: bool = True,
    term: str | None = None,
) -> Batch:
    """Windows in packed rows, with the places to read and, where known, the answers.

    The loss is called after the task, unless `term` is another name.
    """
    batch = engine.lay_out(windows, pad_id=pad_id)
    begins: list[int] = batch.begins.tolist()
    places = [begin + at for begin, w in zip(begins, windows, strict=True) for at in w.places]
    batch = replace(batch, labels={READ: torch.tensor(places, dtype=torch.long)})
    if not known:
        return batch
    truths = task.truths(windows)
    return batch.with_labels(len(truths), term or task.name, **{TRUTH: truths})


def answers(
    forward: Forward,
    tokenizer: Tokenizer,
    task: Task,
    records: Iterable[Any],
    *,
    limit: int,
    known: bool = False,
    tally: Tally | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Every record with its answer, in order, in steady memory.

    `tally` counts on the way; losses too, if the truth is `known`.
    """
    waiting: deque[tuple[Any, list[Window]]] = deque()
    tally = tally or Tally()
    held = 0  # characters of the records that wait

    def windows() -> Iterator[Window]:
        nonlocal held
        for record, found in task.windows(records, tokenizer, limit):
            assert found, "a record has a window at least"
            waiting.append((record, found))
            held += sum(map(len, record.key))
            for window in found:
                tally.cut_texts += window.cut > 0
                tally.cut_tokens += window.cut
            yield from found

    def read(some: list[Window]) -> list[Scores]:
        batch = batch_of(task, some, pad_id=tokenizer.vocabulary.pad, known=known)
        scores = forward.scores(batch).float().cpu()
        if known:
            tally.losses.append(float(task.loss(scores, batch)))
            tally.counts.append(batch.counts[task.name])
        parts = scores.split([len(window.places) for window in some])
        return [part.numpy() for part in parts]

    def full() -> bool:
        return held > HELD

    scored = engine.run(windows(), read, full, workers=forward.workers)
    for first in scored:
        record, own = waiting.popleft()
        parts = [first, *islice(scored, len(own) - 1)]
        held -= sum(map(len, record.key))
        yield record, task.answer(record, own, parts)
