"""Translation: a text in, a text in another language out (or any other sequence to sequence).

    pair -> tokens of both sides -> rows -> encoder -> decoder -> words -> text -> BLEU

A text and its translation share a row number and an owner, so that rows may hold several; only
layers that read word by word take them apart. A target is [CLS] words [SEP]: the decoder hears it
from [CLS] on and must answer from the first word to [SEP].
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, tee
from math import exp
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import Field

from unmask.data.batch import Batch
from unmask.data.labelled.columns import Columns
from unmask.data.labelled.parallel import Pair, describe_columns, read_pairs
from unmask.data.packing import rows_of
from unmask.data.read.lines import ErrorPolicy
from unmask.model.config import ModelConfig, SearchSettings
from unmask.model.decoding.beam_search import Hypothesis
from unmask.model.shape import DECODER, DecoderConfig, Heads, Shape
from unmask.objectives.base import Objective
from unmask.objectives.next_token import (
    DecodingSession,
    NextToken,
    NextTokenSettings,
    PairTokens,
    batch_of_pairs,
)
from unmask.system.errors import DataError, SettingsError, require
from unmask.system.settings import validate
from unmask.tasks.alignment import Aligned, Aligning
from unmask.tasks.asks import Ask, Text
from unmask.tasks.base import Task
from unmask.tasks.forward import Forward, network_of
from unmask.tasks.results import AnswerSession, Detail, Mistake
from unmask.tasks.views import AlignmentView, TextView
from unmask.text.detokenize import merge_word_pieces, with_spaces
from unmask.text.sentences import split_sentences
from unmask.text.tokens import Tokenizers

# Tokens of the sources that are searched together, by all cores or by each. A step has many small
# sums: in small batches workers would wait for Python's lock more than they compute.
AT_ONCE, OF_WORKER = 4096, 2048
EXAMPLE = "Ein Hund rennt über eine Wiese."  # to try a model with
NEIGHBOURS = 20  # steps whose pairs are sorted by length together


Beams = Annotated[int, Field(ge=1, le=64, description="Width of the beam; 1 is greedy.")]
Penalty = Annotated[
    float, Field(ge=0.0, le=5.0, description="Scores are divided by length to this power.")
]
Alignment = Annotated[
    bool, Field(description="Also return which source words each word attended to.")
]


class TranslateSettings(NextTokenSettings):
    """What is learned, and how a translation is looked for."""

    search: SearchSettings = SearchSettings()


class AskTranslation(Ask):
    """A text to translate."""

    text: Annotated[Text, Field(description="The text to translate.", examples=[EXAMPLE])]
    beams: Beams = 1
    penalty: Penalty = 1.0
    alignment: Alignment = False

    options = frozenset({"beams", "penalty", "alignment"})
    truths = ("second",)


@dataclass(frozen=True)
class Translation:
    """What was said, and how sure the model was of a word, on average (a log-probability)."""

    text: str
    score: float
    words: tuple[int, ...] | None = None  # as they were said; None if in parts, or not at all
    alignment: AlignmentView | None = None  # if it is wanted and there are words


BLANK = Translation("", 0.0)


class Translate(Task[Pair, Translation]):
    """A decoder on an encoder says the translation word by word."""

    name = "translate"
    title = "Translate"
    Config = TranslateSettings
    Ask = AskTranslation
    answers = Translation
    metric = "bleu"
    generates = True
    decodes = parallel = True
    batch_tokens, worker_tokens = AT_ONCE, OF_WORKER
    neighbours = NEIGHBOURS

    config: TranslateSettings

    def __init__(
        self, config: TranslateSettings, *, split: bool = True, alignment: bool = False
    ) -> None:
        super().__init__(config)
        self.split = split  # translate a text that is too long in parts, or refuse it
        self.alignment = alignment  # also say where words looked
        self.split_texts = 0  # how many were

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Pair]:
        """The pairs of a table, or of two parallel files."""
        return read_pairs(paths, columns, watcher)

    @classmethod
    def noted(
        cls, paths: Sequence[str | Path], columns: Columns, *, labelled: bool = True
    ) -> tuple[Columns, list[str]]:
        """Which file or column is which side."""
        return columns, [describe_columns(paths, columns)] if labelled else []

    @classmethod
    def restore(cls, shape: Shape, config: TranslateSettings) -> "Translate | None":
        """For a network with a decoder."""
        return cls(config) if shape.decoder else None

    def check(self, records: Sequence[Pair]) -> None:
        """Every text must have its translation."""
        for pair in records:
            if pair.target is None:
                raise DataError(f"{pair.where}: no translation; need it to learn or to score.")

    @classmethod
    def texts(cls, records: Iterable[Pair]) -> tuple[Iterable[str], Iterable[str]]:
        """Sources and targets."""
        first, second = tee(records)
        return (pair.source for pair in first), (pair.target or "" for pair in second)

    def record(self, ask: AskTranslation, where: str, number: int) -> Pair:
        """A text without a translation."""
        return Pair(ask.text, None, where)

    def asked(self, ask: AskTranslation) -> Self:
        """With the search of a question."""
        search = ask.model_dump(include={"beams", "penalty"})
        settings = validate(SearchSettings, search, where=self.name)
        return self.searching(settings, alignment=ask.alignment)

    def searching(self, settings: SearchSettings, *, alignment: bool = False) -> Self:
        """With another search."""
        config = self.config.model_copy(update={"search": settings})
        return type(self)(config, split=self.split, alignment=alignment)

    def heads(self, config: ModelConfig, tokens: Tokenizers, given: Mapping[str, Any]) -> Heads:
        """A decoder of the encoder's shape, where nothing else is given."""
        target = tokens.target or tokens.source
        own = config.model_dump(include={"layers", "max_length", "cell"})
        words = {"vocab_size": len(target.vocabulary), "shared": target is tokens.source}
        decoder = validate(DecoderConfig, {**own, **given, **words}, where="recipe [model.decoder]")
        self._refuse_forcing(decoder)
        return {DECODER: decoder}

    def _refuse_forcing(self, decoder: DecoderConfig) -> None:
        """Refuse to force only some words on a decoder that never hears its own words."""
        fed = "no word" if decoder.feeds in ("nothing", "context") else ""
        if decoder.cell == "attention":
            fed = "all words at once: a Transformer is trained on the truth"
        if fed and not self.config.always:
            raise SettingsError(
                f"task.forcing is {self.config.forcing}, but this decoder is fed {fed}. Leave it "
                "at 1."
            )

    @property
    def objective(self) -> Objective:
        """The next word, everywhere."""
        return NextToken(self.config, term=self.name)

    def windows(
        self,
        records: Iterable[Pair],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Pair, list[PairTokens]]]:
        """A text as it is read: whole, or in parts if it is too long; a blank one not at all.

        A pair to learn from is never cut: its sides would not match any more.
        """
        numbers = numbers or count()
        pairs, first, second = tee(records, 3)
        target = tokens.target or tokens.source
        sources = tokens.source.encode_many([pair.source] for pair in first)
        targets = target.encode_many([pair.target or ""] for pair in second)
        for at, (pair, source, said) in enumerate(zip(pairs, sources, targets, strict=True), 1):
            answer = () if pair.target is None else said.ids
            whole = PairTokens(source.ids, answer)
            if learn:
                yield pair, [whole] if len(whole.ids) <= tokens.max_length else []
                continue
            if len(answer) > tokens.max_length + 1:
                answer = ()  # its loss is unknown; it is translated all the same
            parts = self._parts(pair.source, source.ids, at, tokens)
            known = answer if len(parts) == 1 else ()
            yield pair, [PairTokens(ids, known, next(numbers)) for ids in parts]

    def _parts(
        self, text: str, ids: Sequence[int], number: int, tokens: Tokenizers
    ) -> list[Sequence[int]]:
        if not text.strip():
            return []
        limit = tokens.max_length
        if len(ids) <= limit:
            return [ids]
        if not self.split:
            raise DataError(
                f"text {number}: {len(ids):,} tokens; the model holds {limit}. Shorten it, or let "
                "it be split (without --no-split)."
            )
        self.split_texts += 1
        return [
            window.ids
            for sentence in split_sentences(text)
            for window in tokens.source.windows(sentence, limit=limit, stride=0)
            if not all(window.special)
        ]

    def batch(
        self, windows: Sequence[PairTokens], tokens: Tokenizers, term: str | None = None
    ) -> Batch:
        """Pairs in packed rows."""
        rows = rows_of([len(window.ids) for window in windows])
        pad_id = tokens.source.vocabulary.pad
        return batch_of_pairs(windows, rows, pad_id=pad_id, term=term or self.name)

    def session(
        self, forward: Forward, windows: Sequence[PairTokens], tokens: Tokenizers
    ) -> AnswerSession:
        """Begin to search."""
        rows = rows_of([len(window.source) for window in windows])
        begin = Aligning if self.alignment else DecodingSession
        with torch.inference_mode():
            return begin(network_of(forward), windows, rows, tokens, self.config.search)

    def decode(
        self,
        record: Pair,
        windows: Sequence[PairTokens],
        values: Sequence[Hypothesis],
        tokens: Tokenizers,
    ) -> Translation:
        """The text that was said, parts joined."""
        if not values:
            return BLANK
        words = sum(len(own.words) + 1 for own in values)
        text = " ".join(written(own.words, tokens) for own in values)
        score = sum(own.score for own in values) / words
        if len(values) > 1:
            return Translation(text, score)
        (only,) = values
        alignment = only.looked if isinstance(only, Aligned) else None
        return Translation(text, score, tuple(only.words), alignment)

    def plain(self, answer: Translation) -> dict[str, Any]:
        """Without the numbers of its words."""
        found: dict[str, Any] = {"text": answer.text, "score": answer.score}
        if answer.alignment is not None:
            found["alignment"] = answer.alignment.model_dump()
        return found

    def view(self, record: Pair, answer: Translation) -> TextView:
        """The text, and where its words looked."""
        return TextView(text=answer.text, score=answer.score, alignment=answer.alignment)

    def score(self, records: Sequence[Pair], answers: Sequence[Translation]) -> dict[str, float]:
        """BLEU and chrF of lower-cased text, as sacrebleu computes them."""
        said, truth = [own.text for own in answers], [pair.target or "" for pair in records]
        return {name: metric.corpus_score(said, [truth]).score for name, metric in metrics()}

    def score_loss(self, loss: float) -> dict[str, float]:
        """Between how many words the model wavers, on average."""
        return {"perplexity": perplexity(loss)}

    def detail(self, records: Sequence[Pair], answers: Sequence[Translation]) -> Detail:
        """The translations that have least in common with what was asked for."""
        (_, _), (_, chrf) = metrics()
        found = []
        for pair, own in zip(records, answers, strict=True):
            truth = pair.target or ""
            near: float = chrf.sentence_score(own.text, [truth]).score
            found.append(Mistake(pair.where, pair.source, truth, own.text, 1 - near / 100))
        return Detail(mistakes=found)


def written(words: Sequence[int], tokens: Tokenizers) -> str:
    """What was said, as it is written."""
    names = (tokens.target or tokens.source).vocabulary.tokens
    found, _ = merge_word_pieces([names[word] for word in words])
    return with_spaces(found)


def metrics() -> list[tuple[str, Any]]:
    """BLEU and chrF, of lower-cased text; their signatures say how they were computed."""
    require("scoring translations", "sacrebleu", extra="translate")
    from sacrebleu.metrics import BLEU, CHRF

    return [("bleu", BLEU(lowercase=True)), ("chrf", CHRF(lowercase=True))]


def perplexity(loss: float) -> float:
    """The exponential of a loss."""
    return exp(min(loss, 100.0))
