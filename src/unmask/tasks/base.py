"""What training, evaluation, prediction and the server ask of a task.

    question (Ask) -> record -> windows -> network -> raw values -> answer -> metrics, view

A record is a piece of data as a person sees it: a text, a question with its passage, a sentence,
with its truth where that is known. A window is as much of it as the network reads at once; most
records are one. What the network makes of a record's windows becomes its answer in one function of
the task, whoever asks: training, `evaluate`, `predict`, the server.

A task has an objective, from which the network learns; it is none itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from unmask.data.batch import Batch, Tokenized
from unmask.data.labelled.columns import Columns
from unmask.data.packing import BATCH_TOKENS, WORKER_TOKENS
from unmask.data.read.lines import ErrorPolicy
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


class HasKey(Protocol):
    """A piece of data."""

    @property
    def key(self) -> tuple[str, ...]:
        """Its texts: what makes it the same as another one."""

    @property
    def where(self) -> str:
        """Its place, for messages."""


Record = TypeVar("Record", bound=HasKey)
Answer = TypeVar("Answer")


class Window(Tokenized, Protocol):
    """What the network reads at once."""

    @property
    def cut(self) -> int:
        """Tokens at its end that did not fit."""

    @property
    def labelled(self) -> bool:
        """Is its truth known?"""

    def compact(self) -> Self:
        """The same in less memory, with what training needs of it."""


class Task(Generic[Record, Answer]):
    """A kind of question, with what learns it, its answers and its metrics."""

    name: ClassVar[str]
    title: ClassVar[str] = ""  # what a page calls it; the name, if it is empty
    Config: ClassVar[type[Settings]] = Settings
    Ask: ClassVar[type[asks.Ask]]  # what a user asks
    answers: ClassVar[type]  # a dataclass that JSON can carry, or str
    metric: str  # the best model is the one with the most of it
    tabular: ClassVar[bool] = False  # its records are rows of tables, whose columns must be known
    generates: ClassVar[bool] = False  # answers grow in sessions, step by step
    decodes: ClassVar[bool] = False  # it has a decoder, with a vocabulary of its own
    parallel: ClassVar[bool] = False  # its files belong together, line by line
    grouped: ClassVar[bool] = False  # windows of a record stay together when they are shuffled
    neighbours: ClassVar[int] = 1  # steps whose records are sorted by length together
    reads: ClassVar[Sequence[str]] = ()  # settings of a recipe that a run reads for it alone
    batch_tokens: ClassVar[int] = BATCH_TOKENS  # that are answered at once
    worker_tokens: ClassVar[int] = WORKER_TOKENS  # ... by each of several workers

    def __init__(self, config: Settings) -> None:
        self.config = config

    # Data

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Record]:
        """The records of a labelled file; some tasks have parallel files."""
        raise NotImplementedError

    @classmethod
    def read_files(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Record]:
        """The records of several files: of parallel ones, or of one after the other."""
        for some in [paths] if cls.parallel else [[path] for path in paths]:
            yield from cls.read(some, columns, watcher, config)

    @classmethod
    def noted(
        cls, paths: Sequence[str | Path], columns: Columns, *, labelled: bool = True
    ) -> tuple[Columns, list[str]]:
        """Columns as they are inferred from a file, and what to tell about that."""
        return columns, []

    def questions(
        self, source: str | Path, columns: Columns, watcher: ErrorPolicy
    ) -> Iterator[Record]:
        """The records of a file without truths: by default each row of a table is an `Ask`."""
        for number, (ask, where) in enumerate(asks.rows(self.Ask, source, columns, watcher), 1):
            yield self.record(ask, where, number)

    @classmethod
    def recognises(cls, path: Path, ending: str, lines: Sequence[str]) -> bool:
        """Is a file one of this task's? `lines` are its first ones, if it is text."""
        return False

    @classmethod
    def learn(cls, config: Any, records: Sequence[Record]) -> Self:
        """The task that these records pose: with their labels."""
        return cls(config)

    @classmethod
    def restore(cls, shape: Shape, config: Any) -> "Self | None":
        """The task that a network of this shape was trained for; None if it is another one."""
        raise NotImplementedError

    def check(self, records: Sequence[Record]) -> None:
        """Refuse records that it cannot be asked, such as with labels it does not know."""

    @classmethod
    def texts(cls, records: Iterable[Record]) -> tuple[Iterable[str], Iterable[str]]:
        """What a vocabulary is learned from, where none is given: of both sides."""
        return (text for record in records for text in record.key), ()

    def record(self, ask: Any, where: str, number: int) -> Record:
        """A question as a record without a truth; `number` counts questions that come together."""
        raise NotImplementedError

    # The network

    def heads(self, config: ModelConfig, tokens: Tokenizers, given: Mapping[str, Any]) -> Heads:
        """What stands on the encoder; `given` are the recipe's settings of a decoder."""
        raise NotImplementedError

    @property
    def objective(self) -> Objective:
        """What a network learns for it."""
        raise NotImplementedError

    def windows(
        self,
        records: Iterable[Record],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Record, Sequence[Window]]]:
        """Every record with its windows.

        To `learn` from, a record that would be no good has none, and is skipped. `numbers` are
        those of the windows among all that are asked.
        """
        raise NotImplementedError

    def batch(self, windows: Sequence[Any], tokens: Tokenizers, term: str | None = None) -> Batch:
        """Windows with their truth, for the objective; `term` is the name of the loss, if another.

        The loss is called after the task by itself.
        """
        raise NotImplementedError

    # Answers

    def asked(self, ask: Any) -> Self:
        """The task with the options of a question, if it has some."""
        return self

    def run(
        self,
        forward: Forward,
        windows: Sequence[Any],
        tokens: Tokenizers,
        *,
        known: Criterion | None = None,
    ) -> RawAnswers:
        """What a session says of windows at its end; with `known`, also the loss of its truths."""
        session = self.session(forward, windows, tokens)
        while not session.done:
            session.step()
        labelled: list[Window] = [window for window in windows if window.labelled]
        if not (known and labelled):
            return RawAnswers(session.values())
        return RawAnswers(session.values(), *known(self.batch(labelled, tokens)))

    def session(
        self, forward: Forward, windows: Sequence[Any], tokens: Tokenizers
    ) -> AnswerSession:
        """Begin to answer windows step by step, in a task that generates."""
        raise SettingsError(f"{self.name}: answers at once, not step by step.")

    def stream(
        self, forward: Forward, records: Iterable[Record], tokens: Tokenizers
    ) -> GrowingAnswers[Answer]:
        """Begin to answer records step by step; the answers can be read after every step."""
        found = list(self.windows(records, tokens, numbers=count()))
        windows = [window for _, own in found for window in own]
        session = self.session(forward, windows, tokens) if windows else None
        parts = [(len(own), partial(self.decode, r, own, tokens=tokens)) for r, own in found]
        return GrowingAnswers(session, parts)

    def decode(
        self, record: Record, windows: Sequence[Any], values: Sequence[Any], tokens: Tokenizers
    ) -> Answer:
        """What the raw values of a record's windows say."""
        raise NotImplementedError

    def view(self, record: Record, answer: Answer) -> View:
        """The answer as a person looks at it."""
        raise NotImplementedError

    def plain(self, answer: Any) -> dict[str, Any]:
        """The answer as a line of JSON."""
        return asdict(answer)

    # Metrics

    def score(self, records: Sequence[Record], answers: Sequence[Answer]) -> dict[str, float]:
        """Metrics by name."""
        raise NotImplementedError

    def score_loss(self, loss: float) -> dict[str, float]:
        """Metrics that follow from the mean loss."""
        return {}

    def mistake(self, record: Record, answer: Answer) -> tuple[str, str, float] | None:
        """What is true, what was said and how bad that is; None where the answer is right."""
        return None

    def detail(self, records: Sequence[Record], answers: Sequence[Answer]) -> Detail:
        """What else is worth seeing: the worst mistakes, and what a task adds to them."""
        wrong = []
        for record, answer in zip(records, answers, strict=True):
            if mistake := self.mistake(record, answer):
                wrong.append(Mistake(record.where, " | ".join(record.key), *mistake))
        return Detail(mistakes=wrong)

    def settle(
        self, records: Sequence[Record], answers: Sequence[Answer]
    ) -> tuple[Self, Sequence[Answer]]:
        """With what is best chosen on held-out records, such as a threshold; answers with it."""
        return self, answers

    def alike(self, answers: Sequence[Answer]) -> bool:
        """Are all answers the same, so that comparing them says little?"""
        return False

    def agreement(self, truth: Sequence[Answer], found: Sequence[Answer]) -> Agreement:
        """How alike two models answer the same records."""
        return Agreement.of([one == two for one, two in zip(truth, found, strict=True)])


def all_scores(
    task: Task[Record, Answer],
    records: Sequence[Record],
    answers: Sequence[Answer],
    loss: float | None,
) -> dict[str, float]:
    """The metrics of a task, and those of plugins; None stands for a loss that is unknown."""
    scores = task.score(records, answers) | ({} if loss is None else task.score_loss(loss))
    metrics: dict[str, Callable[..., object]] = registered("metric")
    for name, metric in metrics.items():
        value = metric(records, answers)
        if not isinstance(value, int | float) or not isfinite(value):
            raise SettingsError(f"metric '{name}': returned {value!r:.60}; need a finite number.")
        scores[name] = float(value)
    return scores
