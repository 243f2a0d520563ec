"""Named entities: text -> one tag per word (B- starts, I- continues, O outside an entity) -> spans.

A word is tagged at its first token, as in BERT. A sentence longer than the model is read in
overlapping windows; each word is tagged in the window that shows the most context around it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from unmask.data.batch import Batch
from unmask.data.labelled.conll import OUTSIDE, Entity, Sentence, entities_of_tags, sentence_of
from unmask.model.shape import LabelsConfig, Shape
from unmask.system.errors import DataError
from unmask.system.settings import Settings
from unmask.tasks.asks import Ask, Text
from unmask.tasks.labels import (
    TRUTH,
    LabelWindow,
    LabelWindows,
    Scores,
    best_context_windows,
    unknown_label,
)
from unmask.tasks.metrics import LabelCounts, count_labels, softmax
from unmask.tasks.results import Agreement, Detail, Result
from unmask.tasks.sentences import SentenceTask
from unmask.tasks.views import MarkedSpan, SpansView
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokenizers
from unmask.text.vocabulary import Vocabulary

TEXT = "Ada Lovelace met Charles Babbage in London."  # shown on the page
TOKENIZE_AT_ONCE = 256  # sentences per call of the tokenizer, which is parallel within a call
_Span = tuple[str, int, int]  # label, start, end


class NerSettings(Settings):
    """How sentences are read and windowed."""

    stride: Annotated[int, Field(ge=0)] = 64  # tokens shared by two windows
    context: Annotated[int, Field(ge=0)] = 0  # document tokens shown on each side
    lenient: bool = False  # an I- tag without a predecessor of its label starts an entity


@dataclass(frozen=True, repr=False)
class FoundEntity(Result):
    """A predicted entity: its span in characters and the mean probability of its tags."""

    label: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True, repr=False)
class FoundEntities(Result):
    """The entities in a text, and the tag of each word."""

    entities: tuple[FoundEntity, ...]
    tags: tuple[str, ...]


class AskSentence(Ask):
    """A text with named entities in it."""

    text: Annotated[Text, Field(description="The text to find entities in.", examples=[TEXT])]

    truths = ("tokens", "tags", "entities")


class Ner(SentenceTask[FoundEntities]):
    """A linear layer on the first token of each word."""

    name = "ner"
    title = "Named entities"
    Config = NerSettings
    Ask = AskSentence
    answers = FoundEntities
    metric = "f1"
    config: NerSettings

    def __init__(self, config: NerSettings, tags: Sequence[str]) -> None:
        super().__init__(config)
        self.tags = tuple(tags)
        self.number = {tag: i for i, tag in enumerate(self.tags)}

    def record(self, ask: AskSentence, where: str, number: int) -> Sentence:
        """Make a sentence in a document of its own, so that no other question is its context."""
        return replace(sentence_of(ask.text, where), document=number)

    @classmethod
    def learn(cls, config: NerSettings, records: Sequence[Sentence]) -> "Ner":
        """Make the task with the labels that occur."""
        labels = sorted({entity.label for record in records for entity in record.entities or ()})
        if not labels:
            raise DataError(
                f"{records[0].where}: no entity in {len(records):,} sentences, so there is "
                "nothing to learn. Is the tag in the last column?"
            )
        return cls(config, [OUTSIDE, *(f"{letter}-{label}" for label in labels for letter in "BI")])

    @classmethod
    def restore(cls, shape: Shape, config: NerSettings) -> "Ner | None":
        """Make the task of a model with labels on tokens."""
        labels = shape.labels
        return cls(config, labels.names) if labels and labels.on == "token" else None

    @property
    def head(self) -> LabelsConfig:
        """A label head on tokens, with one output per tag."""
        return LabelsConfig(on="token", names=self.tags)

    def check(self, records: Sequence[Sentence]) -> None:
        """Refuse sentences without entities, and labels that are not in the training data."""
        known = sorted({tag[2:] for tag in self.tags if tag != OUTSIDE})
        for record in records:
            if record.entities is None:
                raise DataError(f"{record.where}: entities are missing; training needs them.")
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
        """Yield one window per sentence, or several for a long one."""
        room, tokenizer = tokens.max_length - 2, tokens.source

        def group(numbered: tuple[int, Sentence]) -> int:
            """Group by document for context; without context, only to batch the tokenizer."""
            number, record = numbered
            return record.document if self.config.context else number // TOKENIZE_AT_ONCE

        for _, numbered in groupby(enumerate(records), group):
            group_records = [record for _, record in numbered]
            token_ids = self._token_ids(group_records, tokenizer)
            all_ids = list(chain.from_iterable(chain.from_iterable(token_ids)))
            end = 0
            for record, word_ids in zip(group_records, token_ids, strict=True):
                begin, end = end, end + sum(map(len, word_ids))
                before, after = self._context_sizes(begin, len(all_ids) - end, room - (end - begin))
                visible = all_ids[begin - before : end + after]
                starts = list(accumulate(map(len, word_ids), initial=before))
                yield record, self._windows(record, visible, starts, tokenizer.vocabulary, room)

    def truths(self, windows: LabelWindows) -> Tensor:
        """Return the tag index of each word.  -> [N]"""
        tags: list[list[int]] = [window.truth for window in windows]
        return torch.tensor(list(chain.from_iterable(tags)), dtype=torch.long)

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy summed over words."""
        return F.cross_entropy(scores, batch.labels[TRUTH], reduction="sum")

    def losses(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each word."""
        return F.cross_entropy(scores, batch.labels[TRUTH], reduction="none")

    def decode(
        self, record: Sentence, windows: LabelWindows, values: Sequence[Scores], tokens: Tokenizers
    ) -> FoundEntities:
        """Take the best tag of each word and join tags into entities."""
        # Scores come window by window; `metadata` puts them back into the order of the words.
        word_indices: list[list[int]] = [window.metadata for window in windows]
        order = np.argsort(list(chain.from_iterable(word_indices)), kind="stable")
        scores = np.concatenate(values)[order]
        best: list[int] = scores.argmax(axis=1).tolist()
        probabilities: Scores = softmax(scores)[np.arange(len(best)), best]
        tags = tuple(self.tags[i] for i in best)
        entities = []
        for first, last, label in entities_of_tags(tags):
            start, end = record.words[first][0], record.words[last - 1][1]
            probability = float(probabilities[first:last].mean())
            entities.append(FoundEntity(label, record.text[start:end], start, end, probability))
        return FoundEntities(tuple(entities), tags)

    def view(self, record: Sentence, answer: FoundEntities) -> SpansView:
        """Return the text with its entities marked."""
        spans = [
            MarkedSpan(start=n.start, end=n.end, label=n.label, share=n.probability)
            for n in answer.entities
        ]
        return SpansView(text=record.text, spans=spans)

    def agreement(
        self, reference: Sequence[FoundEntities], answers: Sequence[FoundEntities]
    ) -> Agreement:
        """Return the share of equal tags, of words that either model puts into an entity."""
        texts = zip(reference, answers, strict=True)
        words = [pair for a, b in texts for pair in zip(a.tags, b.tags, strict=True)]
        equal = [a == b for a, b in words if (a, b) != (OUTSIDE, OUTSIDE)]  # most words are O
        if not equal:
            raise DataError(
                f"the model finds no entity in {len(reference):,} texts, so there is nothing to "
                "compare. Use texts with entities (--texts)."
            )
        text = "{share:.2%} of the entity words in {texts:,} texts have the same tag"
        return Agreement(sum(equal) / len(equal), 0.9, text)

    def score(
        self, records: Sequence[Sentence], answers: Sequence[FoundEntities]
    ) -> dict[str, float]:
        """Return precision, recall and F1 of whole entities, as the CoNLL script counts them."""
        total = sum(_counts(records, answers).values(), LabelCounts())
        return {"f1": total.f1, "precision": total.precision, "recall": total.recall}

    def mistake(self, record: Sentence, answer: FoundEntities) -> tuple[str, str, float] | None:
        """Return the missed and the invented entities; severity is their number."""
        truth, predicted = _spans(record.entities or ()), _spans(answer.entities)
        if truth == predicted:
            return None
        missed, invented = (
            ", ".join(f"{label} {record.text[a:b]}" for label, a, b in sorted(spans)) or "-"
            for spans in (truth - predicted, predicted - truth)
        )
        return missed, invented, float(len(truth ^ predicted))

    def detail(self, records: Sequence[Sentence], answers: Sequence[FoundEntities]) -> Detail:
        """Return scores by label and the sentences with the most mistakes."""
        detail, counts = super().detail(records, answers), _counts(records, answers)
        detail.table = [counts[label].row(label) for label in sorted(counts)]
        return detail

    def _token_ids(self, texts: Sequence[Sentence], tokenizer: Tokenizer) -> list[list[list[int]]]:
        """Tokenize each word of each sentence: [sentence][word] -> token ids."""
        ids_of_words = iter(tokenizer.ids([s.text[a:b] for s in texts for a, b in s.words]))
        # A word may lose all its characters, such as a zero-width space; it still needs a token.
        unknown_id = [tokenizer.vocabulary.unknown]
        return [[next(ids_of_words) or unknown_id for _ in text.words] for text in texts]

    def _context_sizes(self, before: int, after: int, spare: int) -> tuple[int, int]:
        """Return how many context tokens fit before and after a sentence, in `spare` tokens."""
        before, after = min(before, self.config.context), min(after, self.config.context)
        if before + after > spare:  # half each; what `before` leaves goes to `after`
            before = min(before, max(spare, 0) // 2)
            after = min(after, max(spare, 0) - before)
        return before, after

    def _windows(
        self, record: Sentence, ids: list[int], starts: list[int], words: Vocabulary, room: int
    ) -> list[LabelWindow]:
        """Cut the visible tokens into windows; each word is tagged in exactly one."""
        truth = None if record.entities is None else self._truth(record)
        owners = best_context_windows(starts[:-1], len(ids), room, self.config.stride)
        windows = []
        for begin in sorted(set(owners)) or [0]:  # a text without words still needs a window
            word_indices = [i for i, owner in enumerate(owners) if owner == begin]
            part = [words.cls, *ids[begin : begin + room], words.sep]
            # + 1 for [CLS], which stands before the visible tokens
            places = [starts[i] - begin + 1 for i in word_indices]
            tags = None if truth is None else [truth[i] for i in word_indices]
            windows.append(LabelWindow(part, [0] * len(part), places, tags, word_indices))
        return windows

    def _truth(self, record: Sentence) -> list[int]:
        """Return the tag index of each word."""
        tags = [OUTSIDE] * len(record.words)
        for entity in record.entities or ():
            inside = [
                i for i, (a, b) in enumerate(record.words) if a >= entity.start and b <= entity.end
            ]
            for i in inside:
                tags[i] = f"{'B' if i == inside[0] else 'I'}-{entity.label}"
        return [self.number[tag] for tag in tags]


def _counts(texts: Sequence[Sentence], answers: Sequence[FoundEntities]) -> dict[str, LabelCounts]:
    """Count predicted, true and correct entities by label."""
    truth = [_spans(record.entities or ()) for record in texts]
    predicted = [_spans(answer.entities) for answer in answers]
    return count_labels(truth, predicted, lambda span: span[0])


def _spans(entities: Iterable[Entity | FoundEntity]) -> set[_Span]:
    return {(entity.label, entity.start, entity.end) for entity in entities}
