"""Files -> lines: opened and unpacked on the way, in constant memory, every line numbered.

What is bad goes to a `Watcher`, who refuses it, or writes it down and lets reading go on.
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

Line = tuple[int, str, DataError | None]  # its number and text, and why it cannot be used

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
BOM = b"\xef\xbb\xbf"
PACKED = (".gz", ".zst")
HALF = re.compile("[\ud800-\udfff]")


class ErrorPolicy:
    """What a reader tells besides the texts. This one lets nothing bad pass."""

    longest: int | None = None  # bytes of a line; None: any
    blanks: int = 0  # records without text

    def bad(self, error: DataError, raw: str) -> None:
        """A record, or the rest of a file, cannot be used; `raw` is what is there."""
        raise error

    def blank(self) -> None:
        """A record has no text in it."""
        self.blanks += 1

    def opened(self, path: str | Path, file: IO[bytes]) -> None:
        """A file is being read; `file.tell()` says how far."""


class QuietPolicy(ErrorPolicy):
    """Looks at what is good: what is bad will be told by whoever reads the file in earnest."""

    def bad(self, error: DataError, raw: str) -> None:
        """Not now."""


class StopOrSkip(ErrorPolicy):
    """Refuses bad records, or skips and reports them, as the user chose."""

    def __init__(self, skip: bool, say: Callable[[str], None]) -> None:
        self.skip, self.say, self.skipped = skip, say, 0

    def bad(self, error: DataError, raw: str) -> None:
        """One more."""
        if not self.skip:
            raise DataError(f"{error} {OR_SKIP}") from None
        self.say(f"skipped: {error}")
        self.skipped += 1


OR_SKIP = "Or leave such records out: --on-bad skip"
REFUSE, IGNORE = ErrorPolicy(), QuietPolicy()


def file_format(path: str | Path, formats: Sequence[str] | None = FORMATS) -> str:
    """The format that a name tells: its ending, below .gz or .zst; None allows any."""
    if str(path) == "-":
        return ".txt"
    path = Path(path)
    try:
        found = path.exists()
    except OSError as error:  # a name too long to be a file's
        raise DataError(f"{str(path)[:80]}...: {error.strerror}. Check the path.") from None
    if not found:
        raise DataError(f"{path}: no such file. Check the path.")
    if path.is_dir():
        raise DataError(f"{path}: a folder; need a file. Name the files in it one by one.")
    if not path.is_file():  # a pipe would be waited for, a device has no end
        raise DataError(f"{path}: no ordinary file. Write the text to a file first.")
    kind = file_ending(path)
    if formats is not None and kind not in formats:
        raise DataError(f"{path}: {unknown_name('format', kind, formats)}")
    return kind


def file_ending(path: str | Path) -> str:
    """The ending of a name, below .gz or .zst; .txt where there is none, as of "-"."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    return next((suffix for suffix in reversed(suffixes) if suffix not in PACKED), ".txt")


def read_lines(
    path: str | Path, watcher: ErrorPolicy = REFUSE, *, ends: bool = False
) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file that are good, with their numbers; with their ends if asked."""
    for line, text, error in every_line(path, watcher, ends=ends):
        if error is None:
            yield line, text
        else:
            watcher.bad(error, text)


def every_line(path: str | Path, watcher: ErrorPolicy, *, ends: bool = False) -> Iterator[Line]:
    """All lines of a UTF-8 file, numbered from 1, split at \\n alone; a bad one with its error.

    The rest of a file that is cut off has an error, too, and "" as its text.
    """
    offset = 0
    with open_bytes(path, watcher) as file:
        for line in count(1):
            try:
                raw, size = _next_line(file, watcher.longest)
            except (OSError, EOFError, zlib.error) as problem:
                error = DataError(
                    f"{path}:{line}: cannot be read on from here: {first_line(problem)} The file "
                    "is cut off or damaged. Fetch it again."
                )
                yield line, "", error
                return
            if not raw:
                return
            if line == 1 and raw.startswith(BOM):
                raw, offset, size = raw[len(BOM) :], len(BOM), size - len(BOM)
            try:
                text, bad = _decoded(raw, size, f"{path}:{line}", offset), None
            except DataError as error:
                text, bad = raw.decode("utf-8", "backslashreplace"), error
            if bad is None and not ends:
                text = text.removesuffix("\n").removesuffix("\r")
            yield line, text, bad
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
def open_bytes(path: str | Path, watcher: ErrorPolicy) -> Iterator[IO[bytes]]:
    """A file of bytes, unpacked on the way if its name ends in .gz or .zst."""
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
            f"{path}: cannot be read ({error.strerror}). Ask for the right to read it."
        ) from None


def first_line(error: Exception) -> str:
    """The first line of what went wrong."""
    text = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
    return text[:200] + "."


def require_unicode(text: str, where: str) -> str:
    """A text or a label that can be written again: JSON may spell half a character."""
    if HALF.search(text):
        raise DataError(
            f"{where}: \\ud800 to \\udfff alone is half a character; need both halves. Mend it."
        )
    return text
