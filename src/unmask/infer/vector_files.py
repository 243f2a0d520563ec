"""Vectors -> a file, written row by row, so that a killed job can resume.

Rows are collected in a folder beside the output, `.NAME.unfinished`. It holds an array whose header
has no length yet, and a record of what the vectors depend on and how many rows are safe on disk.
When all rows are there, the output appears under its name and the folder is removed.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np

from unmask.infer.attention_maps import Table
from unmask.infer.embed import Vector
from unmask.system.disk import WINDOWS, check_output_file, disk_error, file_lock, fsync, write_file
from unmask.system.errors import DataError, FolderError
from unmask.system.settings import read_json

LOCK, RECORD = "lock", "record.json"
BLOCK = 4096  # rows read back at a time


class VectorWriter:
    """Rows of an unfinished file of vectors; reopening continues after the last saved row."""

    def __init__(self, folder: Path, width: int, about: dict[str, object]) -> None:
        self.folder, self.width, self.about = folder, width, about
        self.path, self.record = folder / "rows.npy", folder / RECORD
        # Through a planted link, this command would overwrite the file that the link points to.
        for path in (folder, self.path, self.record):
            if path.is_symlink():
                raise FolderError(
                    f"{path}: is a link; need a folder that only this command uses. Remove it."
                )
        row_bytes = 4 * width  # bytes
        recorded_rows = self._recorded()
        self.path.touch()  # "r+b" keeps what is in the file, but does not create one
        self.file = self.path.open("r+b")
        self._write_header(0)
        self.start = self.file.tell()
        file_size = self.file.seek(0, os.SEEK_END)
        # If the disk lost rows that the record counts, start over.
        self.safe = recorded_rows if file_size >= self.start + recorded_rows * row_bytes else 0
        self.count = self.safe
        self.file.seek(self.start + self.count * row_bytes)
        self.file.truncate()  # rows after the last save may be incomplete

    def add(self, vector: Vector) -> None:
        """Append one row."""
        assert len(vector) == self.width
        self.file.write(vector.astype("<f4").tobytes())
        self.count += 1

    def save(self) -> None:
        """Make all rows so far survive a crash."""
        # Rows reach the disk before the record that counts them, never the other way round.
        self.file.flush()
        os.fsync(self.file.fileno())
        write_file(self.record, json.dumps({**self.about, "rows": self.count}).encode())
        self.safe = self.count

    def blocks(self) -> Iterator[Table]:
        """Read the rows of a finished array back, BLOCK at a time."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            while len(block := np.fromfile(file, "<f4", BLOCK * self.width)):
                yield block.reshape(-1, self.width)

    def finish(self) -> None:
        """Complete the array: save all rows and write the length into the header."""
        self.save()
        self._write_header(self.count)
        self.file.close()
        fsync(self.path)

    def _recorded(self) -> int:
        """Return how many rows an earlier job saved; refuse rows made of anything else."""
        if not self.record.exists():
            return 0
        record: dict[str, object] = read_json(self.record)
        rows = record.pop("rows", None)
        differing = [name for name, value in self.about.items() if record.get(name) != value]
        # The exact type, because isinstance takes True for an int.
        if differing or type(rows) is not int or rows < 0:
            changed = ", ".join(differing) or "number of rows"
            raise FolderError(
                f"{self.folder}: was started with another {changed}. Use the same again, remove "
                "the folder to start over, or give another --out."
            )
        return rows

    def _write_header(self, count: int) -> None:
        """Write the .npy header; numpy pads it, so that a larger count later has the same size."""
        self.file.seek(0)
        shape = {"descr": "<f4", "fortran_order": False, "shape": (count, self.width)}
        np.lib.format.write_array_header_1_0(self.file, shape)


@contextmanager
def open_vectors(out: Path, width: int, about: dict[str, object] | None) -> Iterator[VectorWriter]:
    """Open the unfinished rows of a file that does not exist yet, locked against other jobs.

    Without `about`, rows of an earlier job are discarded. If the process is killed or interrupted,
    or the disk is full, saved rows stay for the next job. After an error in the data they are
    removed, because fixing the data changes what the vectors depend on.
    """
    folder = out.with_name(f".{out.name}.unfinished")
    rows: VectorWriter | None = None
    try:
        folder.mkdir(exist_ok=True)
        with file_lock(folder / LOCK, what="these vectors"):
            check_output_file(out)  # another job may have written it before we got the lock
            if about is None:
                (folder / RECORD).unlink(missing_ok=True)
            rows = VectorWriter(folder, width, about or {})
            try:
                yield rows
            except Exception as error:  # not KeyboardInterrupt: then saved rows stay
                if isinstance(error, DataError) or not rows.safe:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            finally:
                rows.file.close()
    except OSError as error:
        safe = rows.safe if rows is not None else 0
        resume_hint = f"{safe:,} vectors are saved, and the same command resumes after them"
        raise disk_error(out, error, left=resume_hint) from error
    finally:
        # Windows cannot remove a folder with a locked file; try again now that it is unlocked.
        if WINDOWS:
            with suppress(OSError):
                folder.rmdir()


def publish(rows: VectorWriter, out: Path, texts: Iterator[str]) -> None:
    """Move the finished file to its place at once; `texts` are the text column of a .parquet."""
    rows.finish()
    finished = rows.path
    if out.suffix != ".npy":
        finished = rows.folder / f"whole{out.suffix}"
        write = _write_parquet if out.suffix == ".parquet" else _write_lines
        write(rows, finished, texts)
        fsync(finished)
    finished.replace(out)
    fsync(out.parent)
    shutil.rmtree(rows.folder, ignore_errors=True)


def json_line(vector: Vector) -> str:
    """Format a vector as JSON."""
    numbers: list[float] = vector.tolist()
    # A float32 has about seven digits; all those of its float64 would double the file.
    return json.dumps([round(x, 7) for x in numbers])


def _write_lines(rows: VectorWriter, path: Path, texts: Iterator[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for block in rows.blocks():
            file.writelines(f"{json_line(vector)}\n" for vector in block)


def _write_parquet(rows: VectorWriter, path: Path, texts: Iterator[str]) -> None:
    """Write a table with each text and its vector."""
    from pyarrow import float32, list_, record_batch, schema, string
    from pyarrow.parquet import ParquetWriter

    columns = schema([("text", string()), ("vector", list_(float32(), rows.width))])
    with ParquetWriter(path, columns) as writer:
        for block in rows.blocks():
            table = {"text": list(islice(texts, len(block))), "vector": list(block)}
            writer.write_batch(record_batch(table, schema=columns))
    if next(texts, None) is not None:
        raise DataError("there are more texts than vectors. Was the file changed in the meantime?")
