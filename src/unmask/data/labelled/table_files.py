"""Rows -> a table file: CSV, TSV, JSONL or parquet, which is complete or not there at all.

    .jsonl       an object per row; a column that the row lacks is missing from it
    .csv         cells with commas, quotes or line breaks are quoted
    .tsv         only cells with tabs, line breaks or a quote at the beginning are quoted
    .parquet     typed columns; lists and objects stay lists and structs

In text, a missing value is an empty cell, and whatever is not text is spelled as in JSON. Rows are
read several times and never kept, so the memory is constant however many there are.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from unmask.data.read.lines import COMPRESSED, IGNORE, file_ending, open_bytes
from unmask.system.disk import check_output_file, write_file
from unmask.system.errors import SettingsError

Row = Mapping[str, object]
Rows = Callable[[], Iterator[Row]]  # the same rows at every call

WRITTEN = (".csv", ".tsv", ".jsonl", ".parquet")
SEPARATORS = {".csv": ",", ".tsv": "\t"}
BATCH = 4096  # rows of a parquet file that are in memory together


def check_table_file(path: Path, source: str, *, overwrite: bool) -> None:
    """Refuse a table file that cannot be written, before any work is done for it.

    `source` is the file that the rows are read from.
    """
    ending = path.suffix.lower()
    if ending not in WRITTEN:
        raise SettingsError(
            f"--out {path}: unknown ending '{path.suffix}'; need one of {', '.join(WRITTEN)}."
        )
    if ending == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise SettingsError(
                f"--out {path}: needs pyarrow, which is not installed. Run: pip install pyarrow"
            ) from None
    if not path.exists() or path.is_dir():
        check_output_file(path)
    elif not overwrite:
        raise SettingsError(
            f"--out {path}: already exists. Replace it with --overwrite, or give another --out."
        )
    elif path.is_symlink() or not path.is_file():
        raise SettingsError(f"--out {path}: is not an ordinary file. Give another --out.")
    elif source != "-" and Path(source).exists() and path.samefile(source):
        raise SettingsError(f"--out {path}: is the input. Give another --out.")


def write_table(
    path: Path, ending: str, names: Sequence[str], rows: Rows, source: str | Path = "-"
) -> None:
    """Write rows with the named columns to a file in the format of an ending.

    Columns of a parquet `source` keep their types in parquet; the types of others are inferred.
    """
    if ending == ".parquet":
        _write_parquet(path, names, rows, source)
    else:
        lines = _objects(names, rows()) if ending == ".jsonl" else _cells(ending, names, rows())
        # A lone surrogate cannot be UTF-8; its replacement is how JSON spells it.
        write_file(path, (line.encode("utf-8", "backslashreplace") for line in lines))


def _objects(names: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        yield f"{_json({name: row[name] for name in names if name in row})}\n"


def _cells(ending: str, names: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    yield _line(names, ending)
    for row in rows:
        yield _line([_text(row.get(name)) for name in names], ending)


def _line(cells: Iterable[str], ending: str) -> str:
    return SEPARATORS[ending].join(_quoted(cell, ending) for cell in cells) + "\n"


def _quoted(cell: str, ending: str) -> str:
    """Quote a cell if a reader would otherwise take it for something else.

    Readers of TSV take a quote inside a cell as it is, so it is no reason to quote the cell.

    >>> print(_quoted('a "b", c', ".csv"), _quoted('a "b", c', ".tsv"))
    "a ""b"", c" a "b", c
    """
    special = {SEPARATORS[ending], "\n", "\r"}
    quotes = cell.startswith('"') if ending == ".tsv" else '"' in cell
    if not quotes and not any(character in cell for character in special):
        return cell
    return '"' + cell.replace('"', '""') + '"'


def _text(value: object) -> str:
    """Spell a value in a table of text."""
    if value is None:
        return ""
    plain = _plain(value)
    return plain if isinstance(plain, str) else _json(plain)


def _json(value: object) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: object) -> object:
    """Turn a value into what JSON can spell; dates and other types become their text."""
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None  # JSON has no NaN
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _write_parquet(path: Path, names: Sequence[str], rows: Rows, source: str | Path) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    types = _types_of_file(source)
    inferred = _inferred_types([name for name in names if name not in types], rows())
    types |= {name: kind or pa.string() for name, kind in inferred.items()}
    schema = pa.schema([(name, types[name]) for name in names])
    with ParquetWriter(path, schema) as writer:
        for batch in _batches(rows()):
            arrays = [
                pa.array(_column(name, batch, as_text=not inferred.get(name, True)), types[name])
                for name in names
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _types_of_file(source: str | Path) -> dict[str, Any]:
    """Return the types of the columns of a parquet file, without those that cannot be rebuilt."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    if file_ending(source) != ".parquet":
        return {}
    with open_bytes(source, IGNORE) as file:
        # A compressed stream cannot seek, so it is decompressed first, as for reading the rows.
        packed = Path(source).suffix.lower() in COMPRESSED
        schema = ParquetFile(pa.BufferReader(file.read()) if packed else file).schema_arrow
    types = {field.name: field.type for field in schema}
    # Categories come back as their values, and extension types as values of another type.
    types = {n: t.value_type if pa.types.is_dictionary(t) else t for n, t in types.items()}
    return {n: t for n, t in types.items() if not isinstance(t, pa.BaseExtensionType)}


def _inferred_types(names: Sequence[str], rows: Iterator[Row]) -> dict[str, Any]:
    """Infer the type of each column from all rows; None for one that must be spelled as text."""
    import pyarrow as pa

    types: dict[str, Any] = dict.fromkeys(names, pa.null())
    for batch in _batches(rows):
        for name in names:
            if types[name] is None:
                continue
            merged = None
            # What has no common type, such as texts and numbers, is an error of pyarrow.
            with suppress(pa.ArrowException, OverflowError, ValueError, TypeError):
                inferred = pa.array(_column(name, batch, as_text=False)).type
                schemas = [pa.schema([(name, kind)]) for kind in (types[name], inferred)]
                merged = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
            types[name] = merged if merged is not None and _storable(merged) else None
    return types


def _storable(kind: Any) -> bool:
    """Whether parquet can hold a type: it has no objects without fields."""
    parts = [kind.field(i).type for i in range(kind.num_fields)]
    return (bool(parts) or str(kind) != "struct<>") and all(map(_storable, parts))


def _column(name: str, batch: Sequence[Row], *, as_text: bool) -> list[object]:
    """Return the cells of a column; cells `as_text` are text as in a CSV file."""
    cells = [row.get(name) for row in batch]
    if as_text:
        return [None if cell is None else _storable_text(_text(cell)) for cell in cells]
    return [_storable_text(cell) if isinstance(cell, str) else cell for cell in cells]


def _storable_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while batch := list(islice(rows, BATCH)):
        yield batch
