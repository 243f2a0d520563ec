"""The base of tasks whose records are sentences: how their files are read and split.

Labelled data are files of words and tags, or JSON lines. Questions may also be texts in a table.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.data.labelled.columns import NAMES, Columns, infer_columns
from unmask.data.labelled.conll import Sentence, read_sentences, scheme_of
from unmask.data.labelled.tables import TABLES
from unmask.data.read.lines import IGNORE, ErrorPolicy, file_format, read_lines
from unmask.tasks.base import Answer
from unmask.tasks.labels import LabelTask

JSON_KEYS = ('"tokens"', '"entities"', '"spans"')  # keys by which JSON lines are recognised


class SentenceTask(LabelTask[Sentence, Answer]):
    """A task on the words of sentences."""

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Sentence]:
        """Yield sentences with their entities."""
        (path,) = paths
        return read_sentences(path, watcher, columns, lenient=config.lenient)

    @classmethod
    def read_files(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Sentence]:
        """Yield the sentences of several files; no document continues in the next file."""
        for file_number, path in enumerate(paths):
            for sentence in cls.read([path], columns, watcher, config):
                # Interleaved, the numbers of two files never meet.
                yield replace(sentence, document=sentence.document * len(paths) + file_number)

    @classmethod
    def resolve_columns(
        cls, paths: Sequence[str | Path], columns: Columns, *, labelled: bool = True
    ) -> tuple[Columns, list[str]]:
        """Find the text column of a table without labels; also return a line about the file.

        The line names the column, or the tagging scheme.
        """
        if not labelled and cls._has_texts(paths[0], columns):
            inferred = infer_columns(paths[0], columns, labelled=False)
            columns = Columns(text=inferred.text, header=inferred.header)  # there are no pairs
            return columns, [columns.describe()]
        lines = file_format(paths[0], None) == ".jsonl"
        return columns, [] if lines else [scheme_of(paths[0])]

    def questions(
        self, source: str | Path, columns: Columns, watcher: ErrorPolicy
    ) -> Iterator[Sentence]:
        """Yield the texts of a table, or the sentences of a file in the training format.

        Entities are not needed.
        """
        if self._has_texts(source, columns):
            return super().questions(source, columns, watcher)
        return self.read([source], columns, watcher, self.config)

    @classmethod
    def reads_rows(cls, source: str | Path, columns: Columns) -> bool:
        """Whether each record of an unlabelled file is a row of a table."""
        return file_format(source, None) == ".jsonl" or cls._has_texts(source, columns)

    @staticmethod
    def _has_texts(path: str | Path, columns: Columns) -> bool:
        """Whether a file is a table of texts, and neither words and tags nor JSON lines.

        Files of words and tags may end in .tsv, too. Such a file counts as a table if a column is
        named, or if its first line has a usual name of a text column.
        """
        ending = file_format(path, None)
        if ending != ".tsv" or columns.by_field():
            return ending in (".csv", ".tsv", ".parquet")
        first = next((line for _, line in read_lines(path, IGNORE)), "")
        return bool({cell.strip().lower() for cell in first.split("\t")} & {*NAMES["text"]})

    @classmethod
    def recognises(cls, path: Path, ending: str, lines: Sequence[str]) -> bool:
        """Whether the file has columns of words and tags, or JSON lines with entities."""
        if ending == ".jsonl":
            has_entities = any(key in line for line in lines for key in JSON_KEYS)
            return has_entities and not any('"question"' in line for line in lines)
        return ending != ".json" and ending not in TABLES

    @classmethod
    def groups(cls, records: Sequence[Sentence]) -> Sequence[Hashable]:
        """Return the document of each sentence, or its text if its file has only one document."""
        documents: dict[str, set[int]] = defaultdict(set)
        paths = [record.where.rpartition(":")[0] for record in records]
        for path, record in zip(paths, records, strict=True):
            documents[path].add(record.document)
        return [
            record.document if len(documents[path]) > 1 else record.key
            for path, record in zip(paths, records, strict=True)
        ]
