"""Files -> documents: the lines or records that belong together, still as raw text.

    .txt, a blank line between documents    a line is a sentence, unless lines hold several
    .txt without blank lines                a line is a document
    .jsonl, .csv, .tsv, .parquet            a record is a document

What was inferred is told; `--lines` decides otherwise. Sentences are split later, by the workers.
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
SPOOLED = 2**20  # characters of skipped records that are held in memory; more go to disk
SHOWN = 10_000  # characters of each that are kept
LONGEST_LINE = 32 * 2**20  # bytes; a library's longest book has about a quarter of it
LONGEST_DOCUMENT = 2**22  # characters; a longer one is cut, so that memory stays bounded
SEVERAL = 1.5  # sentences a line, on average: then lines are split
SAMPLE = 2000  # lines that are looked at to tell how a file is laid out ...
SAMPLE_CHARACTERS = 2**20  # ... and their characters


@dataclass(frozen=True, slots=True)
class Document:
    """Raw text; its line breaks end sentences. `split`: a line may hold several sentences."""

    text: str
    split: bool
    records: int  # lines or records of the input that it is made of

    def sentences(self) -> Iterator[str]:
        """The sentences, none blank."""
        if self.split:
            yield from split_sentences(self.text)
        else:
            yield from (line.strip() for line in self.text.split("\n") if line.strip())


@dataclass
class Skipper(ErrorPolicy):
    """Counts what is read, and either refuses what is bad or writes it down."""

    skip: bool = False
    longest: int | None = LONGEST_LINE
    skipped: int = 0  # records, and files or rests of files
    side: IO[str] = field(default_factory=lambda: SpooledTemporaryFile(SPOOLED, "w+"))  # noqa: SIM115
    records: int = 0  # lines and records that documents were made of
    files: dict[str, str] = field(default_factory=dict)  # how each file was understood
    before: int = 0  # bytes of the files before the current one
    size: int = 0  # ... and of it
    current: IO[bytes] | None = None

    def bad(self, error: DataError, raw: str) -> None:
        """Refuse it, or keep it for the side file."""
        if not self.skip:
            raise DataError(f"{error} {OR_SKIP}") from None
        entry: dict[str, object] = {"why": str(error), "text": raw[:SHOWN]}
        if len(raw) > SHOWN:
            entry["cut"] = f"the first {SHOWN:,} of {len(raw):,} characters"
        self.side.write(json.dumps(entry) + "\n")
        self.skipped += 1

    def lines(self) -> Iterator[str]:
        """What was skipped, one JSON object each."""
        self.side.seek(0)
        yield from self.side

    def opened(self, path: str | Path, file: IO[bytes]) -> None:
        """Remember the file, for `position`."""
        self.before += self.size
        self.current, self.size = file, Path(path).stat().st_size

    @property
    def position(self) -> int:
        """Bytes of the input that are read; packed files count as they lie on disk."""
        if self.current is None or self.current.closed:
            return self.before + self.size
        return self.before + self.current.tell()


def read_documents(
    files: Iterable[str], watcher: Skipper, *, column: str | None = None, lines: Lines = "auto"
) -> Iterator[Document]:
    """Yield the documents of all files in order."""
    for file in files:
        if file_format(file) == ".txt" and column is None:
            documents = _plain(file, watcher, lines)
        else:
            watcher.files[file] = "a record is a document, split into sentences"
            records = read_texts(file, column=column, watcher=watcher)
            documents = (Document(record.text, True, 1) for record in records)
        before = watcher.records + watcher.skipped
        for document in documents:
            watcher.records += document.records
            yield from _bounded(document)
        if before == watcher.records + watcher.skipped:
            watcher.bad(DataError(f"{file}: no text in it; need at least one document."), "")


def _plain(file: str, watcher: Skipper, lines: Lines) -> Iterator[Document]:
    texts = (text for _, text in read_lines(file, watcher))
    sample = next(in_groups(texts, len, SAMPLE_CHARACTERS, SAMPLE), [])
    blocks, split = lines == "sentences", False
    if lines == "auto":
        full = [text for text in sample if text.strip()]
        split = sum(1 for text in full for _ in split_sentences(text)) >= SEVERAL * max(
            len(full), 1
        )
        blocks = _has_blocks(sample)
        if not blocks and len(sample) > 1:  # a first document may be longer than the sample
            blocks = _has_blocks(text for _, text in read_lines(file, Skipper(skip=True)))
    line = "a line is split into sentences" if split else "a line is a sentence"
    watcher.files[file] = (
        f"a blank line ends a document; {line}"
        if blocks
        else "a line is a document, split into sentences"
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
        if block and (not text.strip() or size > LONGEST_DOCUMENT):
            yield Document("\n".join(block), split, len(block))
            block, size = [], 0


def _has_blocks(texts: Iterable[str]) -> bool:
    """Is there a blank line with text on both sides, anywhere?"""
    text_before = blank = False
    for text in texts:
        if not text.strip():
            blank = text_before
        elif blank:
            return True
        else:
            text_before = True
    return False


def _bounded(document: Document) -> Iterator[Document]:
    """Cut a document that is longer than any should be, at a line break or a space."""
    text, records = document.text, document.records
    while len(text) > LONGEST_DOCUMENT:
        breaks = (text.rfind(sign, 0, LONGEST_DOCUMENT) for sign in "\n ")
        cut = next((place for place in breaks if place > 0), LONGEST_DOCUMENT)
        yield Document(text[:cut], document.split, 0)
        text = text[cut:]
    yield Document(text, document.split, records)
