"""Which column is what: as the flags say, or by names people use, or by what stands in them.

    text      the text, or the first one of a pair
    second    the other one, where there are pairs
    label     the answer

What was inferred is told; a flag decides otherwise. A column may be given by its name or, in a
table of text, by its number.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from unmask.data.lines import GLANCE, REFUSE, Watcher, kind_of, whole
from unmask.data.tables import TABLES, NumberedRows, read_rows, refuse_repeated
from unmask.errors import DataError, unknown

NAMES = {  # in lower case, the likeliest first
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
PAIRS = (("question", "sentence"), ("question", "passage"), ("query", "passage"))  # in this order
LOOKED_AT = 500  # rows
FEW = 10  # rows in which labels may all differ


@dataclass(frozen=True)
class Columns:
    """The columns of a table that matter, by their names; None where there is none."""

    text: str | None = None
    second: str | None = None
    label: str | None = None
    header: bool | None = None  # None: not known yet

    def given(self) -> dict[str, str]:
        """Those that are known, by what they are."""
        known = {"text": self.text, "second": self.second, "label": self.label}
        return {what: name for what, name in known.items() if name is not None}

    def said(self) -> str:
        """What was understood, in words."""
        parts = [f"{what} is column '{name}'" for what, name in self.given().items()]
        return f"{'' if self.header else 'no header, '}{', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Sample:
    """A text or a pair, with its answer as it stands in the file."""

    text: str
    second: str | None
    label: Any
    where: str

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same as another one."""
        return tuple(self.texts)

    @property
    def texts(self) -> list[str]:
        """One text or two."""
        return [self.text] if self.second is None else [self.text, self.second]


def infer(path: str | Path, asked: Columns, *, labelled: bool = True) -> Columns:
    """Find out which column is what, as far as it was not asked for."""
    kind = kind_of(path, TABLES)
    if kind in (".csv", ".tsv"):
        rows = _first_rows(Path(path), kind)
        header = _has_header(rows, asked) if asked.header is None else asked.header
        names = rows[0] if header else [str(i + 1) for i in range(len(rows[0]))]
        body = rows[1:] if header else rows
        cells: dict[str, list[Any]] = {
            name: [row[i] for row in body if i < len(row)] for i, name in enumerate(names)
        }
    else:
        header = True
        seen = islice(read_rows(path, list, watcher=GLANCE), LOOKED_AT)
        found = [row.cells for row in seen]
        names = list(dict.fromkeys(name for row in found for name in row))
        cells = {name: [row.get(name) for row in found] for name in names}
    if not names:
        next(iter(read_rows(path, list)), None)  # says what is wrong with the first
        raise DataError(f"{path}: no row in it; need at least one. Is it the right file?")
    return _settled(path, replace(asked, header=header), names, cells, labelled)


def _first_rows(path: Path, kind: str) -> list[list[str]]:
    rows: list[list[str]] = []
    with suppress(csv.Error):  # reading it will say what is wrong
        rows.extend(islice(NumberedRows(path, kind, GLANCE), LOOKED_AT))
    if not rows:
        for _ in read_rows(path, list):  # says so now, if nothing can be read
            break
        raise DataError(f"{path}: empty; need a row at least. Is it the right file?")
    return rows


def _has_header(rows: list[list[str]], asked: Columns) -> bool:
    """A header has a name that people use, or that was asked for, or no label that occurs below."""
    first, body = rows[0], rows[1:]
    known = {name for names in NAMES.values() for name in names}
    wanted = {name for name in asked.given().values() if not name.isdigit()}
    if wanted or any(cell.strip().lower() in known for cell in first):
        return True
    columns = {str(i): [row[i] for row in body if i < len(row)] for i in range(len(first))}
    label = _label_like(columns, besides=_longest(columns))
    if label is None:
        return False
    cell = first[int(label)]
    return cell not in columns[label] and not _is_number(cell)


def _settled(
    path: str | Path,
    asked: Columns,
    names: Sequence[str],
    cells: dict[str, list[Any]],
    labelled: bool,
) -> Columns:
    refuse_repeated(names, path)
    found: dict[str, str | None] = {}
    for what, name in asked.given().items():
        if name not in names and name.isdecimal() and 1 <= int(name) <= len(names):
            name = names[int(name) - 1]
        if name not in names:
            raise DataError(f"{path}: {unknown('column', name, names)} Choose with --{what}.")
        found[what] = name
    lower = {name.strip().lower(): name for name in reversed(names)}
    for first, other in PAIRS:
        if first in lower and other in lower and not {"text", "second"} & set(found):
            found |= {"text": lower[first], "second": lower[other]}
    for what, usual in NAMES.items():
        free = (lower[name] for name in usual if name in lower)
        if what not in found and (what != "label" or labelled):
            found[what] = next((n for n in free if n not in found.values()), None)
    texts = {n: c for n, c in cells.items() if n not in found.values()}
    if found.get("text") is None:
        found["text"] = names[0] if len(names) == 1 else _longest(texts)
    if labelled and found.get("label") is None:
        rest = {n: c for n, c in cells.items() if n not in found.values()}
        found["label"] = _label_like(rest, besides=None)
    for what in ("text", "label")[: 1 + labelled]:
        if found.get(what) is None:
            raise DataError(
                f"{path}: none of the columns {', '.join(names)} looks like the {what}. Name it "
                f"with --{what}."
            )
    return Columns(found["text"], found.get("second"), found.get("label"), asked.header)


def _longest(columns: dict[str, list[Any]]) -> str | None:
    """The column with the longest texts."""
    sizes = {
        name: mean([len(cell) for cell in cells if isinstance(cell, str)] or [0])
        for name, cells in columns.items()
    }
    return max(sizes, key=lambda name: sizes[name], default=None)


def _label_like(columns: dict[str, list[Any]], besides: str | None) -> str | None:
    """The column with the fewest different values, filled everywhere and not always the same."""
    kinds = {
        name: len({str(cell) for cell in cells})
        for name, cells in columns.items()
        if name != besides and cells and all(str(cell).strip() for cell in cells)
        if not _numbers_rows(cells)
    }
    fit = {name: count for name, count in kinds.items() if count > 1}
    return min(fit, key=lambda name: fit[name], default=None)


def _numbers_rows(cells: list[Any]) -> bool:
    """Is it another one in every row, such as an id? Numbers with a point may be answers."""
    different = len(cells) >= FEW and len({str(cell) for cell in cells}) == len(cells)
    return different and not all(is_fraction(str(cell)) for cell in cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_fraction(cell: str) -> bool:
    """Is it a number that is not whole, or that is written with a point?"""
    return _is_number(cell) and ("." in cell or not float(cell).is_integer())


def read_samples(
    path: str | Path,
    columns: Columns,
    watcher: Watcher = REFUSE,
    understand: Callable[[Sample], Any] = lambda sample: sample.label,
) -> Iterator[Sample]:
    """The rows of a table as texts with answers; one without text is refused.

    `understand` makes of an answer what the task needs, where answers are given.
    """
    wanted = columns.given()

    def choose(names: Sequence[str]) -> list[str]:
        for what, name in wanted.items():
            if name not in names:
                raise DataError(f"{unknown('column', name, names)} Choose with --{what}.")
        return list(wanted.values())

    for row in read_rows(path, choose, header=columns.header is not False, watcher=watcher):
        cells = {what: row.cells[name] for what, name in wanted.items()}
        try:
            sample = _sample(cells, row.where)
            yield replace(sample, label=understand(sample)) if columns.label else sample
        except DataError as error:
            watcher.bad(error, row.raw)


def _sample(cells: dict[str, Any], where: str) -> Sample:
    for what in ("text", "second"):
        value = cells.get(what, "-")
        if not isinstance(value, str):
            raise DataError(f"{where}: the {what} is {value!r:.60}; need a text. Mend it.")
        if not value.strip():
            raise DataError(f"{where}: the {what} is empty; need some. Fill it or remove the row.")
        whole(value, where)
    return Sample(cells["text"], cells.get("second"), cells.get("label"), where)
