"""Parallel text -> pairs: a sentence and its translation, with the place they came from.

    two files    plain text of any ending: line i of one is line i of the other
    one table    .tsv, .csv, .jsonl, .parquet: two columns; in .jsonl and .parquet also
                 {"translation": {"de": "...", "en": "..."}}
    a folder     train.de and train.en, val.de and val.en, test*.de and test*.en

Each file also as .gz or .zst. Which column is what is inferred, and told; a flag decides otherwise.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from unmask.data.columns import LOOKED_AT, NAMES, Columns
from unmask.data.lines import FORMATS, GLANCE, REFUSE, Watcher, kind_of, read_lines, whole
from unmask.data.tables import TABLES, Row, read_rows, refuse_repeated
from unmask.errors import DataError, unknown

USUAL = {"text": ("source", "src"), "second": ("target", "tgt")}  # names of columns
NESTED = "translation"  # a table by language, as the `datasets` library has it
LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?")  # de, zh-Hans, pt_BR
NEED = "need two files of plain text, or one table (.csv, .jsonl, .parquet, .tsv)"
SPLITS = {"train": "train", "dev": "dev|val|valid|validation", "test": "test.*"}  # names of files
ENDED = sys.maxsize  # the line of a file that has no more


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation; None where it is not known."""

    source: str
    target: str | None
    where: str

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same as another one."""
        return (self.source,) if self.target is None else (self.source, self.target)


def read_pairs(
    paths: Sequence[str | Path], columns: Columns, watcher: Watcher = REFUSE
) -> Iterator[Pair]:
    """Yield the pairs of two files, or of one table, in their order; blank ones are left out.

    What is wrong with the paths or the columns is said at once; that one file is longer than the
    other, when the shorter one ends.
    """
    if _are_plain(paths, columns):
        return _parallel(paths, watcher)
    return _rows(paths[0], _settled(paths[0], columns), watcher)


def read_sources(path: str | Path, watcher: Watcher = REFUSE) -> Iterator[Pair]:
    """Yield every line of plain text, to be translated; "-" is standard input.

    Blank lines, and lines that the watcher leaves out, are empty texts: what is made of the tenth
    line stays in the tenth place.
    """
    if kind_of(path, None) in TABLES:
        raise DataError(f"{path}: a table; need plain text. Write its column to a .txt first.")
    return _every_line(path, watcher)


def inferred(paths: Sequence[str | Path], columns: Columns) -> str:
    """Which file or column is the source and which the target, in words."""
    if _are_plain(paths, columns):
        return f"source is {paths[0]}, target is {paths[1]}"
    found = _settled(paths[0], columns)
    said = f"source is column '{found.text}', target is column '{found.second}'"
    return said if found.header else f"no header, {said}"


def _are_plain(paths: Sequence[str | Path], columns: Columns) -> bool:
    """Are they two files of plain text? Else it is one table; anything else is refused."""
    if not 1 <= len(paths) <= 2:
        named = ", ".join(map(str, paths)) or "no path"
        raise DataError(f"{named}: {len(paths)} files; {NEED}. Join those of one language first.")
    tables = [path for path in paths if kind_of(path, None) in TABLES]
    if len(paths) == 1 and not tables:
        raise DataError(f"{paths[0]}: one file of plain text; {NEED}. Name the other one too.")
    if len(paths) == 2 and tables:
        raise DataError(f"{tables[0]}: a table and another file; {NEED}. Name the table alone.")
    if len(paths) == 2 and str(paths[0]) == str(paths[1]):
        raise DataError(f"{paths[0]}: given as both sides; need two files. Name the other one.")
    for what, name in columns.given().items():
        if not tables or what == "label":
            has = "a translation has no label" if tables else "plain text has no columns"
            raise DataError(f"{paths[0]}: {has}, such as '{name}'. Leave --{what} out.")
    return not tables


class _Side(Watcher):
    """A file of two, line by line. Of a pair that is bad on both sides, one is told."""

    def __init__(self, path: str | Path, watcher: Watcher) -> None:
        self.path, self.watcher, self.longest = path, watcher, watcher.longest
        self.other = self
        self.count = 0  # lines, good or bad, that were read
        self.line = 0  # the last good one
        self.cut = False  # nobody knows how it goes on
        self.lines: Iterator[tuple[int, str | None]] = read_lines(path, self)

    def step(self) -> str | None:
        """The next line that is good; None at the end."""
        self.line, text = next(self.lines, (ENDED, None))
        if text is not None:
            self.count = self.line
        return text

    def bad(self, error: DataError, raw: str) -> None:
        """Tell it, unless the line's partner was bad too: then the pair has been told."""
        self.cut = not raw  # the rest of a file, not a line
        self.count += not self.cut
        if self.cut or self.count >= self.other.line:
            self.watcher.bad(error, raw)

    def opened(self, path: str | Path, file: IO[bytes]) -> None:
        """Pass it on."""
        self.watcher.opened(path, file)


def _parallel(paths: Sequence[str | Path], watcher: Watcher) -> Iterator[Pair]:
    """Lines of the same number; one whose partner could not be read is left out with it."""
    source, target = (_Side(path, watcher) for path in paths)
    source.other, target.other = target, source
    text, translation = source.step(), target.step()
    while text is not None and translation is not None:
        line = min(source.line, target.line)
        if source.line == target.line:
            places = [f"{side.path}:{line}" for side in (source, target)]
            yield from _paired(text, translation, places, watcher)
        if source.line == line:
            text = source.step()
        if target.line == line:
            translation = target.step()
    _refuse_rest(source, target)


def _paired(source: str, target: str, places: Sequence[str], watcher: Watcher) -> Iterator[Pair]:
    """A pair, if there is something on both sides."""
    if source.strip() and target.strip():
        yield Pair(source, target, places[0])
    elif source.strip() or target.strip():
        side, where = ("target", places[1]) if source.strip() else ("source", places[0])
        what = f"{where}: the {side} is empty; need a sentence on both sides. Fill it or drop both."
        watcher.bad(DataError(what), f"{source}\t{target}")
    else:
        watcher.blank()


def _refuse_rest(source: _Side, target: _Side) -> None:
    """One file has ended: so must the other, unless the first was cut off, which has been told."""
    for side in (source, target):
        ended = side.other
        known = ended.line == ENDED and not ended.cut
        while known and side.step() is not None:
            pass
        if known and side.count > ended.count:
            counts = [f"{s.path} has {s.count:,}{' or more' * s.cut}" for s in (source, target)]
            raise DataError(
                f"{side.path}:{ended.count + 1}: no line to go with it: {' lines, '.join(counts)}; "
                "need as many. Find the line that is missing or cut in two."
            )


def _every_line(path: str | Path, watcher: Watcher) -> Iterator[Pair]:
    side, given = _Side(path, watcher), 0
    while side.line != ENDED:
        text = side.step()
        for line in range(given + 1, side.count + (text is None)):  # which could not be read
            yield Pair("", None, f"{path}:{line}")
        if text is not None:
            yield Pair(text if text.strip() else "", None, f"{path}:{side.line}")
        given = side.count


def _settled(path: str | Path, asked: Columns) -> Columns:
    """Which column is what: as asked, by its name, or because there is no other."""
    rows = read_rows(path, list, header=False, watcher=GLANCE)  # the header too, if there is one
    found = [row.cells for row in islice(rows, LOOKED_AT)]
    if not found:
        next(iter(read_rows(path, list)), None)  # says what is wrong with the first
        raise DataError(f"{path}: no row in it; need at least one. Is it the right file?")
    header = True
    if kind_of(path, TABLES) in (".csv", ".tsv"):
        first = list(found[0].values())
        header = _is_header(first, asked) if asked.header is None else asked.header
        names = first if header else list(found[0])
    else:
        nested = [cells[NESTED] for cells in found if isinstance(cells.get(NESTED), dict)]
        names = list(dict.fromkeys(name for cells in nested or found for name in cells))
    refuse_repeated(names, path)
    chosen = {what: _known(what, name, names, f"{path}: ") for what, name in asked.given().items()}
    for what, usual in USUAL.items():
        named = [n for n in names if n.strip().lower() in usual and n not in chosen.values()]
        chosen |= {what: named[0]} if named and what not in chosen else {}
    free = [name for name in names if name not in chosen.values()]
    missing = [what for what in USUAL if what not in chosen]
    if len(free) == len(missing) or (not header and not chosen):
        chosen |= dict(zip(missing, free, strict=False))
    if len(set(chosen.values())) < len(USUAL):
        raise DataError(
            f"{path}: cannot tell the source and the target among the columns {', '.join(names)}; "
            "need one for each. Name them with --text and --second."
        )
    return Columns(**chosen, header=header)


def _is_header(first: Sequence[str], asked: Columns) -> bool:
    """A header has a name that people use, or that was asked for, or codes of languages alone."""
    known = {name for names in (*USUAL.values(), *NAMES.values()) for name in names}
    named = any(not name.isdecimal() for name in asked.given().values())
    usual = any(cell.strip().lower() in known for cell in first)
    return named or usual or all(LANGUAGE.fullmatch(cell.strip()) for cell in first)


def _known(what: str, name: str, names: Sequence[str], where: str = "") -> str:
    """The column of that name, or of that number."""
    if name not in names and name.isdecimal() and 1 <= int(name) <= len(names):
        return names[int(name) - 1]
    if name not in names:
        raise DataError(f"{where}{unknown('column', name, names)} Choose with --{what}.")
    return name


def _rows(path: str | Path, columns: Columns, watcher: Watcher) -> Iterator[Pair]:
    wanted = columns.given()

    def choose(names: Sequence[str]) -> list[str]:
        if NESTED in names and not set(wanted.values()) <= set(names):
            return [NESTED]
        return [_known(what, name, names) for what, name in wanted.items()]

    nothing = "" if kind_of(path, TABLES) == ".parquet" else None  # there a cell may be empty
    for row in read_rows(path, choose, header=columns.header is not False, watcher=watcher):
        try:
            source, target = (_text(row, name, nothing) for name in wanted.values())
        except DataError as error:
            watcher.bad(error, row.raw)
            continue
        yield from _paired(source, target, (row.where, row.where), watcher)


def _text(row: Row, name: str, nothing: str | None) -> str:
    """What a row says in a column or a language."""
    cells = row.cells if name in row.cells else row.cells[NESTED]
    if not isinstance(cells, dict) or name not in cells:
        raise DataError(f"{row.where}: {NESTED} is {cells!r:.60}; need '{name}' in it. Mend it.")
    value = nothing if cells[name] is None else cells[name]
    if not isinstance(value, str):
        raise DataError(f"{row.where}: '{name}' is {value!r:.60}; need a text. Mend it.")
    return whole(value, row.where)


def find_folder(folder: Path, source: str, target: str) -> dict[str, tuple[Path, Path]]:
    """The files of two languages in a folder: of train and dev, and of a test if there is one."""
    if source == target:
        raise DataError(f"{folder}: from '{source}' to '{target}'; need two languages. Change one.")
    files = _by_language(folder)
    known = {language for paths in files.values() for language in paths}
    for language in (source, target):
        if language not in known:
            raise DataError(f"{folder}: {unknown('language', language, known)} Choose one of them.")
    found: dict[str, tuple[Path, Path]] = {}
    for split, pattern in SPLITS.items():
        stems = [stem for stem in sorted(files) if re.fullmatch(pattern, stem)]
        stem = next((stem for stem in stems if {source, target} <= files[stem].keys()), None)
        if stem is not None:
            found[split] = files[stem][source], files[stem][target]
        elif split != "test":
            stem = stems[0] if stems else split
            lacking = sorted({source, target} - files.get(stem, {}).keys())
            missing = " and ".join(f"{stem}.{language}" for language in lacking)
            raise DataError(f"{folder}: {missing} missing; need both languages of {split}. Add it.")
    return found


def _by_language(folder: Path) -> dict[str, dict[str, Path]]:
    """The files of a folder by the name of their part, such as train, and by their language."""
    why = "no file such as train.de in it"
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        paths, why = [], str(error.strerror)
    files: dict[str, dict[str, Path]] = {}
    for path in paths:  # of the same name, the one that is not packed comes first
        stem, _, language = path.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")
        ours = any(re.fullmatch(pattern, stem) for pattern in SPLITS.values())
        if ours and f".{language}" not in FORMATS:
            files.setdefault(stem, {}).setdefault(language, path)
    if not files:
        raise DataError(f"{folder}: {why}; need train.de, train.en and so on. Check the path.")
    return files
