"""The base of tasks that classify a text, each of its tokens, or each token as the end of a span.

windows -> packed rows -> encoder -> hidden states at some places -> head -> scores -> answer
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

from unmask.data.batch import Batch, Numbers, pack_and_collate
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
from unmask.tasks.forward import READ_PLACES, Forward, scores_of
from unmask.tasks.results import RawAnswers
from unmask.text.tokens import Tokenizers

Scores = NDArray[np.float32]  # [P, C]: for each scored place
LOOKED_AT = 50  # rows of a table from which its task is guessed
TRUTH = "truth"  # key in Batch.labels: the labels of the task
LabelWindows = Sequence["LabelWindow"]


@dataclass(frozen=True, slots=True)
class LabelWindow:
    """Tokens, with the places whose hidden states the head scores."""

    ids: Numbers
    segments: Numbers
    places: Sequence[int]
    truth: Any = None  # the label, in the form that `truths` collects; None: unknown
    metadata: Any = None  # what `decode` needs, such as offsets in the text
    cut: int = 0  # tokens truncated at the end

    @property
    def labelled(self) -> bool:
        """Whether the label is known."""
        return self.truth is not None

    def compact(self) -> "LabelWindow":
        """Return a smaller copy without `metadata`, which only answers need."""
        # Training holds the windows of all examples in memory, and a list costs eight bytes or more
        # per token.
        ids, segments = np.asarray(self.ids, np.int32), np.asarray(self.segments, np.int8)
        return replace(self, metadata=None, ids=ids, segments=segments)


class LabelTask(Task[Record, Answer]):
    """A task that reads its answer from the scores of a label head."""

    @property
    def head(self) -> LabelsConfig:
        """The configuration of the label head."""
        raise NotImplementedError

    def heads(self, config: ModelConfig, tokens: Tokenizers, decoder: Mapping[str, Any]) -> Heads:
        """Return the label head, and the pooler if the label head reads it."""
        return heads_of({LABELS: self})

    @property
    def objective(self) -> Objective:
        """The objective that trains the head with the loss of this task."""
        return SupervisedObjective({self.name: self}, {self.name: LABELS})

    def truths(self, windows: LabelWindows) -> Tensor:
        """Return the labels of a batch as a tensor.  -> [N] or [N, K]"""
        raise NotImplementedError

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the loss of a batch, summed over its labels.  [P, C] -> []"""
        raise NotImplementedError

    def losses(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each scored place or of each window.  [P, C] -> [P] or [N]"""
        raise SettingsError(
            f"{self.name}: the loss of a single record is not defined. Add the method 'losses' to "
            f"{type(self).__name__}."
        )

    def batch(self, windows: LabelWindows, tokens: Tokenizers, term: str | None = None) -> Batch:
        """Pack windows into a batch with the scored places and the labels."""
        truths = self.truths(windows)
        batch = batch_with_places(windows, tokens)
        return batch.with_labels(len(truths), term or self.name, **{TRUTH: truths})

    def run(
        self,
        forward: Forward,
        windows: LabelWindows,
        tokens: Tokenizers,
        *,
        known: Criterion | None = None,
    ) -> RawAnswers:
        """Score each window; with `known`, also return the loss of the labels.

        The loss is computed from the same scores, unless the task has an objective of its own.
        """
        batch = self.batch(windows, tokens) if known else batch_with_places(windows, tokens)
        # NumPy has no bfloat16, in which a GPU may compute.
        scores = forward.scores(batch).float().cpu()
        parts: Sequence[Tensor] = scores.split([len(window.places) for window in windows])
        values: list[Scores] = [part.numpy() for part in parts]
        if not known:
            return RawAnswers(values)
        # Compared by type: a subclass may override the loss, so the shortcut below would be wrong.
        if type(known.objective) is not SupervisedObjective:
            return RawAnswers(values, *known(batch))
        return RawAnswers(values, float(self.loss(scores, batch)), batch.counts[self.name])


def batch_with_places(windows: LabelWindows, tokens: Tokenizers) -> Batch:
    """Pack windows into a batch with the flat indices of the scored places."""
    batch = pack_and_collate(windows, pad_id=tokens.source.vocabulary.pad)
    begins: list[int] = batch.begins.tolist()
    places = [
        begin + place
        for begin, window in zip(begins, windows, strict=True)
        for place in window.places
    ]
    return replace(batch, labels={READ_PLACES: torch.tensor(places, dtype=torch.long)})


class SupervisedObjective(Objective):
    """The supervised loss of one or several label tasks on one encoder.

    Each task has a head of its own. A batch belongs to one task: the one whose name stands in its
    counts.
    """

    def __init__(self, tasks: Mapping[str, LabelTask[Any, Any]], heads: Mapping[str, str]) -> None:
        """Take tasks by the names of their losses, and the head of each."""
        super().__init__(Settings())
        self.tasks, self.head_of = dict(tasks), dict(heads)

    def describe(self) -> list[Term]:
        """Return one loss term per task."""
        return [Term(name, "answers") for name in self.tasks]

    def forward(
        self, network: Network, batch: Batch, companions: Companions, each: bool = False
    ) -> Sums:
        """Return the loss of the task that the batch belongs to."""
        (name,) = batch.counts  # fails if a batch ever mixes tasks
        task, scores = self.tasks[name], scores_of(network, batch, self.head_of[name])
        if not each:
            return {name: task.loss(scores, batch)}
        # `losses` has one entry per window, or one per scored place, which must be assigned to the
        # window that it lies in.
        losses, windows = task.losses(scores, batch), torch.arange(len(batch.row))
        if len(losses) == len(scores):
            windows = batch.texts().flatten()[batch.labels[READ_PLACES]]
        return {name: per_record(losses, windows.to(losses.device), batch)}


def label_tasks(tasks: Mapping[str, Task[Any, Any]]) -> dict[str, LabelTask[Any, Any]]:
    """Return tasks that can share an encoder; refuse those that are not label tasks."""
    accepted = {name: task for name, task in tasks.items() if isinstance(task, LabelTask)}
    for name, task in tasks.items():
        if name not in accepted:
            raise SettingsError(
                f"recipe [[tasks]]: {task.name} cannot share an encoder with other tasks; only "
                "classification, regression, tagging and span tasks can."
            )
    return accepted


def heads_of(tasks: Mapping[str, LabelTask[Any, Any]]) -> Heads:
    """Return the label head of each task, and one pooler if any of them reads it."""
    label_heads = {name: task.head for name, task in tasks.items()}
    pooler: Heads = (
        {POOLER: PoolerConfig()} if any(head.pooled for head in label_heads.values()) else {}
    )
    return {**pooler, **label_heads}


class TextTask(LabelTask[Sample, Answer]):
    """A task that classifies or scores a text, or a pair of texts, at [CLS]."""

    tabular = True
    Ask: ClassVar[type[Ask]] = AskText

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Sample]:
        """Yield texts or pairs, with their labels where the table has them."""
        (path,) = paths
        return read_samples(path, columns, watcher, partial(cls.parse_label, config))

    @classmethod
    def resolve_columns(
        cls, paths: Sequence[str | Path], columns: Columns, *, labelled: bool = True
    ) -> tuple[Columns, list[str]]:
        """Infer the columns from the first file; also return a line that names them."""
        columns = infer_columns(paths[0], columns, labelled=labelled)
        return columns, [columns.describe()]

    def questions(
        self, source: str | Path, columns: Columns, watcher: ErrorPolicy
    ) -> Iterator[Sample]:
        """Yield the texts of a table; a column of labels is not needed."""
        return self.read([source], columns, watcher, self.config)

    @classmethod
    def first_labels(cls, path: Path, ending: str, lines: Sequence[str]) -> list[str]:
        """Return the labels of the first rows of a table."""
        if ending not in TABLES:
            return []
        samples = islice(read_samples(path, infer_columns(path, Columns()), IGNORE), LOOKED_AT)
        return [str(sample.label) for sample in samples]

    @classmethod
    def parse_label(cls, config: Any, sample: Sample) -> Any:
        """Parse a label from the file; refuse one that is invalid for the task."""
        raise NotImplementedError

    def record(self, ask: AskText, where: str, number: int) -> Sample:
        """Return the text or pair of a question, without a label."""
        return Sample(ask.text, ask.second, None, where)

    def truth(self, record: Sample) -> object:
        """Return a record's label in the form that `truths` collects."""
        raise NotImplementedError

    def windows(
        self,
        records: Iterable[Sample],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Sample, list[LabelWindow]]]:
        """Yield one window per record; a text that is too long is truncated at its end."""
        # The tokenizer takes groups of texts ahead and runs in parallel; `tee` keeps just these.
        records, copies = tee(records)
        texts = (record.texts for record in copies)
        encoded = tokens.source.encode_many(texts, limit=tokens.max_length)
        for record, encoded_text in zip(records, encoded, strict=True):
            truth = None if record.label is None else self.truth(record)
            # Place 0 is [CLS].
            yield (
                record,
                [
                    LabelWindow(
                        encoded_text.ids, encoded_text.segments, [0], truth, cut=encoded_text.cut
                    )
                ],
            )


def text_labels(shape: Shape) -> LabelsConfig | None:
    """Return the text-label head of a model with a single task, or None."""
    return shape.labels if shape.labels and shape.labels.on == "text" else None


def unknown_label(where: str, label: str, known: Sequence[str]) -> DataError:
    """Return the error for a label that does not occur in the training data."""
    return DataError(
        f"{where}: {unknown_name('label', label, known)} It does not occur in the training data. "
        "Correct the label, or add training examples of it."
    )


def best_context_windows(places: Sequence[int], size: int, room: int, stride: int) -> list[int]:
    """Return, for each place, the start of the window that shows the most context around it.

    Windows hold `room` of `size` tokens and share about `stride`; the last one is flush right.

    >>> best_context_windows([0, 4, 9, 11], size=12, room=8, stride=4)
    [0, 0, 4, 4]
    """
    if size <= room:
        return [0] * len(places)
    step = max(room - stride, 1)
    # The last window is moved back to be full: a short one would show less context than fits.
    begins = list(range(0, size - room, step)) + [size - room]
    starts = []
    for place in places:
        # The most context is in the window whose middle is nearest. Distances are doubled to stay
        # integers; of two equal ones the earlier window wins.
        middles = [
            (abs(2 * (place - begin) - room), begin)
            for begin in begins
            if begin <= place < begin + room
        ]
        starts.append(min(middles)[1])
    return starts
