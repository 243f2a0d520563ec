"""Table -> which column holds what: as flags say, or inferred from common names or the cells.

    text      the text, or the first one of a pair
    second    the other text, where there are pairs
    label     the label
    ...       any other field of a task's records

What was inferred is reported; a flag overrides it. A column may be given by its name or, in a table
of text, by its number.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from unmask.data.labelled.tables import TABLES, TableRow, read_rows, refuse_repeated
from unmask.data.read.lines import REFUSE, ErrorPolicy, QuietPolicy, file_format, require_unicode
from unmask.system.errors import DataError, unknown_name

NAMES = {  # in lower case, the most likely first
    "text": (
        "text", "sentence", "sentence1", "text_a", "text1", "premise", "question1", "#1 string",
        "question", "review", "content", "document", "tweet", "comment", "title", "query", "input",
    ),
    "second": (
        "second", "sentence2", "text_b", "text2", "hypothesis", "question2", "#2 string", "pair",
        "passage",
    ),
    "label": (
        "label", "labels", "gold_label", "score", "similarity", "quality", "class", "category",
        "sentiment", "emotion", "intent", "topic", "target", "rating", "stars", "polarity", "y",
    ),
}  # fmt: skip
PAIRS = (("question", "sentence"), ("question", "passage"), ("query", "passage"))  # tried in order
LOOKED_AT = 500  # rows that are inspected
FEW = 10  # with fewer rows than this, all labels may differ
Cells = Mapping[str, Sequence[object]]  # columns by name
Texts = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Columns:
    """Names of the columns that matter in a table; None where there is no such column."""

    text: str | None = None
    second: str | None = None
    label: str | None = None
    header: bool | None = None  # None: not known yet
    others: Mapping[str, str] = field(default_factory=dict)  # other fields of a task's records

    @classmethod
    def from_fields(cls, names: Mapping[str, str | None], header: bool | None = None) -> "Columns":
        """Build from a table of fields and the columns that hold them."""
        usual = {key: names.get(key) for key in NAMES}
        others = {key: name for key, name in names.items() if name and key not in usual}
        return cls(**usual, header=header, others=others)

    def by_field(self) -> dict[str, str]:
        """Return the columns that are known, by field."""
        known = {"text": self.text, "second": self.second, "label": self.label, **self.others}
        return {key: name for key, name in known.items() if name is not None}

    def resolve(self, names: Sequence[str], where: str = "") -> "Columns":
        """Resolve the columns in a table with the given names; numbers become names."""
        resolved = {
            key: find_column(key, name, names, where) for key, name in self.by_field().items()
        }
        return self.from_fields(resolved, self.header)

    def renamed(self, record: Mapping[str, object]) -> dict[str, object]:
        """Rename the fields of a JSON object from the names of columns to those of fields."""
        columns = self.by_field()
        rest = {
            name: value
            for name, value in record.items()
            if name not in columns and name not in columns.values()
        }
        return rest | {key: record[column] for key, column in columns.items() if column in record}

    def refuse(self, path: str | Path, reason: str) -> None:
        """Raise an error if columns were requested of a file that has none; `reason` says why."""
        for key, name in self.by_field().items():
            raise DataError(f"{path}: {reason}, so there is no '{name}'. Omit {flag(key)}.")

    def describe(self) -> str:
        """Describe in words which column holds what."""
        parts = [f"{key} is column '{name}'" for key, name in self.by_field().items()]
        return f"{'' if self.header else 'no header, '}{', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Sample:
    """A text or a pair, with its label as it stands in the file."""

    text: str
    second: str | None
    label: Any
    where: str

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the record among duplicates."""
        return tuple(self.texts)

    @property
    def texts(self) -> list[str]:
        """The text, or both texts of a pair."""
        return [self.text] if self.second is None else [self.text, self.second]


def infer_columns(path: str | Path, requested: Columns, *, labelled: bool = True) -> Columns:
    """Infer the role of each column that `requested` leaves open, from the header and the cells."""
    header, cells = sample_columns(path, requested, _is_header)
    names = list(cells)
    columns: dict[str, str | None] = {**requested.resolve(names, f"{path}: ").by_field()}
    # Reversed: of two names that differ only in case, the first column wins.
    lower = {name.strip().lower(): name for name in reversed(names)}
    for first, second in PAIRS:
        if first in lower and second in lower and not {"text", "second"} & set(columns):
            columns |= {"text": lower[first], "second": lower[second]}
    for key, common_names in NAMES.items():
        candidates = (lower[name] for name in common_names if name in lower)
        if key not in columns and (key != "label" or labelled):
            columns[key] = next((name for name in candidates if name not in columns.values()), None)
    if columns["text"] is None:
        columns["text"] = (
            names[0] if len(names) == 1 else _longest_column(_without(cells, columns.values()))
        )
    if labelled and columns["label"] is None:
        columns["label"] = _label_column(_without(cells, columns.values()))
    for key in ("text", "label")[: 1 + labelled]:
        if columns.get(key) is None:
            for _ in islice(read_rows(path, list, header=header), LOOKED_AT):
                pass  # a bad row may be the cause: reading strictly raises its error
            raise DataError(
                f"{path}: cannot tell which of the columns {', '.join(names)} holds the {key}. "
                f"Name it with --{key}."
            )
    return Columns.from_fields(columns, header)


def sample_columns(
    path: str | Path, requested: Columns, is_header: Callable[[Texts], bool]
) -> tuple[bool, Cells]:
    """Detect whether a table has a header, and return the first cells of each column by name.

    A table of text has a header if a column was requested by name, if its first row contains a
    common name of a column, or if `is_header` recognises one in the first cells of the columns.
    """
    rows: list[dict[str, object]] = []
    with suppress(DataError):  # the full read reports it
        reader = read_rows(path, list, header=False, watcher=_GiveUpWhenAllBad())
        rows.extend(row.cells for row in islice(reader, LOOKED_AT))
    if not rows:
        next(read_rows(path, list), None)  # raises the error of the first row
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        raise DataError(f"{path}: contains no rows; need at least one. Is this the right file?")
    cells = {name: [row.get(name) for row in rows] for name in names}
    if file_format(path, TABLES) not in (".csv", ".tsv"):
        return True, cells
    texts = {name: [str(cell) for cell in values] for name, values in cells.items()}
    first_cells = [values[0] for values in texts.values()]
    known = {name for names in NAMES.values() for name in names}
    header = requested.header
    if header is None:
        by_name = any(not name.isdecimal() for name in requested.by_field().values())
        common = any(cell.strip().lower() in known for cell in first_cells)
        header = by_name or common or is_header(texts)
    if header:
        refuse_repeated(first_cells, path)
        texts = dict(zip(first_cells, (values[1:] for values in texts.values()), strict=True))
    return header, texts


class _GiveUpWhenAllBad(QuietPolicy):
    """Error policy that gives up when as many rows are bad as would be inspected."""

    def __init__(self) -> None:
        self.left = LOOKED_AT

    def bad(self, error: DataError, raw: str) -> None:
        """Count the row, and raise its error if it is the last that may be bad."""
        self.left -= 1
        if not self.left:
            raise error


def _is_header(cells: Texts) -> bool:
    """Whether the first cell of the label column is neither a label found below it nor a number."""
    cells_below = {name: values[1:] for name, values in cells.items()}
    label = _label_column(_without(cells_below, [_longest_column(cells_below)]))
    if label is None:
        return False
    first = cells[label][0]
    return first not in cells_below[label] and not _is_number(first)


def find_column(key: str, name: str, names: Sequence[str], where: str = "") -> str:
    """Return the column with this name or number."""
    if name not in names and name.isdecimal() and 1 <= int(name) <= len(names):
        return names[int(name) - 1]
    if name not in names:
        raise DataError(
            f"{where}{unknown_name('column', name, names)} Choose one with {flag(key)}."
        )
    return name


def flag(key: str) -> str:
    """Return the command-line option that names the column of a field."""
    return f"--{key}" if key in NAMES else f"--column {key}=COLUMN"


def _without(columns: Cells, names: Collection[str | None]) -> Cells:
    return {name: cells for name, cells in columns.items() if name not in names}


def _longest_column(columns: Cells) -> str | None:
    """Return the column with the longest texts on average."""
    sizes = {
        name: mean([len(cell) for cell in cells if isinstance(cell, str)] or [0])
        for name, cells in columns.items()
    }
    return max(sizes, key=lambda name: sizes[name], default=None)


def _label_column(columns: Cells) -> str | None:
    """Return the column with the fewest distinct values, if it has two or more and no blank."""
    distinct = {
        name: len({str(cell) for cell in cells})
        for name, cells in columns.items()
        if cells and all(str(cell).strip() for cell in cells) and not _looks_like_id(cells)
    }
    candidates = {name: count for name, count in distinct.items() if count > 1}
    return min(candidates, key=lambda name: candidates[name], default=None)


def _looks_like_id(cells: Sequence[object]) -> bool:
    """Whether all values differ, as those of an id do; fractions that all differ may be labels."""
    all_differ = len(cells) >= FEW and len({str(cell) for cell in cells}) == len(cells)
    return all_differ and not all(is_fraction(str(cell)) for cell in cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_fraction(cell: str) -> bool:
    """Whether a cell is a number that is not whole, or that is written with a point."""
    return _is_number(cell) and ("." in cell or not float(cell).is_integer())


def read_samples(
    path: str | Path,
    columns: Columns,
    watcher: ErrorPolicy = REFUSE,
    understand: Callable[[Sample], object] = lambda sample: sample.label,
) -> Iterator[Sample]:
    """Yield the rows of a table as texts with labels; a row with blank text is refused.

    `understand` turns a label into what the task needs, if labels are given.
    """
    columns_by_key = {key: name for key, name in columns.by_field().items() if key in NAMES}

    def choose(names: Sequence[str]) -> list[str]:
        for key, name in columns_by_key.items():
            if name not in names:  # numbers are resolved before; JSON keys have no order
                raise DataError(f"{unknown_name('column', name, names)} Choose one with --{key}.")
        return list(columns_by_key.values())

    for row in read_rows(path, choose, header=columns.header is not False, watcher=watcher):
        try:
            sample = _sample(row, columns)
            yield replace(sample, label=understand(sample)) if columns.label else sample
        except DataError as error:
            watcher.bad(error, row.raw)


def _sample(row: TableRow, columns: Columns) -> Sample:
    names = {"text": columns.text, "second": columns.second}
    texts = {key: require_unicode(row.text(name), row.where) for key, name in names.items() if name}
    for key, text in texts.items():
        if not text.strip():
            raise DataError(
                f"{row.where}: the {key} is empty; need some text. Fill it in or remove the row."
            )
    label = None if columns.label is None else row.cells[columns.label]
    return Sample(texts["text"], texts.get("second"), label, row.where)
