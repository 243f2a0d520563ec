"""Vectors -> a file, row by row, so that a killed command can go on.

They gather in a folder beside the file's place, `.NAME.unfinished`: an array without its length,
and a record of what it is made of and how many rows of it are safe on disk. The file appears when
it is whole; then the folder is gone.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from unmask.disk import check_output_file, disk_error, held, sync, write_file
from unmask.errors import DataError, FolderError
from unmask.settings import read_json
from unmask.use.embed import Vector

LOCK = "lock"
BLOCK = 4096  # rows that are read back at once


class Rows:
    """The rows of a file that is being made."""

    def __init__(self, folder: Path, width: int, about: dict[str, Any]) -> None:
        self.folder, self.width, self.about = folder, width, about
        self.path, self.record = folder / "rows.npy", folder / "record.json"
        for path in (folder, self.path, self.record):
            if path.is_symlink():
                raise FolderError(
                    f"{path}: is a link; need a folder of this command's own. Remove it."
                )
        self.start = len(self._header(0))
        self.safe = self._begun()
        self.count = self.safe
        self.file = self.path.open("r+b" if self.safe else "w+b")
        self.file.write(self._header(0))
        self.file.truncate(self.start + self.count * self._row)
        self.file.seek(0, os.SEEK_END)

    def add(self, vector: Vector) -> None:
        """One more row."""
        assert len(vector) == self.width
        self.file.write(vector.astype("<f4").tobytes())
        self.count += 1

    def save(self) -> None:
        """From here on, what was added is not lost."""
        self.file.flush()
        os.fsync(self.file.fileno())
        write_file(self.record, json.dumps({**self.about, "rows": self.count}).encode())
        self.safe = self.count

    def __iter__(self) -> Iterator[Vector]:
        """All rows, a few at a time in memory."""
        self.file.flush()
        with self.path.open("rb") as file:
            file.seek(self.start)
            while block := file.read(BLOCK * self._row):
                yield from np.frombuffer(block, "<f4").reshape(-1, self.width)

    def finish(self) -> None:
        """The array, with its length."""
        self.file.seek(0)
        self.file.write(self._header(self.count))
        self.file.close()
        sync(self.path)

    @property
    def _row(self) -> int:
        return 4 * self.width

    def _begun(self) -> int:
        """How many rows an earlier command has left; refused if it was about something else."""
        if not self.record.exists():
            return 0
        record = read_json(self.record)
        rows = record.pop("rows", None)
        other = [name for name in self.about if record.get(name) != self.about[name]]
        if other or type(rows) is not int or rows < 0:
            what = ", ".join(other) or "number of rows"
            raise FolderError(
                f"{self.folder}: was begun with another {what}. Give the same again, remove the "
                "folder to begin anew, or give another --out."
            )
        size = self.path.stat().st_size if self.path.exists() else 0
        return rows if size >= self.start + rows * self._row else 0

    def _header(self, count: int) -> bytes:
        """The shape stands first and is known last; numpy leaves room for all its digits."""
        written = BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (count, self.width)}
        np.lib.format.write_array_header_1_0(written, shape)
        return written.getvalue()


@contextmanager
def gathered(out: Path, width: int, about: dict[str, Any] | None) -> Iterator[Rows]:
    """Rows to add to, for a file that does not exist yet; None: they cannot be gone on with.

    The folder stays if the process is killed or interrupted, or the disk is full. It goes if the
    data is at fault: what has to be mended changes what the rows were made of.
    """
    folder = out.with_name(f".{out.name}.unfinished")
    rows: Rows | None = None
    try:
        folder.mkdir(exist_ok=True)
        with held(folder / LOCK, what="these vectors"):
            check_output_file(out)  # somebody else may have written it meanwhile
            if about is None:
                _empty(folder)
            rows = Rows(folder, width, about or {})
            try:
                yield rows
            except Exception as error:
                if isinstance(error, DataError) or not rows.safe:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            finally:
                rows.file.close()
    except OSError as error:
        safe = rows.safe if rows is not None else 0
        left = f"{safe:,} vectors are safe, and the same command goes on with them"
        raise disk_error(out, error, left=left) from error


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink()


def publish(rows: Rows, out: Path, texts: Callable[[], Iterable[str]]) -> None:
    """Put the file in its place, whole."""
    rows.save()
    made = rows.path
    if out.suffix == ".npy":
        rows.finish()
    else:
        made = rows.folder / f"whole{out.suffix}"
        if out.suffix == ".parquet":
            _write_parquet(rows, made, texts())
        else:
            with made.open("w", encoding="utf-8") as file:
                file.writelines(f"{line_of(row)}\n" for row in rows)
        sync(made)
    made.replace(out)
    sync(out.parent)
    shutil.rmtree(rows.folder, ignore_errors=True)


def line_of(vector: Vector) -> str:
    """Write a vector as JSON."""
    return json.dumps([round(float(x), 7) for x in vector])


def _write_parquet(rows: Rows, path: Path, texts: Iterable[str]) -> None:
    """Each text with its vector."""
    import pyarrow as pa
    from pyarrow import parquet

    kind = pa.schema([("text", pa.string()), ("vector", pa.list_(pa.float32(), rows.width))])
    with parquet.ParquetWriter(path, kind) as writer:
        for some in _blocks(zip(texts, rows, strict=True)):
            words, vectors = zip(*some, strict=True)
            flat = pa.array(np.concatenate(vectors))
            columns = [
                pa.array(words, pa.string()),
                pa.FixedSizeListArray.from_arrays(flat, rows.width),
            ]
            writer.write_batch(pa.record_batch(columns, schema=kind))


def _blocks(pairs: Iterable[tuple[str, Vector]]) -> Iterator[list[tuple[str, Vector]]]:
    block: list[tuple[str, Vector]] = []
    for pair in pairs:
        block.append(pair)
        if len(block) == BLOCK:
            yield block
            block = []
    if block:
        yield block
