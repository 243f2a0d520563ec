"""Vocabulary folders: learned from text files, written atomically, verified when read."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from unmask.checkpoint.integrity import publish, verify
from unmask.data.read.texts import read_texts, refuse_empty
from unmask.system.disk import check_output_folder
from unmask.text.count import count_words
from unmask.text.learn import LearnSettings, VocabularyReport, learn, report
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.text.tokenizer_files import read_tokenizer, write_tokenizer

REPORT = "report.json"


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a model or vocabulary folder, after verifying its files."""
    verify(folder)
    return read_tokenizer(folder)


def learn_folder(
    files: Sequence[str],
    out: Path,
    settings: LearnSettings,
    *,
    cased: bool = False,
    column: str | None = None,
    workers: int = 1,
    counting: Callable[[int], None] | None = None,
    learning: Callable[[int, int], None] | None = None,
) -> VocabularyReport:
    """Learn a vocabulary from text files, write it as a folder, and report how well it fits."""
    check_output_folder(out, renamed=True)
    casing = Casing(lowercase=not cased)
    # A list, because `read_texts` checks a path when it is called: a wrong path is an error
    # at once, not after the files before it have been read.
    readers = [(file, read_texts(file, column=column)) for file in files]
    texts = (record.text for file, records in readers for record in refuse_empty(file, records))
    word_counts = count_words(texts, casing, workers=workers, progress=counting)
    vocabulary = learn(word_counts, settings, progress=learning)
    result = report(word_counts, vocabulary, casing)
    recipe = {"vocab learn": settings.model_dump() | {"cased": cased}}
    about = {"recipe": recipe, "provenance": {"files": [Path(file).name for file in files]}}
    with publish(out, about) as folder:
        write_tokenizer(Tokenizer(vocabulary, casing), folder)
        written = json.dumps(vars(result), indent=2) + "\n"
        (folder / REPORT).write_text(written, "utf-8", newline="\n")
    return result
