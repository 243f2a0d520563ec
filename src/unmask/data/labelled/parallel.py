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

COMMON_NAMES = {"text": ("source", "src"), "second": ("target", "tgt")}  # common names of columns
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
        return _read_parallel(paths, watcher)
    return _read_table(paths[0], _resolve_columns(paths[0], columns), watcher)


def read_sources(path: str | Path, watcher: ErrorPolicy = REFUSE) -> Iterator[Pair]:
    """Yield every line of plain text as a source to translate; "-" is standard input.

    Blank and skipped lines become empty texts, so that line 10 of the output is always the
    translation of line 10 of the input.
    """
    if file_format(path, None) in TABLES:
        raise DataError(
            f"{path}: is a table; need plain text. Write its text column to a .txt file first."
        )
    return _read_source_lines(path, watcher)


def describe_columns(paths: Sequence[str | Path], columns: Columns) -> str:
    """Describe in words which file or column is the source and which is the target."""
    if _are_plain(paths, columns):
        return f"source is {paths[0]}, target is {paths[1]}"
    resolved = _resolve_columns(paths[0], columns)
    description = f"source is column '{resolved.text}', target is column '{resolved.second}'"
    return description if resolved.header else f"no header, {description}"


def _are_plain(paths: Sequence[str | Path], columns: Columns) -> bool:
    """Whether the paths are two files of plain text; False for one table, an error for all else."""
    if not 1 <= len(paths) <= 2:
        listed = ", ".join(map(str, paths)) or "no path"
        raise DataError(
            f"{listed}: {len(paths)} files; {NEED}. Concatenate the files of each language first."
        )
    tables = [path for path in paths if file_format(path, None) in TABLES]
    if len(paths) == 1 and not tables:
        raise DataError(f"{paths[0]}: one file of plain text; {NEED}. Give the other file too.")
    if len(paths) == 2 and tables:
        raise DataError(f"{tables[0]}: a table and another file; {NEED}. Give the table alone.")
    if len(paths) == 2 and str(paths[0]) == str(paths[1]):
        raise DataError(
            f"{paths[0]}: given for both sides; need two different files. Give the other one."
        )
    for key, name in columns.by_field().items():
        if not tables or key not in COMMON_NAMES:
            reason = f"a translation has no {key} column" if tables else "plain text has no columns"
            raise DataError(f"{paths[0]}: {reason}, so there is no '{name}'. Omit {flag(key)}.")
    return not tables


def _read_parallel(paths: Sequence[str | Path], watcher: ErrorPolicy) -> Iterator[Pair]:
    """Pair the lines with the same number; if either line is bad, both are skipped."""
    sides = [every_line(path, watcher) for path in paths]
    for number, pair in enumerate(zip_longest(*sides), start=1):
        if None in pair:
            longer = 1 - pair.index(None)
            rest = chain([pair[longer]], sides[longer])
            return _refuse_rest(paths, longer, number, rest, watcher)
        errors = [(error, text) for _, text, error in pair if error]
        # An error without text means that the rest of the file cannot be read. Otherwise one error
        # is reported for each pair, because one pair is skipped.
        fatal = [(error, text) for error, text in errors if not text]
        for error, text in fatal or errors[:1]:
            watcher.bad(error, text)
        if fatal:
            return None
        if not errors:
            (_, source, _), (_, target, _) = pair
            yield from _pair(source, target, [f"{path}:{number}" for path in paths], watcher)


def _refuse_rest(
    paths: Sequence[str | Path],
    longer: int,
    first_missing: int,
    rest: Iterable[Line],
    watcher: ErrorPolicy,
) -> None:
    """Raise an error if one file still has lines where the other has ended, with both counts."""
    counts, suffixes = [first_missing - 1, first_missing - 1], ["", ""]
    for number, text, error in rest:
        if error and (number == first_missing or not text):
            watcher.bad(error, text)
        if error and not text:
            suffixes[longer] = " or more"
        else:
            counts[longer] = number
    if counts[longer] >= first_missing:
        descriptions = [
            f"{path} has {line_count:,}{suffix}"
            for path, line_count, suffix in zip(paths, counts, suffixes, strict=True)
        ]
        raise DataError(
            f"{paths[longer]}:{first_missing}: no matching line: {' lines, '.join(descriptions)}; "
            "need equally many lines. Look for a missing line or one that is split in two."
        )


def _pair(source: str, target: str, places: Sequence[str], watcher: ErrorPolicy) -> Iterator[Pair]:
    """Yield a pair if both sides have text; one blank side is an error, two are a blank record."""
    if source.strip() and target.strip():
        yield Pair(source, target, places[0])
    elif source.strip() or target.strip():
        side, where = ("target", places[1]) if source.strip() else ("source", places[0])
        error = DataError(
            f"{where}: the {side} is empty; need a sentence on both sides. Fill it in or remove "
            "the pair."
        )
        watcher.bad(error, f"{source}\t{target}")
    else:
        watcher.blank()


def _read_source_lines(path: str | Path, watcher: ErrorPolicy) -> Iterator[Pair]:
    for line, text, error in every_line(path, watcher):
        if error:
            watcher.bad(error, text)
            if not text:  # the rest of the file cannot be read
                return
            text = ""
        yield Pair(text if text.strip() else "", None, f"{path}:{line}")


def _resolve_columns(path: str | Path, requested: Columns) -> Columns:
    """Find the source and target columns: as requested, by their names, or the only ones left."""
    header, cells = sample_columns(path, requested, _is_header)
    nested = [cell for cell in cells.get(NESTED, []) if isinstance(cell, dict)]
    languages: dict[str, None] = dict.fromkeys(name for cell in nested for name in cell)
    names = list(languages or cells)
    chosen = requested.resolve(names, f"{path}: ").by_field()
    for key, common_names in COMMON_NAMES.items():
        matches = [
            name
            for name in names
            if name.strip().lower() in common_names and name not in chosen.values()
        ]
        chosen |= {key: matches[0]} if matches and key not in chosen else {}
    unassigned = [name for name in names if name not in chosen.values()]
    missing = [key for key in COMMON_NAMES if key not in chosen]
    # Without a header and any request, the first two columns are source and target.
    if len(unassigned) == len(missing) or (not header and not chosen):
        chosen |= dict(zip(missing, unassigned, strict=False))
    if len(set(chosen.values())) < len(COMMON_NAMES):
        raise DataError(
            f"{path}: cannot tell which of the columns {', '.join(names)} are the source and the "
            "target; need one of each. Name them with --text and --second."
        )
    return Columns.from_fields(chosen, header)


def _is_header(cells: Texts) -> bool:
    """Whether the first cells contain a common name of a column, or are all language codes."""
    common_names = {name for names in COMMON_NAMES.values() for name in names}
    first_cells = [values[0].strip() for values in cells.values()]
    return any(cell.lower() in common_names for cell in first_cells) or all(
        LANGUAGE.fullmatch(cell) for cell in first_cells
    )


def _read_table(path: str | Path, columns: Columns, watcher: ErrorPolicy) -> Iterator[Pair]:
    names_by_key = columns.by_field()

    def choose(names: Sequence[str]) -> list[str]:
        if NESTED in names and not set(names_by_key.values()) <= set(names):
            return [NESTED]
        return [find_column(key, name, names) for key, name in names_by_key.items()]

    for row in read_rows(path, choose, header=columns.header is not False, watcher=watcher):
        try:
            source, target = (_text(row, name) for name in names_by_key.values())
        except DataError as error:
            watcher.bad(error, row.raw)
            continue
        yield from _pair(source, target, (row.where, row.where), watcher)


def _text(row: TableRow, name: str) -> str:
    """Return the text of a row in a column, or in a language of its translation table."""
    if name not in row.cells:
        cells = row.cells[NESTED]
        if not isinstance(cells, dict) or name not in cells:
            raise DataError(
                f"{row.where}: {NESTED} is {cells!r:.60}; need an object with '{name}'."
            )
        row = replace(row, cells=cells)
    return require_unicode(row.text(name), row.where)


def files_of_languages(folder: Path, source: str, target: str) -> dict[str, tuple[Path, Path]]:
    """Return the files of both languages in a folder: train, dev and, if there are any, test."""
    if source == target:
        raise DataError(f"{folder}: from '{source}' to '{target}'; need two different languages.")
    files = _files_by_split(folder)
    languages = {language for paths_by_language in files.values() for language in paths_by_language}
    for language in (source, target):
        if language not in languages:
            raise DataError(
                f"{folder}: {unknown_name('language', language, languages)} Choose one of them."
            )
    paths_by_split: dict[str, tuple[Path, Path]] = {}
    for split, pattern in SPLITS.items():
        stems = [stem for stem in sorted(files) if re.fullmatch(pattern, stem)]
        complete = [files[stem] for stem in stems if {source, target} <= files[stem].keys()]
        if complete:
            paths_by_split[split] = complete[0][source], complete[0][target]
        elif split != "test":
            stem = stems[0] if stems else split
            lacking = sorted({source, target} - files.get(stem, {}).keys())
            missing = " and ".join(f"{stem}.{language}" for language in lacking)
            raise DataError(
                f"{folder}: {missing} missing; need both languages of {split}. Add what is missing."
            )
    return paths_by_split


def _files_by_split(folder: Path) -> dict[str, dict[str, Path]]:
    """List the files of a folder by the name of their split, such as train, and by language."""
    problem = "contains no file such as train.de"
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        paths, problem = [], str(error.strerror)
    files: dict[str, dict[str, Path]] = {}
    for path in paths:  # sorted: an uncompressed file comes first, and is kept
        stem, _, language = path.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")
        is_split = any(re.fullmatch(pattern, stem) for pattern in SPLITS.values())
        if is_split and f".{language}" not in FORMATS:
            files.setdefault(stem, {}).setdefault(language, path)
    if not files:
        raise DataError(f"{folder}: {problem}; need train.de, train.en and so on. Check the path.")
    return files
