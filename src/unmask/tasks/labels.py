"""Tasks whose answer is read from scores of labels: of a text, of tokens, of the ends of a span.

windows -> rows -> encoder -> states in some places -> head -> scores -> answer
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, tee
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.data.batch import Batch, Numbers, lay_out
from unmask.data.labelled.columns import Columns, Sample, infer_columns, read_samples
from unmask.data.labelled.tables import TABLES
from unmask.data.read.lines import IGNORE, ErrorPolicy
from unmask.model.config import ModelConfig
from unmask.model.network import Network
from unmask.model.shape import LABELS, POOLER, Heads, LabelsConfig, PoolerConfig, Shape
from unmask.objectives.base import Companions, Objective, Sums, Term, per_record
from unmask.system.errors import DataError, SettingsError, unknown_name
from unmask.system.settings import Settings
from unmask.tasks.asks import Ask, AskText
from unmask.tasks.base import Answer, Record, Task
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import READ, Forward, scores_of
from unmask.tasks.results import RawAnswers
from unmask.text.tokens import Tokenizers

Scores = NDArray[np.float32]  # [P, C]: at each place that is read
LOOKED_AT = 50  # rows that tell what a table is
TRUTH = "truth"  # among a batch's labels: what must be answered
LabelWindows = Sequence["LabelWindow"]


@dataclass(frozen=True, slots=True)
class LabelWindow:
    """Tokens with the places whose states are scored."""

    ids: Numbers
    segments: Numbers
    places: Sequence[int]
    truth: Any = None  # what the scores should say, where it is known
    about: Any = None  # whatever the task needs to understand the scores
    cut: int = 0  # tokens at its end that did not fit

    @property
    def labelled(self) -> bool:
        """Is its truth known?"""
        return self.truth is not None

    def compact(self) -> "LabelWindow":
        """The same in less memory; what answers need is left out."""
        ids, segments = np.asarray(self.ids, np.int32), np.asarray(self.segments, np.int8)
        return replace(self, about=None, ids=ids, segments=segments)


class LabelTask(Task[Record, Answer]):
    """A task with a head of labels."""

    @property
    def head(self) -> LabelsConfig:
        """The layer that its scores come from."""
        raise NotImplementedError

    def heads(self, config: ModelConfig, tokens: Tokenizers, given: Mapping[str, Any]) -> Heads:
        """Its labels, and the pooler if they read it."""
        return heads_of({LABELS: self})

    @property
    def objective(self) -> Objective:
        """Its loss."""
        return SupervisedObjective({self.name: self}, {self.name: LABELS})

    def truths(self, windows: LabelWindows) -> Tensor:
        """What must be answered.  -> [N] or [N, K]"""
        raise NotImplementedError

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """How wrong scores are beside the batch's truths, summed over answers.  [P, C] -> []"""
        raise NotImplementedError

    def losses(self, scores: Tensor, batch: Batch) -> Tensor:
        """The same of each place that is read, or of each window.  [P, C] -> [P] or [N]"""
        raise SettingsError(
            f"{self.name}: has no loss of a single record. Define the method 'losses' of "
            f"{type(self).__name__}."
        )

    def batch(self, windows: LabelWindows, tokens: Tokenizers, term: str | None = None) -> Batch:
        """Windows in packed rows, with places and truths."""
        truths = self.truths(windows)
        batch = places_of(windows, tokens)
        return batch.with_labels(len(truths), term or self.name, **{TRUTH: truths})

    def run(
        self,
        forward: Forward,
        windows: LabelWindows,
        tokens: Tokenizers,
        *,
        known: Criterion | None = None,
    ) -> RawAnswers:
        """The scores of each window; they also give the loss, but for an objective of its own."""
        batch = self.batch(windows, tokens) if known else places_of(windows, tokens)
        scores = forward.scores(batch).float().cpu()
        parts: Sequence[Tensor] = scores.split([len(window.places) for window in windows])
        values: list[Scores] = [part.numpy() for part in parts]
        if not known:
            return RawAnswers(values)
        if type(known.objective) is not SupervisedObjective:
            return RawAnswers(values, *known(batch))
        return RawAnswers(values, float(self.loss(scores, batch)), batch.counts[self.name])


def places_of(windows: LabelWindows, tokens: Tokenizers) -> Batch:
    """Windows in packed rows, with the places to read."""
    batch = lay_out(windows, pad_id=tokens.source.vocabulary.pad)
    begins: list[int] = batch.begins.tolist()
    places = [begin + at for begin, w in zip(begins, windows, strict=True) for at in w.places]
    return replace(batch, labels={READ: torch.tensor(places, dtype=torch.long)})


class SupervisedObjective(Objective):
    """The loss of the task that a batch belongs to, which the name of its count tells.

    Each of several tasks has a head by its name, of which a batch uses one.
    """

    def __init__(self, tasks: Mapping[str, LabelTask[Any, Any]], heads: Mapping[str, str]) -> None:
        """`heads` are the heads of the tasks, by the names of their losses."""
        super().__init__(Settings())
        self.tasks, self.head_of = dict(tasks), dict(heads)

    def describe(self) -> list[Term]:
        """A term for each task."""
        return [Term(name, "answers") for name in self.tasks]

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """The loss of one task."""
        (name,) = batch.counts
        task, scores = self.tasks[name], scores_of(network, batch, self.head_of[name])
        if not each:
            return {name: task.loss(scores, batch)}
        losses, windows = task.losses(scores, batch), torch.arange(len(batch.row))
        if len(losses) == len(scores):
            windows = batch.texts().flatten()[batch.labels[READ]]
        return {name: per_record(losses, windows.to(losses.device), batch)}


def label_tasks(tasks: Mapping[str, Task[Any, Any]]) -> dict[str, LabelTask[Any, Any]]:
    """Several tasks on one encoder, each of which must be learned from labels."""
    found = {name: task for name, task in tasks.items() if isinstance(task, LabelTask)}
    for name, task in tasks.items():
        if name not in found:
            raise SettingsError(
                f"recipe [[tasks]]: {task.name} cannot be one of several tasks; need tasks that "
                "are learned from labels."
            )
    return found


def heads_of(tasks: Mapping[str, LabelTask[Any, Any]]) -> Heads:
    """A head for each of several tasks; a pooler if one of them reads it."""
    several = {name: task.head for name, task in tasks.items()}
    pooler: Heads = {POOLER: PoolerConfig()} if any(h.pooled for h in several.values()) else {}
    return {**pooler, **several}


class TextTask(LabelTask[Sample, Answer]):
    """A task that reads a text or a pair of texts at its [CLS]."""

    tabular = True
    Ask: ClassVar[type[Ask]] = AskText

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Sample]:
        """Texts or pairs, with their labels where the table has them."""
        (path,) = paths
        return read_samples(path, columns, watcher, partial(cls.understand, config))

    @classmethod
    def noted(
        cls, paths: Sequence[str | Path], columns: Columns, *, labelled: bool = True
    ) -> tuple[Columns, list[str]]:
        """The columns of the first file."""
        columns = infer_columns(paths[0], columns, labelled=labelled)
        return columns, [columns.said()]

    def questions(
        self, source: str | Path, columns: Columns, watcher: ErrorPolicy
    ) -> Iterator[Sample]:
        """As from a labelled file, whose labels are not needed."""
        return self.read([source], columns, watcher, self.config)

    @classmethod
    def first_labels(cls, path: Path, ending: str, lines: Sequence[str]) -> list[str]:
        """The labels of the first rows of a table."""
        if ending not in TABLES:
            return []
        samples = islice(read_samples(path, infer_columns(path, Columns()), IGNORE), LOOKED_AT)
        return [str(sample.label) for sample in samples]

    @classmethod
    def understand(cls, config: Any, sample: Sample) -> Any:
        """The label of a file as the task has it; refuses one that it cannot have."""
        raise NotImplementedError

    def record(self, ask: AskText, where: str, number: int) -> Sample:
        """A text or a pair."""
        return Sample(ask.text, ask.second, None, where)

    def truth(self, record: Sample) -> object:
        """What the scores of a labelled record should say."""
        raise NotImplementedError

    def windows(
        self,
        records: Iterable[Sample],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Sample, list[LabelWindow]]]:
        """One window each; a text that is too long loses its end."""
        records, again = tee(records)
        texts = (record.texts for record in again)
        encoded = tokens.source.encode_many(texts, limit=tokens.max_length)
        for record, found in zip(records, encoded, strict=True):
            truth = None if record.label is None else self.truth(record)
            yield record, [LabelWindow(found.ids, found.segments, [0], truth, cut=found.cut)]


def text_labels(shape: Shape) -> LabelsConfig | None:
    """The labels on texts of a network that has one task."""
    return shape.labels if shape.labels and shape.labels.on == "text" else None


def unknown_label(where: str, label: str, known: Sequence[str]) -> DataError:
    """The error for a label that a trained task cannot know."""
    return DataError(
        f"{where}: {unknown_name('label', label, known)} It does not occur in the training data. "
        "Mend it, or add examples of it there."
    )


def fullest_windows(places: Sequence[int], size: int, room: int, stride: int) -> list[int]:
    """For each word the beginning of the window that shows most around it.

    >>> fullest_windows([0, 4, 9, 11], size=12, room=8, stride=4)
    [0, 0, 4, 4]
    """
    if size <= room:
        return [0] * len(places)
    step = max(room - stride, 1)
    begins = list(range(0, size - room, step)) + [size - room]
    found = []
    for place in places:
        middles = [(abs(2 * (place - b) - room), b) for b in begins if b <= place < b + room]
        found.append(min(middles)[1])
    return found
