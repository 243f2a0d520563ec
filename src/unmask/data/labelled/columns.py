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
    def of(cls, names: Mapping[str, str | None], header: bool | None = None) -> "Columns":
        """Build from a table of fields and the columns that hold them."""
        own = {what: names.get(what) for what in NAMES}
        others = {what: name for what, name in names.items() if name and what not in own}
        return cls(**own, header=header, others=others)

    def given(self) -> dict[str, str]:
        """Return the columns that are known, by field."""
        known = {"text": self.text, "second": self.second, "label": self.label, **self.others}
        return {what: name for what, name in known.items() if name is not None}

    def among(self, names: Sequence[str], where: str = "") -> "Columns":
        """Resolve the columns in a table with the given names; numbers become names."""
        found = {what: find_column(what, name, names, where) for what, name in self.given().items()}
        return self.of(found, self.header)

    def renamed(self, record: Mapping[str, object]) -> dict[str, object]:
        """Rename the fields of a JSON object from the names of columns to those of fields."""
        given = self.given()
        rest = {k: v for k, v in record.items() if k not in given and k not in given.values()}
        return rest | {what: record[name] for what, name in given.items() if name in record}

    def refuse(self, path: str | Path, has: str) -> None:
        """Raise an error if columns were requested of a file that has none; `has` says why."""
        for what, name in self.given().items():
            raise DataError(f"{path}: {has}, such as '{name}'. Leave {flag(what)} out.")

    def said(self) -> str:
        """Describe in words which column holds what."""
        parts = [f"{what} is column '{name}'" for what, name in self.given().items()]
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


def infer_columns(path: str | Path, asked: Columns, *, labelled: bool = True) -> Columns:
    """Infer which column holds what, where `asked` does not say so."""
    header, cells = sample_columns(path, asked, _is_header)
    names = list(cells)
    found: dict[str, str | None] = {**asked.among(names, f"{path}: ").given()}
    # Reversed: of two names that differ only in case, the first column wins.
    lower = {name.strip().lower(): name for name in reversed(names)}
    for first, other in PAIRS:
        if first in lower and other in lower and not {"text", "second"} & set(found):
            found |= {"text": lower[first], "second": lower[other]}
    for what, usual in NAMES.items():
        free = (lower[name] for name in usual if name in lower)
        if what not in found and (what != "label" or labelled):
            found[what] = next((n for n in free if n not in found.values()), None)
    if found["text"] is None:
        found["text"] = names[0] if len(names) == 1 else _longest(_besides(cells, found.values()))
    if labelled and found["label"] is None:
        found["label"] = _label_like(_besides(cells, found.values()))
    for what in ("text", "label")[: 1 + labelled]:
        if found.get(what) is None:
            for _ in islice(read_rows(path, list, header=header), LOOKED_AT):
                pass  # a bad row may be the cause: reading strictly raises its error
            raise DataError(
                f"{path}: none of the columns {', '.join(names)} looks like the {what}. Name it "
                f"with --{what}."
            )
    return Columns.of(found, header)


def sample_columns(
    path: str | Path, asked: Columns, is_header: Callable[[Texts], bool]
) -> tuple[bool, Cells]:
    """Detect whether a table has a header, and return the first cells of each column by name.

    A table of text has a header if a column was requested by name, if its first row contains a
    common name of a column, or if `is_header` recognises one in the first cells of the columns.
    """
    found: list[dict[str, object]] = []
    with suppress(DataError):  # the full read reports it
        rows = read_rows(path, list, header=False, watcher=_First())
        found.extend(row.cells for row in islice(rows, LOOKED_AT))
    if not found:
        next(read_rows(path, list), None)  # raises the error of the first row
    names = list(dict.fromkeys(name for row in found for name in row))
    if not names:
        raise DataError(f"{path}: no row in it; need at least one. Is it the right file?")
    cells = {name: [row.get(name) for row in found] for name in names}
    if file_format(path, TABLES) not in (".csv", ".tsv"):
        return True, cells
    texts = {name: [str(cell) for cell in values] for name, values in cells.items()}
    first = [values[0] for values in texts.values()]
    known = {name for names in NAMES.values() for name in names}
    header = asked.header
    if header is None:
        named = any(not name.isdecimal() for name in asked.given().values())
        usual = any(cell.strip().lower() in known for cell in first)
        header = named or usual or is_header(texts)
    if header:
        refuse_repeated(first, path)
        texts = dict(zip(first, (values[1:] for values in texts.values()), strict=True))
    return header, texts


class _First(QuietPolicy):
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
    below = {name: values[1:] for name, values in cells.items()}
    label = _label_like(_besides(below, [_longest(below)]))
    if label is None:
        return False
    first = cells[label][0]
    return first not in below[label] and not _is_number(first)


def find_column(what: str, name: str, names: Sequence[str], where: str = "") -> str:
    """Return the column with this name or number."""
    if name not in names and name.isdecimal() and 1 <= int(name) <= len(names):
        return names[int(name) - 1]
    if name not in names:
        raise DataError(f"{where}{unknown_name('column', name, names)} Choose with {flag(what)}.")
    return name


def flag(what: str) -> str:
    """Return the command-line option that names the column of a field."""
    return f"--{what}" if what in NAMES else f"--column {what}=COLUMN"


def _besides(columns: Cells, names: Collection[str | None]) -> Cells:
    return {name: cells for name, cells in columns.items() if name not in names}


def _longest(columns: Cells) -> str | None:
    """Return the column with the longest texts on average."""
    sizes = {
        name: mean([len(cell) for cell in cells if isinstance(cell, str)] or [0])
        for name, cells in columns.items()
    }
    return max(sizes, key=lambda name: sizes[name], default=None)


def _label_like(columns: Cells) -> str | None:
    """Return the column with the fewest distinct values, if it has two or more and no blank."""
    kinds = {
        name: len({str(cell) for cell in cells})
        for name, cells in columns.items()
        if cells and all(str(cell).strip() for cell in cells) and not _numbers_rows(cells)
    }
    fit = {name: count for name, count in kinds.items() if count > 1}
    return min(fit, key=lambda name: fit[name], default=None)


def _numbers_rows(cells: Sequence[object]) -> bool:
    """Whether all values differ, as those of an id do; fractions that all differ may be labels."""
    different = len(cells) >= FEW and len({str(cell) for cell in cells}) == len(cells)
    return different and not all(is_fraction(str(cell)) for cell in cells)


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
    wanted = {what: name for what, name in columns.given().items() if what in NAMES}

    def choose(names: Sequence[str]) -> list[str]:
        for what, name in wanted.items():
            if name not in names:  # numbers are resolved before; JSON keys have no order
                raise DataError(f"{unknown_name('column', name, names)} Choose with --{what}.")
        return list(wanted.values())

    for row in read_rows(path, choose, header=columns.header is not False, watcher=watcher):
        try:
            sample = _sample(row, columns)
            yield replace(sample, label=understand(sample)) if columns.label else sample
        except DataError as error:
            watcher.bad(error, row.raw)


def _sample(row: TableRow, columns: Columns) -> Sample:
    names = {"text": columns.text, "second": columns.second}
    texts = {
        what: require_unicode(row.text(name), row.where) for what, name in names.items() if name
    }
    for what, text in texts.items():
        if not text.strip():
            raise DataError(
                f"{row.where}: the {what} is empty; need some. Fill it or remove the row."
            )
    label = None if columns.label is None else row.cells[columns.label]
    return Sample(texts["text"], texts.get("second"), label, row.where)
