"""(f) A text, said again word by word in reversed order: an answer that grows token by token."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

import unmask
from unmask.data.batch import Batch
from unmask.data.labelled.columns import Columns
from unmask.data.packing import cheapest_rows
from unmask.data.read.lines import ErrorPolicy, read_lines
from unmask.model.config import ModelConfig, SearchSettings
from unmask.model.shape import DECODER, DecoderConfig, Heads, Shape
from unmask.objectives import next_token
from unmask.objectives.base import Objective
from unmask.objectives.next_token import DecodingSession, PairTokens
from unmask.tasks.asks import Ask, Text
from unmask.tasks.base import Task
from unmask.tasks.forward import Forward, network_of
from unmask.tasks.views import TextView
from unmask.text.tokens import Tokenizers


class AskWords(Ask):
    """A text to turn round."""

    text: Annotated[Text, Field(description="Words.", examples=["one two three"])]


@dataclass(frozen=True)
class Line:
    """A text."""

    text: str
    where: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.text,)


@dataclass(frozen=True)
class Said:
    text: str


class Spell(Task[Line, Said]):
    """A small decoder with the encoder's own words."""

    name = "spell"
    Config = next_token.NextTokenSettings
    Ask = AskWords
    answers = Said
    metric = "right"
    generates = True

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Line]:
        for number, line in read_lines(paths[0], watcher):
            yield Line(line, f"{paths[0]}:{number}")

    @classmethod
    def restore(cls, shape: Shape, config: Any) -> "Spell | None":
        return cls(config) if shape.decoder and shape.decoder.shared else None

    def record(self, ask: AskWords, where: str, number: int) -> Line:
        return Line(ask.text, where)

    def heads(self, config: ModelConfig, tokens: Tokenizers, decoder: Mapping[str, Any]) -> Heads:
        size = len(tokens.source.vocabulary)
        return {DECODER: DecoderConfig(vocab_size=size, layers=1, max_length=64, shared=True)}

    @property
    def objective(self) -> Objective:
        return next_token.NextToken(self.config, term=self.name)

    def windows(
        self,
        records: Iterable[Line],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Line, list[PairTokens]]]:
        records, texts = tee(records)
        found = tokens.source.encode_many(([line.text] for line in texts), limit=60)
        for line, own in zip(records, found, strict=True):
            turned = [own.ids[0], *own.ids[1:-1][::-1], own.ids[-1]]
            yield line, [PairTokens(own.ids, turned)]

    def batch(self, windows: Sequence[Any], tokens: Tokenizers, term: str | None = None) -> Batch:
        rows, pad = cheapest_rows([len(w.ids) for w in windows]), tokens.source.vocabulary.pad
        return next_token.batch_of_pairs(windows, rows, pad_id=pad, term=term or self.name)

    def session(self, forward: Forward, windows: Any, tokens: Tokenizers) -> DecodingSession:
        rows = cheapest_rows([len(window.source) for window in windows])
        with torch.inference_mode():
            return DecodingSession(network_of(forward), windows, rows, tokens, SearchSettings())

    def decode(self, record: Line, windows: Any, values: Any, tokens: Tokenizers) -> Said:
        return Said(tokens.source.decode(values[0].words))

    def view(self, record: Line, answer: Said) -> TextView:
        return TextView(text=answer.text)

    def score(self, records: Sequence[Line], answers: Sequence[Said]) -> dict[str, float]:
        pairs = zip(records, answers, strict=True)
        right = sum(line.text.split()[::-1] == own.text.split() for line, own in pairs)
        return {"right": right / len(records)}


unmask.register("task", "spell", Spell)
