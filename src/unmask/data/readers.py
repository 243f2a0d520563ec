"""Files -> texts: one at a time, with the place it came from, in constant memory.

    .txt                     a line is a text; blank lines are left out
    .jsonl                   an object a line; the text is under "text", or --column
    .csv, .tsv, .parquet     the text is the column "text", the only column, or --column

Each of them also as .gz or .zst. "-" is standard input, read as .txt. What is bad goes to a
`Watcher`, who refuses it, or writes it down and lets reading go on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.data.lines import REFUSE, Watcher, kind_of, read_lines
from unmask.data.tables import read_rows
from unmask.errors import DataError, unknown

TEXT = "text"  # the usual name of the column


@dataclass(frozen=True, slots=True)
class Record:
    """One text and its place, as `path:line` or `path: row N`."""

    text: str
    where: str


def read_texts(
    path: str | Path, *, column: str | None = None, watcher: Watcher = REFUSE
) -> Iterator[Record]:
    """Yield the texts of a file in their order; blank ones are left out.

    What is wrong with the path itself is said at once, not when the first text is asked for.
    """
    kind = kind_of(path)
    if kind != ".txt":
        return _column(path, column, kind, watcher)
    if column:
        raise DataError(
            f"{path}: plain text has no column '{column}'. Leave --column out, or give a table."
        )
    return _plain(path, watcher)


def refuse_empty(path: str | Path, records: Iterator[Record]) -> Iterator[Record]:
    """Pass records on, and say so if there was none."""
    count = 0
    for count, record in enumerate(records, start=1):  # noqa: B007
        yield record
    if not count:
        raise DataError(f"{path}: no text in it; need at least one. Is it the right file?")


def _plain(path: str | Path, watcher: Watcher) -> Iterator[Record]:
    for line, text in read_lines(path, watcher):
        if text.strip():
            yield Record(text, f"{path}:{line}")


def _column(path: str | Path, wanted: str | None, kind: str, watcher: Watcher) -> Iterator[Record]:
    """The texts of one column of a table."""
    quotes = " in quotes" if kind == ".jsonl" else ""

    def choose(names: Sequence[str]) -> list[str]:
        if wanted is None and len(names) == 1 and kind != ".jsonl":
            return [names[0]]
        if (wanted or TEXT) in names:
            return [wanted or TEXT]
        raise DataError(f"{unknown('column', wanted or TEXT, names)} Choose with --column.")

    for row in read_rows(path, choose, watcher=watcher):
        ((name, value),) = row.cells.items()
        missing = value is None and kind == ".parquet"  # there a cell may be empty
        if not isinstance(value, str) and not missing:
            error = DataError(f"{row.where}: '{name}' is {value!r:.60}; need a text{quotes}.")
            watcher.bad(error, row.raw)
        elif value is not None and value.strip():
            yield Record(value, row.where)
        else:
            watcher.blank()
<<<<<<< HEAD
=======


def _json_text(line: str, column: str, where: str) -> str:
    record = parse_json(line, where=where, kind=DataError)
    if column not in record:
        raise DataError(f"{where}: {unknown('column', column, record)} Choose with --column.")
    value = record[column]
    if not isinstance(value, str):
        raise DataError(f"{where}: '{column}' is {value!r:.60}; need a text in quotes.")
    return value


def _cells(path: Path, kind: str, column: str | None, watcher: Watcher) -> Iterator[Record]:
    """A table of text: every cell is a text, whatever it looks like."""
    csv.field_size_limit(2**31 - 1)
    at = 1

    def lines() -> Iterator[str]:
        nonlocal at
        for at, text in read_lines(path, watcher, ends=kind == ".csv"):  # noqa: B007
            yield text

    rows: Iterator[list[str]]
    if kind == ".tsv":  # GLUE's quotes are literal
        rows = (line.split("\t") for line in lines() if line)
    else:
        rows = csv.reader(lines(), strict=True)
    try:
        names = next(rows, [])
        if not names:
            error = DataError(f"{path}: empty; need a header and a row. Is it the right file?")
            return watcher.bad(error, "")
        which = names.index(_column(path, names, column))
        for cells in rows:
            if not cells:
                continue
            if len(cells) != len(names):
                error = DataError(
                    f"{path}:{at}: the header has {len(names)} columns and this row {len(cells)}; "
                    "need as many. Mend it; a cell with the separator in it needs quotes."
                )
                watcher.bad(error, "\t".join(cells))
            elif cells[which].strip():
                yield Record(cells[which], f"{path}:{at}")
            else:
                watcher.blank()
    except csv.Error as problem:  # where the next row would begin, nobody can say
        error = DataError(
            f"{path}:{at}: a quote is never closed or stands alone ({problem}); need pairs. Mend "
            "it: the file cannot be read on from here."
        )
        watcher.bad(error, "")


def _parquet(path: Path, column: str | None, watcher: Watcher) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet

    row = 0
    try:
        with _opened(path, watcher) as file:
            source = path if path.suffix.lower() not in PACKED else pa.BufferReader(file.read())
            table = pyarrow.parquet.ParquetFile(source)
            name = _column(path, table.schema_arrow.names, column)
            for piece in table.iter_batches(columns=[name], batch_size=4096):
                for value in piece.column(0).to_pylist():
                    row += 1
                    where = f"{path}: row {row}"
                    if value is not None and not isinstance(value, str):
                        error = DataError(f"{where}: '{name}' is {value!r:.60}; need a text.")
                        watcher.bad(error, repr(value))
                    elif value is not None and value.strip():
                        yield Record(value, where)
                    else:
                        watcher.blank()
    except (pa.ArrowException, OSError, EOFError, zlib.error) as problem:
        error = DataError(f"{path}: not a readable parquet file: {_short(problem)} Fetch it again.")
        watcher.bad(error, "")


def _column(path: Path, names: list[str], wanted: str | None) -> str:
    if not names:
        raise DataError(f"{path}: empty; need a header and a row. Is it the right file?")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{path}:1: the column '{repeated}' is given twice. Rename one of them.")
    if wanted is None and len(names) == 1:
        return names[0]
    if (wanted or "text") in names:
        return wanted or "text"
    raise DataError(f"{path}: {unknown('column', wanted or 'text', names)} Choose with --column.")


def read_lines(
    path: str | Path, watcher: Watcher = REFUSE, *, ends: bool = False
) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file, numbered from 1, split at \\n alone; with their ends if asked."""
    offset = line = 0
    with _opened(path, watcher) as file:
        while True:
            try:
                raw, size = _next_line(file, watcher.longest)
            except (OSError, EOFError, zlib.error) as problem:
                error = DataError(
                    f"{path}:{line + 1}: cannot be read on from here: {_short(problem)} The file "
                    "is cut off or damaged. Fetch it again."
                )
                return watcher.bad(error, "")
            if not raw:
                return None
            line += 1
            if line == 1 and raw.startswith(BOM):
                raw, offset, size = raw[len(BOM) :], len(BOM), size - len(BOM)
            try:
                text = _decoded(raw, size, f"{path}:{line}", offset)
                yield line, text if ends else text.removesuffix("\n").removesuffix("\r")
            except DataError as error:
                watcher.bad(error, raw.decode("utf-8", "backslashreplace"))
            offset += size


def _next_line(file: IO[bytes], longest: int | None) -> tuple[bytes, int]:
    """The next line, and its size; of one that is too long, only the beginning."""
    raw = file.readline(-1 if longest is None else longest)
    size = len(raw)
    if longest is not None and size == longest and not raw.endswith(b"\n"):
        while rest := file.readline(longest):
            size += len(rest)
            if rest.endswith(b"\n"):
                break
        size = max(size, longest + 1)
    return raw, size


def _decoded(raw: bytes, size: int, where: str, offset: int) -> str:
    if size > len(raw):
        raise DataError(
            f"{where}: a line of {size:,} bytes; at most {len(raw):,} are read as one text. Put "
            "line breaks between its documents or sentences."
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: byte {offset + error.start} of the file is not UTF-8 "
            f"(0x{raw[error.start]:02x}); need UTF-8 text. Convert it, for instance with "
            f"iconv -f {_guess(raw)} -t UTF-8."
        ) from None
    return text


def _guess(raw: bytes) -> str:
    """The likeliest other encoding of a line that is not UTF-8."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or raw.count(0) > len(raw) // 4:
        return "UTF-16"
    try:
        raw.decode("gb18030")
    except UnicodeDecodeError:
        return "LATIN1"
    return "GB18030" if sum(byte > 0x80 for byte in raw) > len(raw) // 3 else "LATIN1"


@contextmanager
def _opened(path: str | Path, watcher: Watcher) -> Iterator[IO[bytes]]:
    """A file of bytes, unpacked on the way if its name ends in .gz or .zst."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    path = Path(path)
    try:
        with path.open("rb") as file:
            watcher.opened(path, file)
            if path.suffix.lower() == ".gz":
                import gzip

                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield unpacked  # type: ignore[misc]
            elif path.suffix.lower() == ".zst":
                import io

                import pyarrow as pa

                with pa.input_stream(file, compression="zstd") as stream:
                    yield io.BufferedReader(stream)
            else:
                yield file
    except PermissionError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Ask for the right to read it."
        ) from None


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
    return text[:200] + "."
>>>>>>> main
