"""Parallel text -> pairs: sentences and their translations, with their places.

    two files    plain text with any extension: line i of one translates line i of the other
    one table    .tsv, .csv, .jsonl, .parquet: two columns; in .jsonl and .parquet also
                 {"translation": {"de": "...", "en": "..."}}
    a folder     train.de and train.en, val.de and val.en, test*.de and test*.en

Each file may be compressed (.gz, .zst). Which column is which is inferred and reported; a flag
overrides it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path

from unmask.data.labelled.columns import Columns, Texts, find_column, flag, sample_columns
from unmask.data.labelled.tables import TABLES, TableRow, read_rows
from unmask.data.read.lines import (
    FORMATS,
    REFUSE,
    ErrorPolicy,
    Line,
    every_line,
    file_format,
    require_unicode,
)
from unmask.system.errors import DataError, unknown_name

USUAL = {"text": ("source", "src"), "second": ("target", "tgt")}  # common names of columns
NESTED = "translation"  # a table by language, as `datasets` has it
LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?")  # de, zh-Hans, pt_BR
NEED = "need two files of plain text, or one table (.csv, .jsonl, .parquet, .tsv)"
SPLITS = {"train": "train", "dev": "dev|val|valid|validation", "test": "test.*"}  # name patterns


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation, which is None where it is not known."""

    source: str
    target: str | None
    where: str

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the record among duplicates."""
        return (self.source,) if self.target is None else (self.source, self.target)


def read_pairs(
    paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy = REFUSE
) -> Iterator[Pair]:
    """Yield the pairs of two files, or of one table, in order; blank pairs are skipped.

    Wrong paths or columns raise an error at once. If one file has more lines than the other, the
    error is raised when the shorter one ends.
    """
    if _are_plain(paths, columns):
        return _parallel(paths, watcher)
    return _rows(paths[0], _settled(paths[0], columns), watcher)


def read_sources(path: str | Path, watcher: ErrorPolicy = REFUSE) -> Iterator[Pair]:
    """Yield every line of plain text as a source to translate; "-" is standard input.

    Blank and skipped lines become empty texts, so that line 10 of the output is always the
    translation of line 10 of the input.
    """
    if file_format(path, None) in TABLES:
        raise DataError(f"{path}: a table; need plain text. Write its column to a .txt first.")
    return _every_line(path, watcher)


def describe_columns(paths: Sequence[str | Path], columns: Columns) -> str:
    """Describe in words which file or column is the source and which is the target."""
    if _are_plain(paths, columns):
        return f"source is {paths[0]}, target is {paths[1]}"
    found = _settled(paths[0], columns)
    said = f"source is column '{found.text}', target is column '{found.second}'"
    return said if found.header else f"no header, {said}"


def _are_plain(paths: Sequence[str | Path], columns: Columns) -> bool:
    """Whether the paths are two files of plain text; False for one table, an error for all else."""
    if not 1 <= len(paths) <= 2:
        named = ", ".join(map(str, paths)) or "no path"
        raise DataError(f"{named}: {len(paths)} files; {NEED}. Join those of one language first.")
    tables = [path for path in paths if file_format(path, None) in TABLES]
    if len(paths) == 1 and not tables:
        raise DataError(f"{paths[0]}: one file of plain text; {NEED}. Name the other one too.")
    if len(paths) == 2 and tables:
        raise DataError(f"{tables[0]}: a table and another file; {NEED}. Name the table alone.")
    if len(paths) == 2 and str(paths[0]) == str(paths[1]):
        raise DataError(f"{paths[0]}: given as both sides; need two files. Name the other one.")
    for what, name in columns.given().items():
        if not tables or what not in USUAL:
            has = f"a translation has no {what}" if tables else "plain text has no columns"
            raise DataError(f"{paths[0]}: {has}, such as '{name}'. Leave {flag(what)} out.")
    return not tables


def _parallel(paths: Sequence[str | Path], watcher: ErrorPolicy) -> Iterator[Pair]:
    """Pair the lines with the same number; if either line is bad, both are skipped."""
    sides = [every_line(path, watcher) for path in paths]
    for number, pair in enumerate(zip_longest(*sides), start=1):
        if None in pair:
            longer = 1 - pair.index(None)
            rest = chain([pair[longer]], sides[longer])
            return _refuse_rest(paths, longer, number, rest, watcher)
        faults = [(error, text) for _, text, error in pair if error]
        # An error without text means that the rest of the file cannot be read. Otherwise one error
        # is reported for each pair, because one pair is skipped.
        cut = [fault for fault in faults if not fault[1]]
        for error, text in cut or faults[:1]:
            watcher.bad(error, text)
        if cut:
            return None
        if not faults:
            (_, source, _), (_, target, _) = pair
            yield from _paired(source, target, [f"{path}:{number}" for path in paths], watcher)


def _refuse_rest(
    paths: Sequence[str | Path], longer: int, begin: int, rest: Iterable[Line], watcher: ErrorPolicy
) -> None:
    """Raise an error if one file still has lines where the other has ended, with both counts."""
    counts, more = [begin - 1, begin - 1], ["", ""]
    for number, text, error in rest:
        if error and (number == begin or not text):
            watcher.bad(error, text)
        if error and not text:
            more[longer] = " or more"
        else:
            counts[longer] = number
    if counts[longer] >= begin:
        told = [f"{path} has {n:,}{m}" for path, n, m in zip(paths, counts, more, strict=True)]
        raise DataError(
            f"{paths[longer]}:{begin}: no line to go with it: {' lines, '.join(told)}; need as "
            "many. Find the line that is missing or cut in two."
        )


def _paired(
    source: str, target: str, places: Sequence[str], watcher: ErrorPolicy
) -> Iterator[Pair]:
    """Yield a pair if both sides have text; one blank side is an error, two are a blank record."""
    if source.strip() and target.strip():
        yield Pair(source, target, places[0])
    elif source.strip() or target.strip():
        side, where = ("target", places[1]) if source.strip() else ("source", places[0])
        what = f"{where}: the {side} is empty; need a sentence on both sides. Fill it or drop both."
        watcher.bad(DataError(what), f"{source}\t{target}")
    else:
        watcher.blank()


def _every_line(path: str | Path, watcher: ErrorPolicy) -> Iterator[Pair]:
    for line, text, error in every_line(path, watcher):
        if error:
            watcher.bad(error, text)
            if not text:  # the rest of the file cannot be read
                return
            text = ""
        yield Pair(text if text.strip() else "", None, f"{path}:{line}")


def _settled(path: str | Path, asked: Columns) -> Columns:
    """Find the source and target columns: as requested, by their names, or the only ones left."""
    header, cells = sample_columns(path, asked, _is_header)
    nested = [cell for cell in cells.get(NESTED, []) if isinstance(cell, dict)]
    languages: dict[str, None] = dict.fromkeys(name for cell in nested for name in cell)
    names = list(languages or cells)
    chosen = asked.among(names, f"{path}: ").given()
    for what, usual in USUAL.items():
        named = [n for n in names if n.strip().lower() in usual and n not in chosen.values()]
        chosen |= {what: named[0]} if named and what not in chosen else {}
    free = [name for name in names if name not in chosen.values()]
    missing = [what for what in USUAL if what not in chosen]
    # Without a header and any request, the first two columns are source and target.
    if len(free) == len(missing) or (not header and not chosen):
        chosen |= dict(zip(missing, free, strict=False))
    if len(set(chosen.values())) < len(USUAL):
        raise DataError(
            f"{path}: cannot tell the source and the target among the columns {', '.join(names)}; "
            "need one for each. Name them with --text and --second."
        )
    return Columns.of(chosen, header)


def _is_header(cells: Texts) -> bool:
    """Whether the first cells contain a common name of a column, or are all language codes."""
    usual = {name for names in USUAL.values() for name in names}
    first = [values[0].strip() for values in cells.values()]
    return any(c.lower() in usual for c in first) or all(LANGUAGE.fullmatch(c) for c in first)


def _rows(path: str | Path, columns: Columns, watcher: ErrorPolicy) -> Iterator[Pair]:
    wanted = columns.given()

    def choose(names: Sequence[str]) -> list[str]:
        if NESTED in names and not set(wanted.values()) <= set(names):
            return [NESTED]
        return [find_column(what, name, names) for what, name in wanted.items()]

    for row in read_rows(path, choose, header=columns.header is not False, watcher=watcher):
        try:
            source, target = (_text(row, name) for name in wanted.values())
        except DataError as error:
            watcher.bad(error, row.raw)
            continue
        yield from _paired(source, target, (row.where, row.where), watcher)


def _text(row: TableRow, name: str) -> str:
    """Return the text of a row in a column, or in a language of its translation table."""
    if name not in row.cells:
        cells = row.cells[NESTED]
        if not isinstance(cells, dict) or name not in cells:
            raise DataError(
                f"{row.where}: {NESTED} is {cells!r:.60}; need '{name}' in it. Mend it."
            )
        row = replace(row, cells=cells)
    return require_unicode(row.text(name), row.where)


def files_of_languages(folder: Path, source: str, target: str) -> dict[str, tuple[Path, Path]]:
    """Return the files of both languages in a folder: train, dev and, if there are any, test."""
    if source == target:
        raise DataError(f"{folder}: from '{source}' to '{target}'; need two languages. Change one.")
    files = _by_language(folder)
    known = {language for paths in files.values() for language in paths}
    for language in (source, target):
        if language not in known:
            raise DataError(
                f"{folder}: {unknown_name('language', language, known)} Choose one of them."
            )
    found: dict[str, tuple[Path, Path]] = {}
    for split, pattern in SPLITS.items():
        stems = [stem for stem in sorted(files) if re.fullmatch(pattern, stem)]
        complete = [files[stem] for stem in stems if {source, target} <= files[stem].keys()]
        if complete:
            found[split] = complete[0][source], complete[0][target]
        elif split != "test":
            stem = stems[0] if stems else split
            lacking = sorted({source, target} - files.get(stem, {}).keys())
            missing = " and ".join(f"{stem}.{language}" for language in lacking)
            raise DataError(f"{folder}: {missing} missing; need both languages of {split}. Add it.")
    return found


def _by_language(folder: Path) -> dict[str, dict[str, Path]]:
    """List the files of a folder by the name of their split, such as train, and by language."""
    why = "no file such as train.de in it"
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        paths, why = [], str(error.strerror)
    files: dict[str, dict[str, Path]] = {}
    for path in paths:  # sorted: an uncompressed file comes first, and is kept
        stem, _, language = path.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")
        ours = any(re.fullmatch(pattern, stem) for pattern in SPLITS.values())
        if ours and f".{language}" not in FORMATS:
            files.setdefault(stem, {}).setdefault(language, path)
    if not files:
        raise DataError(f"{folder}: {why}; need train.de, train.en and so on. Check the path.")
    return files
