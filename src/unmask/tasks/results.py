"""The values that flow between a network, its task and a report: raw values, answers, mistakes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from heapq import nlargest
from math import fsum
from operator import attrgetter
from pathlib import PurePath
from typing import Any, Protocol, cast

WORST = 20  # mistakes that a report shows
LONGEST_LIST, SHOWN = 6, 3  # items that a repr shows in full; items of a longer list that it shows
LONGEST_TEXT = 60  # characters of a text that a repr shows


class Result:
    """A frozen dataclass with a short `repr` for a session or notebook, and a form for JSON.

    Its classes are declared with `repr=False`, or dataclasses would generate a long one.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values that `json.dumps` accepts."""
        return {name: plain(value) for name, value in _fields(self)}

    def __repr__(self) -> str:
        parts = (f"{name}={shortened(value)}" for name, value in _fields(self))
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True)
class RawAnswers:
    """A network's raw value per window, with the summed loss where labels are known."""

    values: Sequence[object]  # one for each window
    loss: float = 0.0
    count: int = 0


class AnswerSession(Protocol):
    """Answers that are generated step by step, such as a translation token by token."""

    @property
    def done(self) -> bool:
        """Whether every answer is complete."""

    def step(self) -> None:
        """Generate one more token of every incomplete answer."""

    def values(self) -> Sequence[object]:
        """Return the raw value of each window as far as it has been generated."""


@dataclass(frozen=True)
class Mistake:
    """A wrong answer and how severe it is."""

    where: str
    text: str
    truth: str
    prediction: str
    severity: float  # sorts mistakes; the worst has the highest value


@dataclass
class Detail:
    """What a report shows beside the metrics."""

    table: list[dict[str, Any]] = field(default_factory=list)  # one row per label
    confusion: dict[str, Any] | None = None  # "names", and "counts" as [true][predicted]
    mistakes: list[Mistake] = field(default_factory=list)  # only the worst are kept, worst first

    def __post_init__(self) -> None:
        # A model early in its training may get every record wrong; reports must stay small.
        self.mistakes = nlargest(WORST, self.mistakes, key=attrgetter("severity"))


@dataclass(frozen=True)
class Agreement:
    """How well the answers of two models to the same records agree."""

    share: float
    least: float  # below this share the models differ too much
    text: str  # a format string with {share} and {texts}

    @classmethod
    def of(cls, same: Sequence[bool]) -> "Agreement":
        """Return the share of records with equal answers; 97 % are expected."""
        text = "{share:.2%} of the answers to {texts:,} texts are the same"
        return cls(sum(same) / len(same), 0.97, text)


@dataclass
class AnswerCounts:
    """Losses and truncation, counted while records are answered."""

    losses: list[float] = field(default_factory=list)  # the sum of each batch
    counts: list[int] = field(default_factory=list)  # labels in each sum
    cut_texts: int = 0  # texts that were truncated
    cut_tokens: int = 0

    @property
    def mean(self) -> float:
        """The mean loss per label, independent of the order of the batches."""
        # fsum rounds once, so the order in which parallel workers finish changes no bit.
        return fsum(self.losses) / max(sum(self.counts), 1)


def plain(value: object) -> Any:
    """Turn a value into what JSON knows: tuples and arrays become lists, dataclasses objects."""
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(part) for name, part in _fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, PurePath):
        return str(value)
    # Arrays and numpy's numbers have `tolist`, pydantic's models have `model_dump`. They are not
    # recognised by type, because this module imports neither library.
    for method in ("tolist", "model_dump"):
        convert: Callable[[], Any] | None = getattr(value, method, None)
        if convert is not None:
            return convert()
    return value


def shortened(value: object) -> str:
    """Return a `repr` that stays within a line or two, however large the value is."""
    if isinstance(value, str):
        cut = value if len(value) <= LONGEST_TEXT else f"{value[: LONGEST_TEXT - 3]}..."
        return repr(cut)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return _bracketed(
            "{}", (f"{key!r}: {shortened(part)}" for key, part in value.items()), len(value)
        )
    if isinstance(value, list | tuple):
        brackets = "[]" if isinstance(value, list) else "()"
        return _bracketed(brackets, map(shortened, value), len(value))
    shape = getattr(value, "shape", None)
    if shape:  # an array
        return f"<{'x'.join(map(str, shape))} {getattr(value, 'dtype', 'array')}>"
    return repr(value)


def _bracketed(brackets: str, parts: Iterable[str], count: int) -> str:
    """Join parts in brackets; of a long list, only the first are shown, and their number."""
    shown = [part for part, _ in zip(parts, range(LONGEST_LIST), strict=False)]
    if count > LONGEST_LIST:
        shown = [*shown[:SHOWN], f"... {count:,} items"]
    comma = "," if brackets == "()" and count == 1 else ""
    return f"{brackets[0]}{', '.join(shown)}{comma}{brackets[1]}"


def _fields(value: object) -> list[tuple[str, object]]:
    return [(field.name, getattr(value, field.name)) for field in fields(cast(Any, value))]
