"""Files -> numbered lines: opened and decompressed on the fly, in constant memory.

Bad lines go to an `ErrorPolicy`, which raises an error, or records it and lets reading continue.
"""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

from unmask.system.errors import DataError, unknown_name

Line = tuple[int, str, DataError | None]  # number, text, and why the line cannot be used

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
BOM = b"\xef\xbb\xbf"
COMPRESSED = (".gz", ".zst")
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair


class ErrorPolicy:
    """What a reader does with bad and blank records. This one raises an error for a bad one."""

    longest: int | None = None  # limit for the bytes of a line; None: no limit
    blanks: int = 0  # records without text

    def bad(self, error: DataError, raw: str) -> None:
        """Handle a record, or the rest of a file, that cannot be used; `raw` is its text."""
        raise error

    def blank(self) -> None:
        """Count a record without text."""
        self.blanks += 1

    def opened(self, path: str | Path, file: IO[bytes]) -> None:
        """Take note of the file that is being read; `file.tell()` is the position in it."""


class QuietPolicy(ErrorPolicy):
    """Error policy for a first look at a file: ignores errors, which the full read reports."""

    def bad(self, error: DataError, raw: str) -> None:
        """Ignore the error; the full read reports it."""


class StopOrSkip(ErrorPolicy):
    """Error policy that raises an error for a bad record, or skips and reports it (`--on-bad`)."""

    def __init__(self, skip: bool, say: Callable[[str], None]) -> None:
        self.skip, self.say, self.skipped = skip, say, 0

    def bad(self, error: DataError, raw: str) -> None:
        """Raise the error, or report and count it."""
        if not self.skip:
            raise DataError(f"{error} {OR_SKIP}") from None
        self.say(f"skipped: {error}")
        self.skipped += 1


OR_SKIP = "Or skip such records with --on-bad skip."
REFUSE, IGNORE = ErrorPolicy(), QuietPolicy()


def file_format(path: str | Path, formats: Sequence[str] | None = FORMATS) -> str:
    """Return a file's format by its extension, below .gz or .zst; `formats=None` allows any."""
    if str(path) == "-":
        return ".txt"
    path = Path(path)
    try:
        exists = path.exists()
    except OSError as error:  # the name is too long for a file
        raise DataError(f"{str(path)[:80]}...: {error.strerror}. Check the path.") from None
    if not exists:
        raise DataError(f"{path}: no such file. Check the path.")
    if path.is_dir():
        raise DataError(f"{path}: is a folder; need a file. List its files one by one.")
    if not path.is_file():  # a pipe would block, a device has no end
        raise DataError(f"{path}: not a regular file. Write the text to a file first.")
    ending = file_ending(path)
    if formats is not None and ending not in formats:
        raise DataError(f"{path}: {unknown_name('format', ending, formats)}")
    return ending


def file_ending(path: str | Path) -> str:
    """Return the extension of a name, below .gz or .zst; .txt if there is none, as for "-"."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    return next((suffix for suffix in reversed(suffixes) if suffix not in COMPRESSED), ".txt")


def read_lines(
    path: str | Path, watcher: ErrorPolicy = REFUSE, *, ends: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield the valid lines of a UTF-8 file with their numbers; `ends` keeps their line ends."""
    for line, text, error in every_line(path, watcher, ends=ends):
        if error is None:
            yield line, text
        else:
            watcher.bad(error, text)


def every_line(path: str | Path, watcher: ErrorPolicy, *, ends: bool = False) -> Iterator[Line]:
    """Yield all lines of a UTF-8 file, numbered from 1, split only at \\n; bad ones have an error.

    If the file cannot be read to its end, the last item has an error and "" as its text.
    """
    offset = 0
    with open_bytes(path, watcher) as file:
        for line in count(1):
            try:
                raw, size = _next_line(file, watcher.longest)
            except (OSError, EOFError, zlib.error) as cause:
                unreadable = DataError(
                    f"{path}:{line}: the file cannot be read beyond this line: "
                    f"{first_line(cause)} It is truncated or damaged. Download it again."
                )
                yield line, "", unreadable
                return
            if not raw:
                return
            if line == 1 and raw.startswith(BOM):
                # Skipped as text, but counted in the offsets that errors name.
                raw, offset, size = raw[len(BOM) :], len(BOM), size - len(BOM)
            try:
                text, error = _decode(raw, size, f"{path}:{line}", offset), None
            except DataError as cause:
                text, error = raw.decode("utf-8", "backslashreplace"), cause
            if error is None and not ends:
                text = text.removesuffix("\n").removesuffix("\r")
            yield line, text, error
            offset += size


def _next_line(file: IO[bytes], longest: int | None) -> tuple[bytes, int]:
    """Read the next line, and its size in bytes; of a line that is too long, only the beginning."""
    raw = file.readline(-1 if longest is None else longest)
    size = len(raw)
    if longest is not None and size == longest and not raw.endswith(b"\n"):
        # The rest is read in parts and dropped: memory stays bounded, and the next line is whole.
        while rest := file.readline(longest):
            size += len(rest)
            if rest.endswith(b"\n"):
                break
        size = max(size, longest + 1)
    return raw, size


def _decode(line: bytes, size: int, where: str, offset: int) -> str:
    if size > len(line):
        raise DataError(
            f"{where}: the line has {size:,} bytes; need at most {len(line):,}. Put line breaks "
            "between its documents or sentences."
        )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: byte {offset + error.start} of the file is not UTF-8 "
            f"(0x{line[error.start]:02x}); need UTF-8 text. Convert it, for example with "
            f"iconv -f {_guess_encoding(line)} -t UTF-8."
        ) from None
    return text


def _guess_encoding(line: bytes) -> str:
    """Guess the actual encoding of a line that is not UTF-8."""
    # Text in UTF-16 is full of zero bytes wherever it is ASCII.
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or line.count(0) > len(line) // 4:
        return "UTF-16"
    try:
        line.decode("gb18030")
    except UnicodeDecodeError:
        return "LATIN1"
    # Many bytes are valid in GB18030 by accident; Chinese text has high bytes almost everywhere.
    return "GB18030" if sum(byte > 0x80 for byte in line) > len(line) // 3 else "LATIN1"


@contextmanager
def open_bytes(path: str | Path, watcher: ErrorPolicy) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressed on the fly if its name ends in .gz or .zst."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    path = Path(path)
    try:
        with path.open("rb") as file:
            watcher.opened(path, file)
            if path.suffix.lower() == ".gz":
                yield gzip.GzipFile(fileobj=file)  # type: ignore[misc]
            elif path.suffix.lower() == ".zst":
                import pyarrow as pa

                with pa.input_stream(file, compression="zstd") as stream:
                    yield io.BufferedReader(stream)
            else:
                yield file
    except PermissionError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Check the permissions of the file."
        ) from None


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message."""
    text = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
    return text[:200] + "."


def require_unicode(text: str, where: str) -> str:
    """Return a text, refusing lone surrogates: JSON can spell them, UTF-8 cannot."""
    if SURROGATE.search(text):
        raise DataError(
            f"{where}: contains half a surrogate pair (\\ud800 to \\udfff); need both halves. Add "
            "the missing half, or remove this one."
        )
    return text
