"""Files -> documents: the lines or records that belong together, still as raw text.

    .txt with blank lines between texts     a line is a sentence, unless lines hold several
    .txt without blank lines                a line is a document
    .jsonl, .csv, .tsv, .parquet            a record is a document

The detected layout is reported; `--lines` overrides it. Sentences are split later, by the workers.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Literal

from unmask.data.read.lines import OR_SKIP, ErrorPolicy, file_format, read_lines
from unmask.data.read.texts import read_texts
from unmask.system.errors import DataError
from unmask.text.sentences import split_sentences
from unmask.text.tokenizer import in_groups

Lines = Literal["auto", "sentences", "documents"]
SPOOLED = 2**20  # characters of skipped records that stay in memory; more go to disk
SHOWN = 10_000  # characters that are kept of each skipped record
LONGEST_LINE = 32 * 2**20  # bytes; the longest books have about a quarter of it
LONGEST_DOCUMENT = 2**22  # characters; a longer one is cut, so that memory stays bounded
SPLIT_FROM = 1.5  # sentences per line, on average, from which lines are split
SAMPLE = 2000  # lines that are inspected to detect the layout of a file ...
SAMPLE_CHARACTERS = 2**20  # ... or fewer, with at most this many characters


@dataclass(frozen=True, slots=True)
class Document:
    """Raw text whose line breaks end sentences; with `split`, a line may hold several."""

    text: str
    split: bool
    records: int  # lines or records of the input in it

    def sentences(self) -> Iterator[str]:
        """Yield the sentences, skipping blank ones."""
        if self.split:
            yield from split_sentences(self.text)
        else:
            yield from (line.strip() for line in self.text.split("\n") if line.strip())


@dataclass
class SkipPolicy(ErrorPolicy):
    """Error policy of `unmask prepare`: counts records; refuses bad ones or writes them down."""

    skip: bool = False
    longest: int | None = LONGEST_LINE
    skipped: int = 0  # records, and files or parts of files that cannot be read
    side: IO[str] = field(default_factory=lambda: SpooledTemporaryFile(SPOOLED, "w+"))  # noqa: SIM115
    records: int = 0  # lines and records that documents were made of
    files: dict[str, str] = field(default_factory=dict)  # the detected layout of each file
    before: int = 0  # bytes of the files before the current one
    size: int = 0  # bytes of the current file
    current: IO[bytes] | None = None

    def bad(self, error: DataError, raw: str) -> None:
        """Raise the error, or write the record to the side file if bad records are skipped."""
        if not self.skip:
            raise DataError(f"{error} {OR_SKIP}") from None
        entry: dict[str, object] = {"why": str(error), "text": raw[:SHOWN]}
        if len(raw) > SHOWN:
            entry["cut"] = f"the first {SHOWN:,} of {len(raw):,} characters"
        self.side.write(json.dumps(entry) + "\n")
        self.skipped += 1

    def lines(self) -> Iterator[str]:
        """Yield the skipped records, as JSON lines."""
        self.side.seek(0)
        yield from self.side

    def opened(self, path: str | Path, file: IO[bytes]) -> None:
        """Remember the current file, for `position`."""
        self.before += self.size
        self.current, self.size = file, Path(path).stat().st_size

    @property
    def position(self) -> int:
        """Bytes of the input that have been read; compressed files count by their size on disk."""
        if self.current is None or self.current.closed:
            return self.before + self.size
        return self.before + self.current.tell()


def read_documents(
    files: Iterable[str], watcher: SkipPolicy, *, column: str | None = None, lines: Lines = "auto"
) -> Iterator[Document]:
    """Yield the documents of all files in order."""
    for file in files:
        if file_format(file) == ".txt" and column is None:
            documents = _plain(file, watcher, lines)
        else:
            watcher.files[file] = "each record is a document, split into sentences"
            records = read_texts(file, column=column, watcher=watcher)
            documents = (Document(record.text, True, 1) for record in records)
        before = watcher.records + watcher.skipped
        for document in documents:
            watcher.records += document.records
            yield from _split_long_document(document)
        if before == watcher.records + watcher.skipped:
            watcher.bad(DataError(f"{file}: contains no text; need at least one document."), "")


def _plain(file: str, watcher: SkipPolicy, lines: Lines) -> Iterator[Document]:
    texts = (text for _, text in read_lines(file, watcher))
    sample = next(in_groups(texts, len, SAMPLE_CHARACTERS, SAMPLE), [])
    blocks, split = lines == "sentences", False
    if lines == "auto":
        nonblank = [text for text in sample if text.strip()]
        sentences = sum(1 for text in nonblank for _ in split_sentences(text))
        split = sentences >= SPLIT_FROM * max(len(nonblank), 1)
        blocks = _has_blank_lines(sample)
        if not blocks and len(sample) > 1:  # the first document may be longer than the sample
            # Errors are ignored in this extra pass: reading the file, below, reports them.
            blocks = _has_blank_lines(text for _, text in read_lines(file, SkipPolicy(skip=True)))
    line_layout = "each line is split into sentences" if split else "each line is a sentence"
    watcher.files[file] = (
        f"blank lines separate documents; {line_layout}"
        if blocks
        else "each line is a document, split into sentences"
    )
    if not blocks:
        yield from (Document(text, True, 1) for text in chain(sample, texts) if text.strip())
        return
    block: list[str] = []
    size = 0
    for text in chain(sample, texts, [""]):
        if text.strip():
            block.append(text)
            size += len(text)
        # The limit bounds memory where blank lines are rare or missing.
        if block and (not text.strip() or size > LONGEST_DOCUMENT):
            yield Document("\n".join(block), split, len(block))
            block, size = [], 0


def _has_blank_lines(texts: Iterable[str]) -> bool:
    """Whether a blank line stands between two lines with text."""
    text_before = blank = False
    for text in texts:
        if not text.strip():
            blank = text_before
        elif blank:
            return True
        else:
            text_before = True
    return False


def _split_long_document(document: Document) -> Iterator[Document]:
    """Cut a document above the limit into several, at a line break or a space."""
    text, records = document.text, document.records
    while len(text) > LONGEST_DOCUMENT:
        positions = (text.rfind(separator, 0, LONGEST_DOCUMENT) for separator in "\n ")
        cut = next((position for position in positions if position > 0), LONGEST_DOCUMENT)
        # Its records are counted with the last part, so that totals stay right.
        yield Document(text[:cut], document.split, 0)
        text = text[cut:]
    yield Document(text, document.split, records)
