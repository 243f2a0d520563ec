"""Files -> records: one text at a time, with the place it came from, in constant memory.

    .txt                     a line is a text; blank lines are left out
    .jsonl                   an object a line; the text is under "text", or --column
    .csv, .tsv, .parquet     the text is the column "text", the only column, or --column

Each of them also as .gz or .zst. "-" is standard input, read as .txt.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from unmask.errors import DataError, unknown

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
PACKED = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True)
class Record:
    """One text and its place, as `path:line` or `path:row`."""

    text: str
    where: str


def read_texts(path: str | Path, *, column: str | None = None) -> Iterator[Record]:
    """Yield the texts of a file in their order; blank ones are left out.

    What is wrong with the path itself is said at once, not when the first text is asked for.
    """
    kind = _kind(path)
    if kind in (".csv", ".tsv", ".parquet"):
        return _table(Path(path), kind, column)
    if kind == ".txt" and column:
        raise DataError(
            f"{path}: plain text has no column '{column}'. Leave --column out, or give a table."
        )
    return _json_lines(path, column or "text") if kind == ".jsonl" else _plain(path)


def refuse_empty(path: str | Path, records: Iterator[Record]) -> Iterator[Record]:
    """Pass records on, and say so if there was none."""
    count = 0
    for count, record in enumerate(records, start=1):  # noqa: B007
        yield record
    if not count:
        raise DataError(f"{path}: no text in it; need at least one. Is it the right file?")


def _kind(path: str | Path) -> str:
    """The format that a name tells: its ending, below .gz or .zst."""
    if str(path) == "-":
        return ".txt"
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file. Check the path.")
    if path.is_dir():
        raise DataError(f"{path}: a folder; need a file. Name the files in it one by one.")
    suffixes = [suffix for suffix in path.suffixes[-2:] if suffix not in PACKED]
    kind = suffixes[-1].lower() if suffixes else ".txt"
    if kind not in FORMATS:
        raise DataError(f"{path}: {unknown('format', kind, FORMATS)}")
    return kind


def _plain(path: str | Path) -> Iterator[Record]:
    for line, text in _lines(path):
        if text.strip():
            yield Record(text, f"{path}:{line}")


def _json_lines(path: str | Path, column: str) -> Iterator[Record]:
    for line, text in _lines(path):
        if not text.strip():
            continue
        where = f"{path}:{line}"
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else error
            raise DataError(f"{where}: not valid JSON: {reason}. One object a line.") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: a {type(record).__name__}; need an object {{...}} a line.")
        if column not in record:
            raise DataError(f"{where}: {unknown('column', column, record)} Choose with --column.")
        value = record[column]
        if not isinstance(value, str):
            raise DataError(f"{where}: '{column}' is {value!r:.60}; need a text in quotes.")
        if value.strip():
            yield Record(value, where)


def _table(path: Path, kind: str, column: str | None) -> Iterator[Record]:
    """Tables, read by pyarrow in pieces."""
    import pyarrow as pa

    try:
        for name, first_row, values in _pieces(path, kind, column):
            for row, value in enumerate(values, start=first_row):
                if value is not None and not isinstance(value, str):
                    raise DataError(f"{path}: row {row}: '{name}' is {value!r:.60}; need a text.")
                if value is not None and value.strip():
                    yield Record(value, f"{path}: row {row}")
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a readable {kind[1:]} file: {_short(error)}") from None


def _pieces(path: Path, kind: str, column: str | None) -> Iterator[tuple[str, int, list[Any]]]:
    """The chosen column's name, the number of the first row of a piece, the piece's values."""
    import pyarrow.csv
    import pyarrow.parquet

    row = 1
    if kind == ".parquet":
        table = pyarrow.parquet.ParquetFile(path)
        name = _column(path, table.schema_arrow.names, column)
        for piece in table.iter_batches(columns=[name], batch_size=4096):
            yield name, row, piece.column(0).to_pylist()
            row += piece.num_rows
        return
    with _opened(path) as file:
        parse = pyarrow.csv.ParseOptions(
            delimiter="\t" if kind == ".tsv" else ",",
            quote_char=False if kind == ".tsv" else '"',  # GLUE's quotes are literal
            newlines_in_values=kind == ".csv",
        )
        reader = pyarrow.csv.open_csv(file, parse_options=parse)
        name = _column(path, reader.schema.names, column)
        for piece in reader:
            yield name, row, piece.column(name).to_pylist()
            row += piece.num_rows


def _column(path: Path, names: list[str], wanted: str | None) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if (wanted or "text") in names:
        return wanted or "text"
    raise DataError(f"{path}: {unknown('column', wanted or 'text', names)} Choose with --column.")


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file, numbered from 1, split at \\n alone."""
    offset = 0
    with _opened(path) as file:
        line = 0
        while True:
            try:
                raw = file.readline()
            except (OSError, EOFError) as error:
                raise DataError(
                    f"{path}:{line + 1}: cannot be read on from here: {_short(error)} The file "
                    "is cut off or damaged. Fetch it again."
                ) from None
            if not raw:
                return
            line += 1
            try:
                text = raw.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}:{line}: byte {offset + error.start} of the file is not UTF-8 "
                    f"(0x{raw[error.start]:02x}); need UTF-8 text. Convert it, for instance with "
                    f"iconv -f {_guess(raw)} -t UTF-8."
                ) from None
            offset += len(raw)
            yield line, text.removesuffix("\n").removesuffix("\r")


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
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    """A file of bytes, unpacked on the way if its name ends in .gz or .zst."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    path = Path(path)
    try:
        if path.suffix not in PACKED:
            with path.open("rb") as file:
                yield file
            return
        if path.suffix == ".gz":
            import gzip

            with gzip.open(path, "rb") as unpacked:
                yield unpacked  # type: ignore[misc]
            return
        import io

        import pyarrow as pa

        with pa.input_stream(str(path), compression="zstd") as stream:
            yield io.BufferedReader(stream)
    except PermissionError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
    return text[:200] + "."
