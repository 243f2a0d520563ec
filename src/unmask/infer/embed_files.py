"""File of texts -> file of vectors, in constant memory and resumable.

Vectors are saved group by group, as the engine computes them (`vector_files`). A resumed job reads
the texts again and skips those whose vectors are on disk already.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Unpack

from unmask.checkpoint.integrity import fingerprint
from unmask.data.read.lines import REFUSE, ErrorPolicy
from unmask.data.read.texts import Record, read_texts, refuse_empty
from unmask.infer.embed import DEFAULTS, EmbedOptions, width_of
from unmask.infer.engine import GROUP
from unmask.infer.model import Model
from unmask.infer.vector_files import json_line, open_vectors, publish
from unmask.system.console import Console
from unmask.system.disk import check_output_file
from unmask.system.errors import DataError, SettingsError, TextTooLong


def embed_lines(
    model: Model,
    source: str,
    *,
    column: str | None = None,
    watcher: ErrorPolicy = REFUSE,
    **options: Unpack[EmbedOptions],
) -> Iterator[str]:
    """Yield the vector of each line or record, also of blank ones, as a line of JSON."""
    return map(json_line, model.embeddings(_texts(source, column, watcher), **options))


def embed_file(
    model: Model,
    source: str,
    out: Path,
    *,
    column: str | None = None,
    progress: Callable[[int], None] = lambda texts: None,
    say: Callable[[str], None] = Console().say,
    watcher: ErrorPolicy = REFUSE,
    **options: Unpack[EmbedOptions],
) -> int:
    """Write one vector per line or record to a .npy, .parquet or .jsonl file; return their number.

    Row N is line N of plain text, or record N of a table. A blank line is embedded as empty text.
    """
    check_output_file(out)
    if out.suffix == ".parquet" and source == "-":
        raise SettingsError(
            f"--out {out}: a .parquet file also holds the texts, which are read a second time, and "
            "standard input can be read only once. Give a file of texts, or use .npy or .jsonl."
        )
    read_texts(source, column=column)  # refuses a wrong path before work begins
    description = _job_description(model, source, column, options)
    width = width_of(options, model.network.config.width)
    with open_vectors(out, width, description) as rows:
        resumed_rows = rows.safe
        if resumed_rows:
            say(f"{out}: resuming after {resumed_rows:,} vectors that are already saved")
        # Skipped texts are still read, so that blank lines among them are counted.
        texts = islice(_texts(source, column, watcher), resumed_rows, None)
        try:
            for vector in model.embeddings(texts, **options):
                rows.add(vector)
                # Save whole groups only. A resumed job then forms the groups that an uninterrupted
                # one would have formed, packs the same rows and writes the same bytes.
                if not rows.count % GROUP:
                    rows.save()
                progress(1)
        except TextTooLong as error:
            raise _with_location(error, source, column, resumed_rows) from None
        # If the file was written to while it was read, vectors no longer belong to its lines.
        if description != _job_description(model, source, column, options):
            raise DataError(
                f"{source}: was changed while it was read, so the vectors mix old and new texts "
                "and were removed. Run the command again."
            )
        # A .parquet file also holds the texts, which are read once more. Without the watcher: the
        # first reading has reported bad and counted blank lines.
        publish(rows, out, _texts(source, column))
        return rows.count


def _texts(source: str, column: str | None, watcher: ErrorPolicy = REFUSE) -> Iterator[str]:
    return (record.text for record in _records(source, column, watcher))


def _records(source: str, column: str | None, watcher: ErrorPolicy = REFUSE) -> Iterator[Record]:
    """Yield every line or record, also blank ones, so that row and line numbers agree."""
    records = read_texts(source, column=column, watcher=watcher, blanks=True)
    return refuse_empty(source, records)


def _job_description(
    model: Model, source: str, column: str | None, options: EmbedOptions
) -> dict[str, object] | None:
    """Describe all that the vectors depend on; None for standard input, which cannot resume."""
    if source == "-":
        return None
    file = Path(source).stat()
    return {
        "text": [str(Path(source).resolve()), file.st_size, file.st_mtime_ns],
        "column": column,
        "layout of rows": "one for every line or record",  # earlier versions skipped blank ones
        # A compiled model computes slightly different vectors; one file must not mix the two.
        "model": [fingerprint(model.path), type(model.forward).__name__],
        **(DEFAULTS | options),
    }


def _with_location(error: TextTooLong, source: str, column: str | None, before: int) -> TextTooLong:
    """Name the line or record of the text; the error counts from where the job resumed."""
    if source == "-":
        return error
    number = before + error.number
    where = next(islice(_records(source, column), number - 1, None)).where
    return TextTooLong(number, error.tokens, error.limit, where)
