"""(e) Which words of a text answer a topic: a question of its own, answered by spans."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

import unmask
from unmask.data.batch import Batch
from unmask.data.labelled.columns import Columns
from unmask.data.read.lines import ErrorPolicy, read_lines
from unmask.model.shape import LabelsConfig, Shape
from unmask.system.settings import parse_json
from unmask.tasks.asks import Ask, Text
from unmask.tasks.labels import TRUTH, LabelTask, LabelWindow
from unmask.tasks.views import MarkedSpan, SpansView
from unmask.text.tokens import Tokenizers

NAMES = ("other", "about")


class AskTopic(Ask):
    """A text, and a topic to look for."""

    text: Annotated[Text, Field(description="The text to read.", examples=["the cat ate fish"])]
    topic: Annotated[Text, Field(description="What to look for.", examples=["animals"])]

    truths = ("words",)


@dataclass(frozen=True)
class Topic:
    """A text with a topic, and the words about it where they are known."""

    text: str
    topic: str
    words: tuple[str, ...] | None
    where: str

    @property
    def key(self) -> tuple[str, ...]:
        return self.topic, self.text


@dataclass(frozen=True)
class Highlights:
    """The words that were found: start, end and how sure."""

    spans: tuple[tuple[int, int, float], ...]


class Highlight(LabelTask[Topic, Highlights]):
    """A yes or no for each token of the text."""

    name = "highlight"
    Ask = AskTopic
    answers = Highlights
    metric = "words_right"
    head = LabelsConfig(on="token", names=NAMES)

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Topic]:
        for number, line in read_lines(paths[0], watcher):
            row = columns.renamed(parse_json(line, where=(where := f"{paths[0]}:{number}")))
            yield Topic(row["text"], row["topic"], tuple(row["words"]), where)

    @classmethod
    def restore(cls, shape: Shape, config: Any) -> "Highlight | None":
        return cls(config) if shape.labels and shape.labels.names == NAMES else None

    def record(self, ask: AskTopic, where: str, number: int) -> Topic:
        return Topic(ask.text, ask.topic, None, where)

    def windows(
        self,
        records: Iterable[Topic],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Topic, list[LabelWindow]]]:
        for record in records:
            found = tokens.source.encode(record.topic, record.text, limit=tokens.max_length)
            begin = found.segments.index(1)
            offsets, places = found.offsets[begin:-1], range(begin, len(found) - 1)
            said = [record.text[a:b] for a, b in offsets]
            truth = None if record.words is None else [int(w in record.words) for w in said]
            window = LabelWindow(found.ids, found.segments, places, truth, offsets, found.cut)
            yield record, [window]

    def truths(self, windows: Sequence[LabelWindow]) -> Tensor:
        return torch.tensor([label for window in windows for label in window.truth])

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(scores, batch.labels[TRUTH], reduction="sum")

    def decode(self, record: Topic, windows: Any, values: Any, tokens: Tokenizers) -> Highlights:
        shares = torch.from_numpy(values[0]).softmax(dim=-1)[:, 1].tolist()
        spans = zip(windows[0].metadata, shares, strict=True)
        return Highlights(tuple((a, b, share) for (a, b), share in spans if share > 0.5))

    def view(self, record: Topic, answer: Highlights) -> SpansView:
        found = ((a, b, record.topic, s) for a, b, s in answer.spans)
        spans = [MarkedSpan(start=a, end=b, label=topic, share=s) for a, b, topic, s in found]
        return SpansView(text=record.text, spans=spans)

    def score(self, records: Sequence[Topic], answers: Sequence[Highlights]) -> dict[str, float]:
        pairs = zip(records, answers, strict=True)
        right = [{r.text[a:b] for a, b, _ in own.spans} == set(r.words or ()) for r, own in pairs]
        return {"words_right": sum(right) / len(right)}


unmask.register("task", "highlight", Highlight)
