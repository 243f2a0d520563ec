"""Names in a text: a tag for each word, B- for the first of a name, I- for the others, O for none.

A word is judged by its first piece. A sentence longer than the model is read in overlapping
windows, and each word judged in the one that shows most around it; nothing is cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from unmask.data.batch import Batch
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.conll import (
    OUTSIDE,
    Entity,
    Sentence,
    read_sentences,
    scheme_of,
    sentence_of,
    spelled,
)
from unmask.data.labelled.tables import TABLES
from unmask.data.read.lines import ErrorPolicy, file_format
from unmask.model.shape import LabelsConfig, Shape
from unmask.system.errors import DataError
from unmask.system.settings import Settings
from unmask.tasks.asks import Ask, Text
from unmask.tasks.labels import (
    TRUTH,
    LabelTask,
    LabelWindow,
    LabelWindows,
    Scores,
    fullest_windows,
    unknown_label,
)
from unmask.tasks.metrics import LabelCounts, count_labels, softmax
from unmask.tasks.results import Agreement, Detail
from unmask.tasks.views import Marked, SpansView
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import Vocabulary

TEXT = "Ada Lovelace met Charles Babbage in London."  # to try a model with
MARKS = ('"tokens"', '"entities"', '"spans"')  # of JSON lines
AHEAD = 256  # sentences that are tokenised at a time
_Span = tuple[str, int, int]  # of a name: label, start, end


class NerSettings(Settings):
    """How sentences are read."""

    stride: Annotated[int, Field(ge=0)] = 64  # tokens that two windows share
    context: Annotated[int, Field(ge=0)] = 0  # tokens of the document shown on either side
    lenient: bool = False  # an I- that follows nothing of its kind begins a name


@dataclass(frozen=True)
class FoundEntity:
    """A name that was found."""

    label: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class FoundEntities:
    """The names in a text, and the tag of each of its words."""

    entities: tuple[FoundEntity, ...]
    tags: tuple[str, ...]


class AskSentence(Ask):
    """A text with names in it."""

    text: Annotated[Text, Field(description="The text to find names in.", examples=[TEXT])]

    truths = ("tokens", "tags", "entities")


class Ner(LabelTask[Sentence, FoundEntities]):
    """A linear reading of the first piece of each word."""

    name = "ner"
    title = "Names"
    Config = NerSettings
    Ask = AskSentence
    answers = FoundEntities
    metric = "f1"
    config: NerSettings

    def __init__(self, config: NerSettings, tags: Sequence[str]) -> None:
        super().__init__(config)
        self.tags = tuple(tags)
        self.number = {tag: i for i, tag in enumerate(self.tags)}

    @classmethod
    def read(
        cls,
        paths: Sequence[str | Path],
        columns: Columns,
        watcher: ErrorPolicy,
        config: NerSettings,
    ) -> Iterator[Sentence]:
        """Sentences with their entities."""
        (path,) = paths
        return read_sentences(path, watcher, columns, lenient=config.lenient)

    @classmethod
    def read_files(
        cls,
        paths: Sequence[str | Path],
        columns: Columns,
        watcher: ErrorPolicy,
        config: NerSettings,
    ) -> Iterator[Sentence]:
        """With other numbers for the documents of each file: none goes on in the next file."""
        for which, path in enumerate(paths):
            for sentence in cls.read([path], columns, watcher, config):
                yield replace(sentence, document=sentence.document * len(paths) + which)

    @classmethod
    def noted(
        cls, paths: Sequence[str | Path], columns: Columns, *, labelled: bool = True
    ) -> tuple[Columns, list[str]]:
        """How the tags of a file are written."""
        lines = file_format(paths[0], None) == ".jsonl"
        return columns, [] if lines else [scheme_of(paths[0])]

    def record(self, ask: AskSentence, where: str, number: int) -> Sentence:
        """A sentence of a document of its own: none may be the context of another one."""
        return replace(sentence_of(ask.text, where), document=number)

    def questions(
        self, source: str | Path, columns: Columns, watcher: ErrorPolicy
    ) -> Iterator[Sentence]:
        """As from a labelled file, whose answers are not needed."""
        return self.read([source], columns, watcher, self.config)

    @classmethod
    def recognises(cls, path: Path, ending: str, lines: Sequence[str]) -> bool:
        """Columns of words and tags, or JSON lines with tokens or entities."""
        if ending == ".jsonl":
            found = any(mark in line for line in lines for mark in MARKS)
            return found and not any('"question"' in line for line in lines)
        return ending != ".json" and ending not in TABLES

    @classmethod
    def learn(cls, config: NerSettings, records: Sequence[Sentence]) -> "Ner":
        """With the labels that occur."""
        labels = sorted({e.label for record in records for e in record.entities or ()})
        if not labels:
            raise DataError(
                f"{records[0].where}: no entity in {len(records):,} sentences; need some to learn "
                "from. Is the tag in the last column?"
            )
        return cls(config, [OUTSIDE, *(f"{letter}-{label}" for label in labels for letter in "BI")])

    @classmethod
    def restore(cls, shape: Shape, config: NerSettings) -> "Ner | None":
        """For labels on tokens."""
        labels = shape.labels
        return cls(config, labels.names) if labels and labels.on == "token" else None

    @property
    def head(self) -> LabelsConfig:
        """A layer with a row for each tag."""
        return LabelsConfig(on="token", names=self.tags)

    def check(self, records: Sequence[Sentence]) -> None:
        """Every label must have occurred in training."""
        known = sorted({tag[2:] for tag in self.tags if tag != OUTSIDE})
        for record in records:
            if record.entities is None:
                raise DataError(f"{record.where}: no entities are given; need them to learn.")
            for entity in record.entities:
                if entity.label not in known:
                    raise unknown_label(record.where, entity.label, known)

    def windows(
        self,
        records: Iterable[Sentence],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Sentence, list[LabelWindow]]]:
        """One each, or as many as a long sentence needs."""
        room, tokenizer = tokens.max_length - 2, tokens.source

        def group(numbered: tuple[int, Sentence]) -> int:
            """Sentences that may be shown beside each other; without a context, just enough."""
            number, record = numbered
            return record.document if self.config.context else number // AHEAD

        for _, numbered in groupby(enumerate(records), group):
            some = [record for _, record in numbered]
            pieces = self._pieces(some, tokenizer)
            every = list(chain.from_iterable(chain.from_iterable(pieces)))
            end = 0
            for record, words in zip(some, pieces, strict=True):
                begin, end = end, end + sum(map(len, words))
                before, after = self._around(begin, len(every) - end, room - (end - begin))
                shown = every[begin - before : end + after]
                starts = list(accumulate(map(len, words), initial=before))
                yield record, self._windows(record, shown, starts, tokenizer.vocabulary, room)

    def truths(self, windows: LabelWindows) -> Tensor:
        """The number of each word's tag."""
        tags: list[list[int]] = [window.truth for window in windows]
        return torch.tensor(list(chain.from_iterable(tags)), dtype=torch.long)

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy over the tags of each word."""
        return F.cross_entropy(scores, batch.labels[TRUTH], reduction="sum")

    def losses(self, scores: Tensor, batch: Batch) -> Tensor:
        """The same of each word."""
        return F.cross_entropy(scores, batch.labels[TRUTH], reduction="none")

    def decode(
        self, record: Sentence, windows: LabelWindows, values: Sequence[Scores], tokens: Tokenizers
    ) -> FoundEntities:
        """The best tag of each word, and the names that they spell."""
        words: list[list[int]] = [window.about for window in windows]
        order = np.argsort(list(chain.from_iterable(words)), kind="stable")
        every = np.concatenate(values)[order]
        best: list[int] = every.argmax(axis=1).tolist()
        shares: Scores = softmax(every)[np.arange(len(best)), best]
        tags = tuple(self.tags[i] for i in best)
        found = []
        for first, last, label in spelled(tags):
            start, end = record.words[first][0], record.words[last - 1][1]
            share = float(shares[first:last].mean())
            found.append(FoundEntity(label, record.text[start:end], start, end, share))
        return FoundEntities(tuple(found), tags)

    def view(self, record: Sentence, answer: FoundEntities) -> SpansView:
        """The names in the text."""
        spans = [
            Marked(start=n.start, end=n.end, label=n.label, share=n.probability)
            for n in answer.entities
        ]
        return SpansView(text=record.text, spans=spans)

    def agreement(
        self, truth: Sequence[FoundEntities], found: Sequence[FoundEntities]
    ) -> Agreement:
        """The share of the words that are tagged alike, among those in which either sees a name."""
        texts = zip(truth, found, strict=True)
        words = [pair for a, b in texts for pair in zip(a.tags, b.tags, strict=True)]
        same = [a == b for a, b in words if (a, b) != (OUTSIDE, OUTSIDE)]
        if not same:
            raise DataError(
                f"the model sees no name in {len(truth):,} texts, so that nothing can be compared. "
                "Give texts with names in them (--texts)."
            )
        said = "{share:.2%} of the words in names of {texts:,} texts are tagged alike"
        return Agreement(sum(same) / len(same), 0.9, said)

    def score(
        self, records: Sequence[Sentence], answers: Sequence[FoundEntities]
    ) -> dict[str, float]:
        """Precision, recall and F1 of whole names, as CoNLL counts them."""
        total = sum(_hits(records, answers).values(), LabelCounts())
        return {"f1": total.f1, "precision": total.precision, "recall": total.recall}

    def mistake(self, record: Sentence, answer: FoundEntities) -> tuple[str, str, float] | None:
        """The names that were missed, and those that are none: the more, the worse."""
        truth, said = _spans(record.entities or ()), _spans(answer.entities)
        if truth == said:
            return None
        missed, invented = (
            ", ".join(f"{label} {record.text[a:b]}" for label, a, b in sorted(spans)) or "-"
            for spans in (truth - said, said - truth)
        )
        return missed, invented, float(len(truth ^ said))

    def detail(self, records: Sequence[Sentence], answers: Sequence[FoundEntities]) -> Detail:
        """A line for each label, the sentences with the most mistakes."""
        detail, found = super().detail(records, answers), _hits(records, answers)
        detail.table = [found[label].row(label) for label in sorted(found)]
        return detail

    def _pieces(self, some: Sequence[Sentence], tokenizer: Tokenizer) -> list[list[list[int]]]:
        """The pieces of each word of each sentence; a word that has none is an unknown one."""
        found = iter(tokenizer.ids([own.text[a:b] for own in some for a, b in own.words]))
        unknown_id = [tokenizer.vocabulary.unknown]
        return [[next(found) or unknown_id for _ in record.words] for record in some]

    def _around(self, before: int, after: int, spare: int) -> tuple[int, int]:
        """How many of the tokens before and after a sentence are shown, with so much room left."""
        before, after = min(before, self.config.context), min(after, self.config.context)
        if before + after > spare:
            before = min(before, max(spare, 0) // 2)
            after = min(after, max(spare, 0) - before)
        return before, after

    def _windows(
        self, record: Sentence, shown: list[int], starts: list[int], words: Vocabulary, room: int
    ) -> list[LabelWindow]:
        """The windows over all tokens that are shown; each word of the sentence is in one."""
        truth = None if record.entities is None else self._truth(record)
        owners = fullest_windows(starts[:-1], len(shown), room, self.config.stride)
        found = []
        for begin in sorted(set(owners)) or [0]:  # a text may have no word in it
            own = [i for i, owner in enumerate(owners) if owner == begin]
            part = [words.cls, *shown[begin : begin + room], words.sep]
            places = [starts[i] - begin + 1 for i in own]
            tags = None if truth is None else [truth[i] for i in own]
            found.append(LabelWindow(part, [0] * len(part), places, tags, own))
        return found

    def _truth(self, record: Sentence) -> list[int]:
        """The number of each word's tag."""
        tags = [OUTSIDE] * len(record.words)
        for entity in record.entities or ():
            inside = [
                i for i, (a, b) in enumerate(record.words) if a >= entity.start and b <= entity.end
            ]
            for i in inside:
                tags[i] = f"{'B' if i == inside[0] else 'I'}-{entity.label}"
        return [self.number[tag] for tag in tags]


def _hits(records: Sequence[Sentence], answers: Sequence[FoundEntities]) -> dict[str, LabelCounts]:
    """By label, how many names were said, true, and both."""
    truth = [_spans(record.entities or ()) for record in records]
    said = [_spans(answer.entities) for answer in answers]
    return count_labels(truth, said, lambda span: span[0])


def _spans(entities: Iterable[Entity | FoundEntity]) -> set[_Span]:
    return {(entity.label, entity.start, entity.end) for entity in entities}
