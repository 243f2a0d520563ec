"""Texts of a file -> a file of vectors, in steady memory; killed, the same command goes on."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Unpack

from unmask.checkpoint.integrity import fingerprint
from unmask.data.read.lines import REFUSE, ErrorPolicy
from unmask.data.read.texts import Record, read_texts, refuse_empty
from unmask.infer.embed import USUAL, EmbedOptions, width_of
from unmask.infer.engine import GROUP
from unmask.infer.model import Model
from unmask.infer.vector_files import line_of, open_vectors, publish
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
    """Yield one vector per line or record, blank ones included, as a line of JSON."""
    return map(line_of, model.embeddings(_texts(source, column, watcher), **options))


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
    """Write one vector per line or record to a .npy, .parquet or .jsonl; return their number.

    Row N is line N of plain text, record N of a table. A blank one is an empty text to the model.
    """
    check_output_file(out)
    if out.suffix == ".parquet" and source == "-":
        raise SettingsError(
            f"--out {out}: has each text beside its vector, and standard input can be read only "
            "once. Give a file of texts, or --out with .npy or .jsonl."
        )
    read_texts(source, column=column)  # says what is wrong with the path
    about = _about(model, source, column, options)
    width = width_of(options, model.network.config.width)
    with open_vectors(out, width, about) as rows:
        begun = rows.safe
        if begun:
            say(f"{out}: {begun:,} vectors are there already; going on behind them")
        texts = islice(_texts(source, column, watcher), begun, None)
        try:
            for vector in model.embeddings(texts, **options):
                rows.add(vector)
                # Whole groups only, so that every text has the mates that it would have had.
                if not rows.count % GROUP:
                    rows.save()
                progress(1)
        except TextTooLong as error:
            raise _named(error, source, column, begun) from None
        if about != _about(model, source, column, options):
            raise DataError(
                f"{source}: was changed while it was read, so that vectors of old and new texts "
                "are mixed; they are removed. Run the command again."
            )
        publish(rows, out, _texts(source, column))
        return rows.count


def _texts(source: str, column: str | None, watcher: ErrorPolicy = REFUSE) -> Iterator[str]:
    return (record.text for record in _records(source, column, watcher))


def _records(source: str, column: str | None, watcher: ErrorPolicy = REFUSE) -> Iterator[Record]:
    """Every line or record, blank ones too, so that rows and lines have the same numbers."""
    records = read_texts(source, column=column, watcher=watcher, blanks=True)
    return refuse_empty(source, records)


def _about(
    model: Model, source: str, column: str | None, options: EmbedOptions
) -> dict[str, object] | None:
    """What vectors are made of; None for what cannot be read twice."""
    if source == "-":
        return None
    file = Path(source).stat()
    return {
        "text": [str(Path(source).resolve()), file.st_size, file.st_mtime_ns],
        "column": column,
        "layout of rows": "one for every line or record",  # once, blank ones were skipped
        "model": [fingerprint(model.path), type(model.forward).__name__],
        **(USUAL | options),
    }


def _named(error: TextTooLong, source: str, column: str | None, before: int) -> TextTooLong:
    """With the line of the text."""
    if source == "-":
        return error
    number = before + error.number
    where = next(islice(_records(source, column), number - 1, None)).where
    return TextTooLong(number, error.tokens, error.limit, where)
