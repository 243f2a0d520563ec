"""Translation, or any other sequence-to-sequence task: a text -> a text.

    pair -> tokens of both sides -> packed rows -> encoder -> decoder -> tokens -> text -> BLEU

A source and its target share a row number and an owner, so several pairs fit into one packed row
and one more mask keeps them apart. Only recurrent layers have to unpack them. A target is
[CLS] tokens [SEP]: the decoder reads it from [CLS] on and predicts the next token, up to [SEP].
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
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
from unmask.data.packing import cheapest_rows
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
from unmask.tasks.alignment import AlignedHypothesis, AligningSession
from unmask.tasks.asks import Ask, Text
from unmask.tasks.base import Task
from unmask.tasks.forward import Forward, network_of
from unmask.tasks.results import AnswerSession, Detail, Mistake, Result
from unmask.tasks.views import AlignmentView, TextView
from unmask.text.detokenize import merge_word_pieces, with_spaces
from unmask.text.sentences import split_sentences
from unmask.text.tokens import Tokenizers

# Source tokens that are decoded together, by all cores or by each worker. Decoding steps are short:
# with 512 tokens per worker, two workers wait for Python's lock; with 2,048 they hardly do.
TRANSLATE_TOKENS, TRANSLATE_WORKER_TOKENS = 4096, 2048
EXAMPLE = "Ein Hund rennt über eine Wiese."  # shown on the page and in `unmask info`
NEIGHBOURS = 20  # steps whose pairs are sorted together by length, so that little is padding


Beams = Annotated[int, Field(ge=1, le=64, description="Beam size; 1 is greedy search.")]
Penalty = Annotated[
    float, Field(ge=0.0, le=5.0, description="Scores are divided by length to this power.")
]
Alignment = Annotated[
    bool, Field(description="Also return which source words each word attended to.")
]


class TranslateSettings(NextTokenSettings):
    """Teacher forcing and label smoothing, and how translations are searched."""

    search: SearchSettings = SearchSettings()


class AskTranslation(Ask):
    """A text to translate."""

    text: Annotated[Text, Field(description="The text to translate.", examples=[EXAMPLE])]
    beams: Beams = 1
    penalty: Penalty = 1.0
    alignment: Alignment = False

    options = frozenset({"beams", "penalty", "alignment"})
    truths = ("second",)


@dataclass(frozen=True, repr=False)
class Translation(Result):
    """A translation, with the mean log-probability of its tokens."""

    text: str
    score: float
    words: tuple[int, ...] | None = None  # token ids; None for a text in parts or a blank one
    alignment: AlignmentView | None = None  # if requested, and the decoder has attention

    def to_dict(self) -> dict[str, Any]:
        """Return the translation as JSON, without its token ids."""
        table: dict[str, Any] = {"text": self.text, "score": self.score}
        if self.alignment is not None:
            table["alignment"] = self.alignment.model_dump()
        return table


EMPTY = Translation("", 0.0)


class Translate(Task[Pair, Translation]):
    """An encoder-decoder that generates the translation token by token."""

    name = "translate"
    title = "Translate"
    Config = TranslateSettings
    Ask = AskTranslation
    answers = Translation
    metric = "bleu"
    generates = True
    decodes = parallel = True
    batch_tokens, worker_tokens = TRANSLATE_TOKENS, TRANSLATE_WORKER_TOKENS
    neighbours = NEIGHBOURS

    config: TranslateSettings

    def __init__(
        self, config: TranslateSettings, *, split: bool = True, alignment: bool = False
    ) -> None:
        super().__init__(config)
        self.split = split  # split a text that is too long, or refuse it
        self.alignment = alignment  # also return alignments
        self.split_texts = 0  # number of texts that were split

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], columns: Columns, watcher: ErrorPolicy, config: Any
    ) -> Iterator[Pair]:
        """Yield the pairs of a table, or of two parallel files."""
        return read_pairs(paths, columns, watcher)

    @classmethod
    def resolve_columns(
        cls, paths: Sequence[str | Path], columns: Columns, *, labelled: bool = True
    ) -> tuple[Columns, list[str]]:
        """Return the columns unchanged, and a line about which file or column is which side."""
        return columns, [describe_columns(paths, columns)] if labelled else []

    @classmethod
    def restore(cls, shape: Shape, config: TranslateSettings) -> "Translate | None":
        """Make the task of a model with a decoder."""
        return cls(config) if shape.decoder else None

    @classmethod
    def groups(cls, records: Sequence[Pair]) -> Sequence[Hashable]:
        """Return the source of each pair, which may have several translations."""
        return [record.source for record in records]

    def check(self, records: Sequence[Pair]) -> None:
        """Refuse pairs without a translation."""
        for pair in records:
            if pair.target is None:
                raise DataError(f"{pair.where}: no translation; training and scoring need it.")

    @classmethod
    def texts(cls, records: Iterable[Pair]) -> tuple[Iterable[str], Iterable[str]]:
        """Return the source texts and the target texts."""
        first, second = tee(records)
        return (pair.source for pair in first), (pair.target or "" for pair in second)

    def record(self, ask: AskTranslation, where: str, number: int) -> Pair:
        """Return a text without a translation."""
        return Pair(ask.text, None, where)

    def with_options(self, ask: AskTranslation) -> Self:
        """Return the task with the search options of a question."""
        search = {"beam_size": ask.beams, "length_penalty": ask.penalty}
        settings = validate(SearchSettings, search, where=self.name)
        return self.with_search(settings, alignment=ask.alignment)

    def with_search(self, settings: SearchSettings, *, alignment: bool = False) -> Self:
        """Return a copy of the task with other search settings."""
        config = self.config.model_copy(update={"search": settings})
        return type(self)(config, split=self.split, alignment=alignment)

    def heads(self, config: ModelConfig, tokens: Tokenizers, decoder: Mapping[str, Any]) -> Heads:
        """Return a decoder; settings that are not given are the encoder's."""
        target = tokens.target or tokens.source
        from_encoder = config.model_dump(include={"layers", "max_length", "cell"})
        fixed = {"vocab_size": len(target.vocabulary), "shared": target is tokens.source}
        table = {**from_encoder, **decoder, **fixed}
        decoder_config = validate(DecoderConfig, table, where="recipe [model.decoder]")
        self._refuse_forcing(decoder_config)
        return {DECODER: decoder_config}

    def _refuse_forcing(self, decoder: DecoderConfig) -> None:
        """Refuse a teacher-forcing ratio below 1 for a decoder that never reads its own output."""
        # Forcing chooses between the label and the decoder's own token as the next input. These
        # decoders have no such input, or get all inputs in one call.
        inputs = "no tokens" if decoder.feeds in ("nothing", "context") else ""
        if decoder.cell == "attention":
            inputs = "all target tokens at once"
        if inputs and not self.config.always:
            raise SettingsError(
                f"task.teacher_forcing is {self.config.teacher_forcing}, but this decoder reads "
                f"{inputs}. Set task.teacher_forcing to 1."
            )

    @property
    def objective(self) -> Objective:
        """Next-token prediction by the decoder."""
        return NextToken(self.config, term=self.name)

    def windows(
        self,
        records: Iterable[Pair],
        tokens: Tokenizers,
        *,
        learn: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> Iterator[tuple[Pair, list[PairTokens]]]:
        """Yield a text whole, or in parts if it is too long; a blank text has no windows.

        With `learn`, a pair that is too long is skipped. Cut, its sides would no longer match.
        """
        numbers = numbers or count()
        # The tokenizers encode texts in groups, ahead of the loop; `tee` keeps just these.
        pairs, first, second = tee(records, 3)
        target = tokens.target or tokens.source
        sources = tokens.source.encode_many([pair.source] for pair in first)
        targets = target.encode_many([pair.target or ""] for pair in second)
        encoded = zip(pairs, sources, targets, strict=True)
        for position, (pair, source, reference) in enumerate(encoded, 1):
            target_ids = () if pair.target is None else reference.ids
            pair_tokens = PairTokens(source.ids, target_ids)
            if learn:
                yield pair, [pair_tokens] if len(pair_tokens.ids) <= tokens.max_length else []
                continue
            # The decoder never reads the last token, so a target may be one longer than the model.
            if len(target_ids) > tokens.max_length + 1:
                target_ids = ()  # the text is translated all the same, its loss is unknown
            parts = self._parts(pair.source, source.ids, position, tokens)
            # A target cannot be divided among the parts of its source.
            part_target = target_ids if len(parts) == 1 else ()
            yield pair, [PairTokens(ids, part_target, next(numbers)) for ids in parts]

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
                f"text {number}: {len(ids):,} tokens; the model's maximum is {limit}. Shorten the "
                "text, or remove --no-split to have it split into sentences."
            )
        self.split_texts += 1
        return [
            window.ids
            for sentence in split_sentences(text)
            for window in tokens.source.windows(sentence, limit=limit, stride=0)
            if not all(window.special)  # a sentence may have no token of its own
        ]

    def batch(
        self, windows: Sequence[PairTokens], tokens: Tokenizers, term: str | None = None
    ) -> Batch:
        """Lay pairs out in packed rows, both sides of a pair in the same row."""
        rows = cheapest_rows([len(window.ids) for window in windows])
        pad_id = tokens.source.vocabulary.pad
        return batch_of_pairs(windows, rows, pad_id=pad_id, term=term or self.name)

    def session(
        self, forward: Forward, windows: Sequence[PairTokens], tokens: Tokenizers
    ) -> AnswerSession:
        """Start decoding all windows together."""
        rows = cheapest_rows([len(window.source) for window in windows])
        begin = AligningSession if self.alignment else DecodingSession
        with torch.inference_mode():
            return begin(network_of(forward), windows, rows, tokens, self.config.search)

    def decode(
        self,
        record: Pair,
        windows: Sequence[PairTokens],
        values: Sequence[Hypothesis],
        tokens: Tokenizers,
    ) -> Translation:
        """Turn tokens into text and join the parts of a long text."""
        if not values:
            return EMPTY
        token_count = sum(len(part.words) + 1 for part in values)  # scores include [SEP]
        text = " ".join(detokenized(part.words, tokens) for part in values)
        # The mean over the tokens of all parts, so that long parts count for more.
        score = sum(part.score for part in values) / token_count
        if len(values) > 1:
            return Translation(text, score)
        (best,) = values
        alignment = best.alignment if isinstance(best, AlignedHypothesis) else None
        return Translation(text, score, tuple(best.words), alignment)

    def plain(self, answer: Translation) -> dict[str, Any]:
        """Return the translation as JSON, without its token ids."""
        return answer.to_dict()

    def row(self, answer: Translation) -> dict[str, Any]:
        """Return the translation as columns, with a name that differs from that of the text."""
        plain = self.plain(answer)
        return {"translation": plain.pop("text"), **plain}

    def view(self, record: Pair, answer: Translation) -> TextView:
        """Return the text, with its alignment if there is one."""
        return TextView(text=answer.text, score=answer.score, alignment=answer.alignment)

    def score(self, records: Sequence[Pair], answers: Sequence[Translation]) -> dict[str, float]:
        """Return BLEU and chrF of lower-cased text, as computed by sacrebleu."""
        texts, references = [a.text for a in answers], [pair.target or "" for pair in records]
        return {name: metric.corpus_score(texts, [references]).score for name, metric in metrics()}

    def score_loss(self, loss: float) -> dict[str, float]:
        """Return the perplexity."""
        return {"perplexity": perplexity(loss)}

    def detail(self, records: Sequence[Pair], answers: Sequence[Translation]) -> Detail:
        """Return the translations that are least like their references."""
        # chrF, because BLEU needs four-grams in common: of one sentence it is often near 0.
        (_, _), (_, chrf) = metrics()
        mistakes = []
        for pair, answer in zip(records, answers, strict=True):
            reference = pair.target or ""
            similarity: float = chrf.sentence_score(answer.text, [reference]).score
            severity = 1 - similarity / 100
            mistakes.append(Mistake(pair.where, pair.source, reference, answer.text, severity))
        return Detail(mistakes=mistakes)


def detokenized(ids: Sequence[int], tokens: Tokenizers) -> str:
    """Turn target token ids into text with ordinary spacing."""
    vocabulary = (tokens.target or tokens.source).vocabulary.tokens
    words, _ = merge_word_pieces([vocabulary[word] for word in ids])
    return with_spaces(words)


def metrics() -> list[tuple[str, Any]]:
    """Return sacrebleu's BLEU and chrF for lower-cased text."""
    require("scoring translations", "sacrebleu", extra="translate")
    from sacrebleu.metrics import BLEU, CHRF

    return [("bleu", BLEU(lowercase=True)), ("chrf", CHRF(lowercase=True))]


def perplexity(loss: float) -> float:
    """Return exp(loss), capped."""
    return exp(min(loss, 100.0))  # a loss of 710 would overflow
