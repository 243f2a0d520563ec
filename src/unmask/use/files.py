"""Texts of a file -> a file of vectors, in steady memory; the file appears when it is whole."""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Unpack

import numpy as np

from unmask.data.readers import read_texts, refuse_empty
from unmask.use.embed import Vector
from unmask.use.model import EmbedOptions, Model, TextTooLong


def embed_file(
    model: Model,
    source: str,
    out: Path | None,
    *,
    column: str | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[EmbedOptions],
) -> None:
    """Write one vector per text to a .npy or .jsonl file, or as JSONL to standard output."""

    def texts() -> Iterator[str]:
        for record in refuse_empty(source, read_texts(source, column=column)):
            yield record.text
            if progress:
                progress(1)

    vectors = model.embeddings(texts(), **options)
    try:
        if out is None:
            _write_lines(vectors, sys.stdout)
        else:
            _write_file(vectors, out)
    except TextTooLong as error:
        if source == "-":
            raise
        where = next(islice(read_texts(source, column=column), error.number - 1, None)).where
        raise TextTooLong(error.number, error.tokens, error.limit, where) from None


def _write_file(vectors: Iterator[Vector], out: Path) -> None:
    unfinished = out.with_name(f".{out.name}.tmp")
    try:
        if out.suffix == ".npy":
            _write_array(vectors, unfinished)
        else:
            with unfinished.open("w") as lines:
                _write_lines(vectors, lines)
        unfinished.rename(out)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_lines(vectors: Iterator[Vector], lines: IO[str]) -> None:
    for vector in vectors:
        lines.write(json.dumps([round(float(x), 7) for x in vector]) + "\n")


def _write_array(vectors: Iterator[Vector], path: Path) -> None:
    """The shape stands first in a .npy and is known last: the numbers wait in a second file."""
    rows, width = 0, 0
    with tempfile.TemporaryFile(dir=path.parent) as numbers:
        for vector in vectors:
            numbers.write(vector.astype("<f4").tobytes())
            rows, width = rows + 1, len(vector)
        numbers.seek(0)
        with path.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
            np.lib.format.write_array_header_1_0(file, header)
            shutil.copyfileobj(numbers, file)
