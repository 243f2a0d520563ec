"""The interface of a task: what training, evaluation, prediction and the server call.

    question (Ask) -> record -> windows -> network -> raw values -> answer -> metrics, view

A record is one item of data as a user sees it, such as a text or a question with its passage. It
holds the label if that is known. A window is the part of a record that fits into the network at
once; most records have one window. A single method, `decode`, turns the raw values of a record's
windows into its answer. Training, `evaluate`, `predict` and the server all call it, so a score
measures the answers that users get.

A task owns the data, the answers and the metrics. The loss belongs to its `objective`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from unmask.data.batch import Batch, Tokenized
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.tables import TABLES
from unmask.data.packing import BATCH_TOKENS, WORKER_TOKENS
from unmask.data.read.lines import ErrorPolicy, file_format
from unmask.model.config import ModelConfig
from unmask.model.shape import Heads, Shape
from unmask.objectives.base import Objective
from unmask.system.errors import SettingsError
from unmask.system.plugins import registered
from unmask.system.settings import Settings
from unmask.tasks import asks
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import Forward
from unmask.tasks.growing import GrowingAnswers
from unmask.tasks.results import Agreement, AnswerSession, Detail, Mistake, RawAnswers
from unmask.tasks.views import View
from unmask.text.tokens import Tokenizers


class RecordLike(Protocol):
    """A record, as functions for every task need it."""

    @property
    def key(self) -> tuple[str, ...]:
        """The record's texts; records with equal keys count as duplicates."""

    @property
    def where(self) -> str:
        """The place of the record in its file, for messages."""


Record = TypeVar("Record", bound=RecordLike)
Answer = TypeVar("Answer")


class Window(Tokenized, Protocol):
    """The tokens of a record that the network reads at once."""

    @property
    def cut(self) -> int:
        """Number of tokens dropped from the end because they did not fit."""

    @property
    def labelled(self) -> bool:
        """Whether the label is known."""

    def compact(self) -> Self:
        """Return a smaller copy that keeps only what training needs."""


class Task(Generic[Record, Answer]):
    """A kind of question: how to read its data, train on it, answer it and score the answers."""

    name: ClassVar[str]
    title: ClassVar[str] = ""  # shown on the page; empty: the name
    Config: ClassVar[type[Settings]] = Settings
    Ask: ClassVar[type[asks.Ask]]  # the fields of a question
    answers: ClassVar[type]  # a dataclass of JSON values, or str; processes exchange it as JSON
    metric: str  # its highest value marks the best step
    tabular: ClassVar[bool] = False  # reads tables, whose columns must be known
    generates: ClassVar[bool] = False  # answers step by step, in sessions
    decodes: ClassVar[bool] = False  # has a decoder, which needs a target vocabulary
    parallel: ClassVar[bool] = False  # line n of one file belongs to line n of the others
    grouped: ClassVar[bool] = False  # shuffling keeps the windows of a record together
    neighbours: ClassVar[int] = 1  # number of steps sorted by length together
    reads: ClassVar[Sequence[str]] = ()  # recipe settings that only this task uses
    batch_tokens: ClassVar[int] = BATCH_TOKENS  # tokens per batch at inference
    worker_tokens: ClassVar[int] = WORKER_TOKENS  # tokens per batch of each of several workers

    def __init__(self, config: Settings) -> None:
        self.config = config

    # Data

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Record]:
        """Yield the records of one labelled file, or of the files of one parallel set."""
        raise NotImplementedError

    @classmethod
    def read_files(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Record]:
        """Yield the records of all files: a parallel set together, others one by one."""
        for group in [paths] if cls.parallel else [[path] for path in paths]:
            yield from cls.read(group, columns, watcher, config)

    @classmethod
    def resolve_columns(
        cls, paths: Sequence[str | Path], columns: Columns, *, labelled: bool = True
    ) -> tuple[Columns, list[str]]:
        """Infer the columns of a data set; also return lines to print about the choice."""
        return columns, []

    def questions(
        self, source: str | Path, columns: Columns, watcher: ErrorPolicy
    ) -> Iterator[Record]:
        """Yield the records of an unlabelled file; by default each table row is an `Ask`."""
        for number, (ask, where) in enumerate(asks.rows(self.Ask, source, columns, watcher), 1):
            yield self.record(ask, where, number)

    @classmethod
    def reads_rows(cls, source: str | Path, columns: Columns) -> bool:
        """Whether each record of an unlabelled file is a row of a table."""
        return file_format(source, None) in TABLES

    @classmethod
    def recognises(cls, path: Path, ending: str, lines: Sequence[str]) -> bool:
        """Whether a file looks like data for this task, for `unmask check` without `--task`.

        `lines` are the first lines of the file if it is text.
        """
        return False

    @classmethod
    def learn(cls, config: Any, records: Sequence[Record]) -> Self:
        """Make the task from the training records, for example with the labels in them."""
        return cls(config)

    @classmethod
    def restore(cls, shape: Shape, config: Any) -> "Self | None":
        """Make the task of a trained model from its heads; None for a model of another task."""
        raise NotImplementedError

    def check(self, records: Sequence[Record]) -> None:
        """Refuse records that cannot be used, such as records with unknown labels."""

    @classmethod
    def texts(cls, records: Iterable[Record]) -> tuple[Iterable[str], Iterable[str]]:
        """Return the source and the target texts from which to learn a vocabulary.

        Tasks without a decoder have no target texts.
        """
        return (text for record in records for text in record.key), ()

    @classmethod
    def groups(cls, records: Sequence[Record]) -> Sequence[Hashable]:
        """Return the group of each record: a text, a number or a tuple of these.

        Records of one group are either all training data or all dev data, where a share of the
        training data is split off as dev data.
        """
        return [record.key for record in records]

    @classmethod
    def stratum(cls, record: Record) -> Hashable:
        """Return what such a split keeps in proportion, such as the label of the record."""
        return None

    def record(self, ask: Any, where: str, number: int) -> Record:
        """Turn a question into an unlabelled record; `number` counts the questions of a call."""
        raise NotImplementedError

    # The network

    def heads(self, config: ModelConfig, tokens: Tokenizers, decoder: Mapping[str, Any]) -> Heads:
        """Return the heads to put on the encoder; `decoder` is the recipe's decoder table."""
        raise NotImplementedError

    @property
    def objective(self) -> Objective:
        """The objective that the network is trained with."""
        raise NotImplementedError

    def windows(
        self,
        records: Iterable[Record],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Record, Sequence[Window]]]:
        """Yield every record with its windows.

        With `learn`, a record that is unsuitable for training gets no windows and is skipped.
        `numbers` yields the index of each window within the whole job. Sampling draws by this
        index, so answers do not depend on how windows are batched or shared among processes.
        """
        raise NotImplementedError

    def batch(self, windows: Sequence[Any], tokens: Tokenizers, term: str | None = None) -> Batch:
        """Pack windows and their labels into a batch for the objective.

        `term` names the loss where that is not the task's name: in a run of several tasks.
        """
        raise NotImplementedError

    # Answers

    def with_options(self, ask: Any) -> Self:
        """Return the task with the options of a question applied, such as the beam width."""
        return self

    def run(
        self,
        forward: Forward,
        windows: Sequence[Any],
        tokens: Tokenizers,
        *,
        known: Criterion | None = None,
    ) -> RawAnswers:
        """Compute the raw value of each window, and with `known` the loss of the labelled windows.

        This default runs a decoding session to its end. Tasks that do not generate override it.
        """
        session = self.session(forward, windows, tokens)
        while not session.done:
            session.step()
        labelled: list[Window] = [window for window in windows if window.labelled]
        if not (known and labelled):
            return RawAnswers(session.values())
        # Generated answers do not give the loss of the labels: that needs a pass of its own.
        return RawAnswers(session.values(), *known(self.batch(labelled, tokens)))

    def session(
        self, forward: Forward, windows: Sequence[Any], tokens: Tokenizers
    ) -> AnswerSession:
        """Start answering windows step by step; only tasks that generate can."""
        raise SettingsError(f"{self.name}: answers cannot be generated step by step.")

    def stream(
        self, forward: Forward, records: Iterable[Record], tokens: Tokenizers
    ) -> GrowingAnswers[Answer]:
        """Start answering records step by step; answers can be read after every step."""
        windowed = list(self.windows(records, tokens, numbers=count()))
        # One session for all windows, so that every step is one batched pass of the decoder.
        windows = [window for _, record_windows in windowed for window in record_windows]
        # Without a window, as when all texts are blank, there is nothing to decode.
        session = self.session(forward, windows, tokens) if windows else None
        parts = [
            (len(record_windows), partial(self.decode, record, record_windows, tokens=tokens))
            for record, record_windows in windowed
        ]
        return GrowingAnswers(session, parts)

    def decode(
        self, record: Record, windows: Sequence[Any], values: Sequence[Any], tokens: Tokenizers
    ) -> Answer:
        """Turn the raw values of a record's windows into its answer."""
        raise NotImplementedError

    def view(self, record: Record, answer: Answer) -> View:
        """Return the answer in one of the forms that the page and reports can draw."""
        raise NotImplementedError

    def plain(self, answer: Any) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return asdict(answer)

    def row(self, answer: Any) -> dict[str, Any]:
        """Return the answer as columns of a table, to be written beside those of the record."""
        return self.plain(answer)

    # Metrics

    def score(self, records: Sequence[Record], answers: Sequence[Answer]) -> dict[str, float]:
        """Return the metrics by name."""
        raise NotImplementedError

    def score_loss(self, loss: float) -> dict[str, float]:
        """Return metrics that follow from the mean loss, such as perplexity."""
        return {}

    def mistake(self, record: Record, answer: Answer) -> tuple[str, str, float] | None:
        """Return (label, prediction, severity) of a wrong answer; None if it is correct."""
        return None

    def detail(self, records: Sequence[Record], answers: Sequence[Answer]) -> Detail:
        """Return what reports show beside the metrics, such as the worst mistakes."""
        wrong = []
        for record, answer in zip(records, answers, strict=True):
            if mistake := self.mistake(record, answer):
                wrong.append(Mistake(record.where, " | ".join(record.key), *mistake))
        return Detail(mistakes=wrong)

    def choose_thresholds(
        self, records: Sequence[Record], answers: Sequence[Answer]
    ) -> tuple[Self, Sequence[Answer]]:
        """Choose decision values, such as a threshold, on held-out records.

        Returns the task with these values and the answers decided again.
        """
        return self, answers

    def all_equal(self, answers: Sequence[Answer]) -> bool:
        """Whether all answers are equal, so that comparing two models on them shows little."""
        return False

    def agreement(self, reference: Sequence[Answer], answers: Sequence[Answer]) -> Agreement:
        """Measure how well the answers of two models to the same records agree."""
        return Agreement.of([a == b for a, b in zip(reference, answers, strict=True)])


def all_scores(
    task: Task[Record, Answer],
    records: Sequence[Record],
    answers: Sequence[Answer],
    loss: float | None,
) -> dict[str, float]:
    """Return the metrics of a task together with those of plugins.

    `loss` is None if it is unknown; metrics derived from the loss are then missing.
    """
    scores = task.score(records, answers) | ({} if loss is None else task.score_loss(loss))
    metrics: dict[str, Callable[..., object]] = registered("metric")
    for name, metric in metrics.items():
        value = metric(records, answers)
        # A plugin may return anything, and a NaN would make every comparison of steps false.
        if not isinstance(value, int | float) or not isfinite(value):
            raise SettingsError(
                f"metric '{name}': returned {value!r:.60}; expected a finite number."
            )
        scores[name] = float(value)
    return scores
