"""Extractive question answering (SQuAD): a question and a passage -> a span of it, or no answer.

A passage longer than the model is read in overlapping windows, each after the question. Every
token gets a score as the first and as the last token of the answer. The answer is the best span
over all windows, copied verbatim from the passage. [CLS] as both ends stands for "no answer".
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

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
from unmask.tasks.metrics import normalized, softmax, word_f1
from unmask.tasks.results import Agreement, Result
from unmask.tasks.views import MarkedSpan, SpansView
from unmask.text.tokenizer import Encoded, Offsets
from unmask.text.tokens import Tokenizers

PASSAGE = "The book was written by Ada in the spring of 1843."  # shown on the page
# Margin of "no answer" without any candidate; finite, as JSON has no infinity.
NO_CANDIDATE_MARGIN = 1e4


class QaSettings(Settings):
    """How passages are windowed, and which spans may be answers."""

    stride: Annotated[int, Field(ge=0)] = 128  # tokens shared by two windows
    max_question_length: Count = 64  # tokens; the rest is truncated
    max_answer_length: Count = 30  # tokens
    n_best: Count = 20  # start and end tokens that are combined; also the most candidates returned
    unanswerable: bool = False  # a passage may hold no answer
    threshold: float = 0.0  # margin over the best span above which there is no answer

    old_names: ClassVar[Mapping[str, str]] = {
        "longest_question": "max_question_length",
        "longest_answer": "max_answer_length",
        "best": "n_best",
    }


@dataclass(frozen=True, repr=False)
class Candidate(Result):
    """A span that may be the answer, in characters of the passage."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True, repr=False)
class QaAnswer(Result):
    """The answer, "" if there is none, and the other candidates, best first."""

    text: str
    start: int  # in characters of the passage; -1 without an answer
    end: int
    probability: float
    nothing: float  # score of "no answer" minus score of the best span
    candidates: tuple[Candidate, ...]


class AskPassage(Ask):
    """A question and the passage that may answer it."""

    question: Annotated[Text, Field(description="The question.", examples=["Who wrote the book?"])]
    context: Annotated[
        Text,
        Field(title="Passage", description="The passage that may answer it.", examples=[PASSAGE]),
    ]
    id: Annotated[str | int | None, Field(description="An identifier of the question.")] = None

    truths = ("answers", "is_impossible")


class Qa(LabelTask[Question, QaAnswer]):
    """Two scores per token: it starts the answer, it ends the answer."""

    name = "qa"
    title = "Question answering"
    Config = QaSettings
    Ask = AskPassage
    answers = QaAnswer
    metric = "f1"
    config: QaSettings

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: QaSettings
    ) -> Iterator[Question]:
        """Yield questions with their passages and answers."""
        (path,) = paths
        return read_questions(path, watcher, columns)

    def record(self, ask: AskPassage, where: str, number: int) -> Question:
        """Return a question without an answer."""
        name = where if ask.id is None else str(ask.id)
        return Question(name, ask.question, ask.context, None, where)

    def questions(
        self, source: str | Path, columns: Columns, watcher: ErrorPolicy
    ) -> Iterator[Question]:
        """Yield the questions of a file in SQuAD's format, or the rows of a table."""
        if file_format(source, None) == ".json":
            return self.read([source], columns, watcher, self.config)
        return super().questions(source, columns, watcher)

    @classmethod
    def recognises(cls, path: Path, ending: str, lines: Sequence[str]) -> bool:
        """Whether the file is SQuAD's JSON, or JSON lines of questions with contexts."""
        return ending == ".json" or asks_about_passages(lines)

    @classmethod
    def groups(cls, records: Sequence[Question]) -> Sequence[Hashable]:
        """Return the passage of each question."""
        return [record.context for record in records]

    @classmethod
    def learn(cls, config: QaSettings, records: Sequence[Question]) -> "Qa":
        """Make the task; it allows "no answer" if the training data has such questions."""
        if not any(record.answers for record in records):
            raise DataError(
                f"{records[0].where}: none of {len(records):,} questions has an answer, so there "
                "is nothing to learn. Is it the right file?"
            )
        has_unanswerable = any(record.answers == () for record in records)
        return cls(
            config.model_copy(update={"unanswerable": config.unanswerable or has_unanswerable})
        )

    @classmethod
    def restore(cls, shape: Shape, config: QaSettings) -> "Qa | None":
        """Make the task of a model with labels on span ends."""
        return cls(config) if shape.labels and shape.labels.on == "span" else None

    @property
    def head(self) -> LabelsConfig:
        """A label head on every token with two outputs, start and end."""
        return LabelsConfig(on="span", names=("start", "end"), dropout=0.0)  # as BERT's

    def check(self, records: Sequence[Question]) -> None:
        """Refuse questions without an `answers` field."""
        for record in records:
            if record.answers is None:
                raise DataError(
                    f"{record.where}: 'answers' is missing; training and scoring need it. Add it."
                )

    def windows(
        self,
        records: Iterable[Question],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Question, list[LabelWindow]]]:
        """Yield as many windows as each passage needs."""
        limit = tokens.max_length
        first = min(self.config.max_question_length, limit // 2)  # leave half for the passage
        room = limit - first - 3
        stride = min(self.config.stride, max(room // 2, 0))  # a window must be able to advance
        for record in records:
            parts = tokens.source.windows(
                record.question, record.context, limit=limit, stride=stride, first=first
            )
            yield record, [_window(part, record) for part in parts]

    def truths(self, windows: LabelWindows) -> Tensor:
        """Return the first and last token of each answer.  -> [N, 2]"""
        return torch.tensor([window.truth for window in windows])

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the mean of start and end cross-entropy, summed over windows.  [P, 2] -> []"""
        return _loss(scores, batch, "sum")

    def losses(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the mean of start and end cross-entropy of each window."""
        return _loss(scores, batch, "none")

    def decode(
        self, record: Question, windows: LabelWindows, values: Sequence[Scores], tokens: Tokenizers
    ) -> QaAnswer:
        """Choose the best span over all windows, or no answer."""
        span_scores: dict[Offsets, float] = {}
        for window, logits in zip(windows, values, strict=True):
            for span, score in self._scored_spans(window, logits):
                # Overlapping windows may score a span twice; the higher score counts.
                span_scores[span] = max(score, span_scores.get(span, score))
        # Ties are broken by position, so the answer does not depend on the order of the windows.
        best = sorted(span_scores.items(), key=lambda item: (-item[1], item[0]))[
            : self.config.n_best
        ]
        # The window with the answer must be able to overrule all windows without it, hence the
        # minimum, as in BERT's SQuAD 2.0 script.
        null_score = min(float(logits[0].sum()) for logits in values)
        scores = [score for _, score in best] + [null_score] * self.config.unanswerable
        probabilities: list[float] = softmax(np.array(scores)).tolist()
        candidates = tuple(
            Candidate(record.context[a:b], a, b, score, probability)
            for ((a, b), score), probability in zip(best, probabilities, strict=False)
        )
        margin = null_score - best[0][1] if best else NO_CANDIDATE_MARGIN
        answer = QaAnswer(
            "", -1, -1, probabilities[-1] if probabilities else 1.0, margin, candidates
        )
        return self._with_threshold(answer)

    def row(self, answer: QaAnswer) -> dict[str, Any]:
        """Return the answer as columns; its text is called `answer`, beside the question."""
        plain = self.plain(answer)
        return {"answer": plain.pop("text"), **plain}

    def view(self, record: Question, answer: QaAnswer) -> SpansView:
        """Return the passage with the answer marked."""
        if not answer.text:
            return SpansView(text=record.context, spans=[], note="The passage does not answer it.")
        span = MarkedSpan(
            start=answer.start, end=answer.end, label="answer", share=answer.probability
        )
        return SpansView(text=record.context, spans=[span])

    def agreement(self, reference: Sequence[QaAnswer], answers: Sequence[QaAnswer]) -> Agreement:
        """Return the share of questions with the same answer, whatever the probabilities."""
        return Agreement.of([a.text == b.text for a, b in zip(reference, answers, strict=True)])

    def score(self, records: Sequence[Question], answers: Sequence[QaAnswer]) -> dict[str, float]:
        """Return SQuAD's exact match and F1; also F1 of each kind if some are unanswerable."""
        matches = np.array(
            [best_match(a.text, r.answers or ()) for r, a in zip(records, answers, strict=True)]
        )
        means: list[float] = matches.mean(axis=0).tolist()
        scores = dict(zip(("exact", "f1"), means, strict=True))
        answerable = np.array([bool(record.answers) for record in records])
        if not answerable.all():
            for name, chosen in (("answerable", answerable), ("unanswerable", ~answerable)):
                scores[f"f1_{name}"] = float(matches[chosen, 1].mean()) if chosen.any() else 0.0
        return scores

    def mistake(self, record: Question, answer: QaAnswer) -> tuple[str, str, float] | None:
        """Return labels, answer and confidence if the answer shares no word with any label."""
        spans = record.answers or ()
        if best_match(answer.text, spans)[1] > 0.0:
            return None
        truth = " | ".join(dict.fromkeys(span.text for span in spans))
        return truth or "(none)", answer.text or "(none)", answer.probability

    def choose_thresholds(
        self, records: Sequence[Question], answers: Sequence[QaAnswer]
    ) -> "tuple[Qa, Sequence[QaAnswer]]":
        """Choose the no-answer threshold with the highest F1 on these questions."""
        if not self.config.unanswerable:
            return self, answers
        answer_f1 = [
            best_match(a.candidates[0].text, r.answers or ())[1] if a.candidates else 0.0
            for r, a in zip(records, answers, strict=True)
        ]
        null_f1 = [float(not record.answers) for record in records]
        margins = np.array([answer.nothing for answer in answers])
        order = margins.argsort(kind="stable")
        # With a threshold after the k-th margin, k questions are answered. Each gains its F1 and
        # loses the 1.0 that an unanswerable question would have scored: one pass finds the best k.
        gains = np.cumsum(np.array(answer_f1)[order] - np.array(null_f1)[order])
        count = int(np.insert(gains, 0, 0.0).argmax())
        threshold = margins[order[count - 1]] if count else margins[order[0]] - 1.0
        settled = Qa(self.config.model_copy(update={"threshold": float(threshold)}))
        return settled, [settled._with_threshold(answer) for answer in answers]

    def _with_threshold(self, answer: QaAnswer) -> QaAnswer:
        """Apply the threshold: fill in the best candidate, or no answer."""
        no_answer = self.config.unanswerable and answer.nothing > self.config.threshold
        if no_answer or not answer.candidates:
            return replace(answer, text="", start=-1, end=-1)
        best = answer.candidates[0]
        return replace(
            answer, text=best.text, start=best.start, end=best.end, probability=best.probability
        )

    def _scored_spans(self, window: LabelWindow, scores: Scores) -> Iterator[tuple[Offsets, float]]:
        """Yield spans of the passage between likely start and end tokens, with scores."""
        offsets: Sequence[Offsets] = window.metadata
        logits = scores[list(window.segments).index(1) :][: len(offsets)]
        # Only the best starts and ends are combined: trying all pairs is quadratic in the length.
        ranked: list[list[int]] = np.argsort(-logits, axis=0, kind="stable").T.tolist()
        starts, ends = (places[: self.config.n_best] for places in ranked)
        for start in starts:
            for end in ends:
                if start <= end < start + self.config.max_answer_length:
                    span = offsets[start][0], offsets[end][1]
                    yield span, float(logits[start, 0] + logits[end, 1])


def asks_about_passages(lines: Sequence[str]) -> bool:
    """Whether JSON lines hold questions with their passages."""
    return any('"question"' in line and '"context"' in line for line in lines)


def _loss(scores: Tensor, batch: Batch, reduction: str) -> Tensor:
    parts: list[Tensor] = list(scores.split(batch.length.tolist()))
    # The softmax is over the tokens of one window; -inf gives padding a probability of 0.
    rows = pad_sequence(parts, True, float("-inf"))  # [N, S, 2]
    ends = batch.labels[TRUTH]
    first, last = (
        F.cross_entropy(rows[:, :, side], ends[:, side], reduction=reduction) for side in (0, 1)
    )
    return (first + last) / 2


def _window(part: Encoded, record: Question) -> LabelWindow:
    """Make a window; `metadata` holds the character offsets of its passage tokens."""
    begin = part.segments.index(1)
    offsets = part.offsets[begin:-1]
    truth = None if record.answers is None else (0, 0)
    if record.answers:
        # Of several answers, the first is learned.
        truth = _answer_tokens(offsets, begin, record.answers[0])
    return LabelWindow(part.ids, part.segments, range(len(part.ids)), truth, offsets)


def _answer_tokens(offsets: Sequence[Offsets], begin: int, answer: Span) -> tuple[int, int]:
    """Return the first and last token of an answer; [CLS] twice if the window lacks part of it."""
    if not offsets or answer.start < offsets[0][0] or answer.end > offsets[-1][1]:
        return 0, 0
    first = next(i for i, (_, end) in enumerate(offsets) if end > answer.start)
    last = max(i for i, (start, _) in enumerate(offsets) if start < answer.end)
    return begin + first, begin + last


def best_match(predicted: str, answers: Sequence[Span]) -> tuple[float, float]:
    """Return exact match and F1 with the closest label; no label means the empty answer."""
    truths = [span.text for span in answers if normalized(span.text)] or [""]
    exact = max(float(normalized(predicted) == normalized(truth)) for truth in truths)
    return exact, max(word_f1(predicted, truth) for truth in truths)
