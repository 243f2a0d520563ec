"""Questions about a passage: the answer is a stretch of it, or that there is none (SQuAD).

A passage longer than the model is read in overlapping windows, each with the question before it.
Every token has a score for being the first of the answer and one for being the last; the best
stretch over all windows is the answer, exactly as it stands in the passage. That the passage does
not answer is the score of [CLS] for both.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from unmask.data.batch import Batch
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.squad import Question, Span, read_questions
from unmask.data.read.lines import ErrorPolicy, file_format
from unmask.model.config import Count
from unmask.model.shape import LabelsConfig, Shape
from unmask.system.errors import DataError
from unmask.system.settings import Settings
from unmask.tasks.asks import Ask, Text
from unmask.tasks.labels import TRUTH, LabelTask, LabelWindow, LabelWindows, Scores
from unmask.tasks.metrics import softmax
from unmask.tasks.results import Agreement
from unmask.tasks.views import Marked, SpansView
from unmask.text.tokenizer import Encoded, Offsets
from unmask.text.tokens import Tokenizers

PASSAGE = "The book was written by Ada in the spring of 1843."  # to try a model with
SURE = 1e4  # how much better no answer is where there is nothing to answer with


class QaSettings(Settings):
    """How passages are read, and which stretches are answers."""

    stride: Annotated[int, Field(ge=0)] = 128  # tokens that two windows share
    longest_question: Count = 64  # tokens; the rest is cut
    longest_answer: Count = 30  # tokens
    best: Count = 20  # first and last tokens that are tried, and answers that are given at most
    unanswerable: bool = False  # some passages do not answer: then the answer may be nothing
    threshold: float = 0.0  # ... where nothing is better than the best stretch by more than this


@dataclass(frozen=True)
class Candidate:
    """A stretch that may be the answer."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class QaAnswer:
    """The answer, "" where there is none, and what else it may be, best first."""

    text: str
    start: int  # in the passage; -1 without an answer
    end: int
    probability: float
    nothing: float  # how much better no answer is than the best stretch
    candidates: tuple[Candidate, ...]


class AskPassage(Ask):
    """A question and the passage that may answer it."""

    question: Annotated[Text, Field(description="The question.", examples=["Who wrote the book?"])]
    context: Annotated[
        Text,
        Field(title="Passage", description="The passage that may answer it.", examples=[PASSAGE]),
    ]
    id: Annotated[str | int | None, Field(description="The name of the question.")] = None

    truths = ("answers", "is_impossible")


class Qa(LabelTask[Question, QaAnswer]):
    """Two scores for each token: begins the answer, ends it."""

    name = "qa"
    title = "Answer"
    Config = QaSettings
    Ask = AskPassage
    answers = QaAnswer
    metric = "f1"
    config: QaSettings

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: QaSettings
    ) -> Iterator[Question]:
        """Questions with their passages."""
        (path,) = paths
        return read_questions(path, watcher, columns)

    def record(self, ask: AskPassage, where: str, number: int) -> Question:
        """A question without an answer."""
        name = where if ask.id is None else str(ask.id)
        return Question(name, ask.question, ask.context, None, where)

    def questions(
        self, source: str | Path, columns: Columns, watcher: ErrorPolicy
    ) -> Iterator[Question]:
        """As from a labelled file in SQuAD's format; else rows of a table."""
        if file_format(source, None) == ".json":
            return self.read([source], columns, watcher, self.config)
        return super().questions(source, columns, watcher)

    @classmethod
    def recognises(cls, path: Path, ending: str, lines: Sequence[str]) -> bool:
        """SQuAD's JSON, or lines with questions and contexts."""
        return ending == ".json" or asks_about_passages(lines)

    @classmethod
    def learn(cls, config: QaSettings, records: Sequence[Question]) -> "Qa":
        """Some are unanswerable if the training data has such."""
        if not any(record.answers for record in records):
            raise DataError(
                f"{records[0].where}: none of {len(records):,} questions has an answer; need some "
                "to learn from. Is it the right file?"
            )
        nothing = any(record.answers == () for record in records)
        return cls(config.model_copy(update={"unanswerable": config.unanswerable or nothing}))

    @classmethod
    def restore(cls, shape: Shape, config: QaSettings) -> "Qa | None":
        """For labels on the ends of a span."""
        return cls(config) if shape.labels and shape.labels.on == "span" else None

    @property
    def head(self) -> LabelsConfig:
        """A layer with two rows."""
        return LabelsConfig(on="span", names=("start", "end"), dropout=0.0)

    def check(self, records: Sequence[Question]) -> None:
        """Every question must have its answers."""
        for record in records:
            if record.answers is None:
                raise DataError(
                    f"{record.where}: 'answers' is missing; need it to learn or to score. Add it."
                )

    def windows(
        self,
        records: Iterable[Question],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Question, list[LabelWindow]]]:
        """As many as the passage needs."""
        limit = tokens.max_length
        first = min(self.config.longest_question, limit // 2)
        room = limit - first - 3
        stride = min(self.config.stride, max(room // 2, 0))  # a window must be able to advance
        for record in records:
            parts = tokens.source.windows(
                record.question, record.context, limit=limit, stride=stride, first=first
            )
            yield record, [_window(part, record) for part in parts]

    def truths(self, windows: LabelWindows) -> Tensor:
        """The places of the first and the last token."""
        return torch.tensor([window.truth for window in windows])

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """The mean of two cross-entropies over the tokens of a window.  [P, 2] -> []"""
        return _loss(scores, batch, "sum")

    def losses(self, scores: Tensor, batch: Batch) -> Tensor:
        """The same of each window."""
        return _loss(scores, batch, "none")

    def decode(
        self, record: Question, windows: LabelWindows, values: Sequence[Scores], tokens: Tokenizers
    ) -> QaAnswer:
        """The best stretch over all windows, or nothing."""
        found: dict[Offsets, float] = {}
        for window, table in zip(windows, values, strict=True):
            for stretch, score in self._stretches(window, table):
                found[stretch] = max(score, found.get(stretch, score))
        best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[: self.config.best]
        nothing = min(float(table[0].sum()) for table in values)
        totals = [score for _, score in best] + [nothing] * self.config.unanswerable
        shares: list[float] = softmax(np.array(totals)).tolist()
        candidates = tuple(
            Candidate(record.context[a:b], a, b, score, share)
            for ((a, b), score), share in zip(best, shares, strict=False)
        )
        margin = nothing - best[0][1] if best else SURE
        answer = QaAnswer("", -1, -1, shares[-1] if shares else 1.0, margin, candidates)
        return self._decided(answer)

    def view(self, record: Question, answer: QaAnswer) -> SpansView:
        """The answer in its passage."""
        if not answer.text:
            return SpansView(text=record.context, spans=[], note="The passage does not answer it.")
        span = Marked(start=answer.start, end=answer.end, label="answer", share=answer.probability)
        return SpansView(text=record.context, spans=[span])

    def agreement(self, truth: Sequence[QaAnswer], found: Sequence[QaAnswer]) -> Agreement:
        """The share of questions with the same answer, however sure."""
        return Agreement.of([a.text == b.text for a, b in zip(truth, found, strict=True)])

    def score(self, records: Sequence[Question], answers: Sequence[QaAnswer]) -> dict[str, float]:
        """SQuAD's exact match and F1; with unanswerable questions also of the two kinds."""
        each = np.array(
            [best_match(a.text, r.answers or ()) for r, a in zip(records, answers, strict=True)]
        )
        means: list[float] = each.mean(axis=0).tolist()
        found = dict(zip(("exact", "f1"), means, strict=True))
        has = np.array([bool(record.answers) for record in records])
        if not has.all():
            for name, chosen in (("answerable", has), ("unanswerable", ~has)):
                found[f"f1_{name}"] = float(each[chosen, 1].mean()) if chosen.any() else 0.0
        return found

    def mistake(self, record: Question, answer: QaAnswer) -> tuple[str, str, float] | None:
        """An answer that shares no word with the truth: the surer, the worse."""
        spans = record.answers or ()
        if best_match(answer.text, spans)[1] > 0.0:
            return None
        truth = " | ".join(dict.fromkeys(span.text for span in spans))
        return truth or "(none)", answer.text or "(none)", answer.probability

    def settle(
        self, records: Sequence[Question], answers: Sequence[QaAnswer]
    ) -> "tuple[Qa, Sequence[QaAnswer]]":
        """With the threshold that gives the most F1 on these questions."""
        if not self.config.unanswerable:
            return self, answers
        spoken = [
            best_match(a.candidates[0].text, r.answers or ())[1] if a.candidates else 0.0
            for r, a in zip(records, answers, strict=True)
        ]
        silent = [float(not record.answers) for record in records]
        margins = np.array([answer.nothing for answer in answers])
        order = margins.argsort(kind="stable")
        # With a threshold after the k-th in this order, k questions are answered.
        gains = np.cumsum(np.array(spoken)[order] - np.array(silent)[order])
        count = int(np.insert(gains, 0, 0.0).argmax())
        threshold = margins[order[count - 1]] if count else margins[order[0]] - 1.0
        settled = Qa(self.config.model_copy(update={"threshold": float(threshold)}))
        return settled, [settled._decided(answer) for answer in answers]

    def _decided(self, answer: QaAnswer) -> QaAnswer:
        """The best candidate, or nothing where that is better by more than the threshold."""
        none = self.config.unanswerable and answer.nothing > self.config.threshold
        if none or not answer.candidates:
            return replace(answer, text="", start=-1, end=-1)
        best = answer.candidates[0]
        return replace(
            answer, text=best.text, start=best.start, end=best.end, probability=best.probability
        )

    def _stretches(self, window: LabelWindow, scores: Scores) -> Iterator[tuple[Offsets, float]]:
        """Stretches of the passage that begin and end well, with their scores."""
        offsets: Sequence[Offsets] = window.about
        own = scores[list(window.segments).index(1) :][: len(offsets)]
        likeliest: list[list[int]] = np.argsort(-own, axis=0, kind="stable").T.tolist()
        firsts, lasts = (places[: self.config.best] for places in likeliest)
        for a in firsts:
            for b in lasts:
                if a <= b < a + self.config.longest_answer:
                    stretch = offsets[a][0], offsets[b][1]
                    yield stretch, float(own[a, 0] + own[b, 1])


def asks_about_passages(lines: Sequence[str]) -> bool:
    """Are these JSON lines of questions with their passages?"""
    return any('"question"' in line and '"context"' in line for line in lines)


def _loss(scores: Tensor, batch: Batch, reduction: str) -> Tensor:
    parts: list[Tensor] = list(scores.split(batch.length.tolist()))
    rows = pad_sequence(parts, True, float("-inf"))  # [N, S, 2]
    ends = batch.labels[TRUTH]
    first, last = (
        F.cross_entropy(rows[:, :, side], ends[:, side], reduction=reduction) for side in (0, 1)
    )
    return (first + last) / 2


def _window(part: Encoded, record: Question) -> LabelWindow:
    """A part of a passage; `about` says where in the passage its tokens are."""
    begin = part.segments.index(1)
    offsets = part.offsets[begin:-1]
    truth = None if record.answers is None else (0, 0)
    if record.answers:
        truth = _ends(offsets, begin, record.answers[0])
    return LabelWindow(part.ids, part.segments, range(len(part.ids)), truth, offsets)


def _ends(offsets: Sequence[Offsets], begin: int, answer: Span) -> tuple[int, int]:
    """The first and last token of an answer; [CLS] twice if the window does not hold it all."""
    if not offsets or answer.start < offsets[0][0] or answer.end > offsets[-1][1]:
        return 0, 0
    first = next(i for i, (_, end) in enumerate(offsets) if end > answer.start)
    last = max(i for i, (start, _) in enumerate(offsets) if start < answer.end)
    return begin + first, begin + last


def best_match(said: str, answers: Sequence[Span]) -> tuple[float, float]:
    """Exact match and F1 against the answer that fits best; no answer is the empty one."""
    truths = [span.text for span in answers if plain(span.text)] or [""]
    exact = max(float(plain(said) == plain(truth)) for truth in truths)
    return exact, max(overlap(said, truth) for truth in truths)


def overlap(said: str, truth: str) -> float:
    """F1 of the words of an answer, as SQuAD counts it.

    >>> overlap("the Eiffel Tower in Paris", "Eiffel Tower")
    0.6666666666666666
    """
    ours, theirs = plain(said).split(), plain(truth).split()
    if not ours or not theirs:
        return float(ours == theirs)
    same = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * same / (len(ours) + len(theirs)) if same else 0.0


def plain(text: str) -> str:
    """Without case, punctuation, articles and spare spaces: what SQuAD compares.

    >>> plain("The  Eiffel-Tower!")
    'eiffeltower'
    """
    letters = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())
