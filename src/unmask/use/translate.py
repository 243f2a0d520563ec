"""Texts -> their translations, in order, in steady memory; and what each word looked at.

A text that is longer than the model holds is split into sentences, and those into stretches of
words if need be; a blank text stays blank.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from unmask.checkpoint.folder import Folder
from unmask.data.parallel import Pair
from unmask.errors import DataError, FolderError
from unmask.memory import keep_freed_memory
from unmask.model.attention import recording
from unmask.model.config import SearchSettings
from unmask.model.decoder import Decoder
from unmask.model.search import Hypothesis
from unmask.tasks import engine
from unmask.tasks.translate import (
    Tokenizers,
    Tokens,
    Translate,
    TranslateSettings,
    batch_of,
    perplexity,
    said_of,
    states_of,
)
from unmask.text.sentences import split_sentences
from unmask.text.spacing import join_pieces
from unmask.text.tokenizer import Tokenizer
from unmask.use.maps import Table, merged_weights

# Tokens of the sources that are searched together, by all cores or by each. A step has many small
# sums: in small batches workers would wait for Python's lock more than they compute.
AT_ONCE, OF_WORKER = 4096, 2048


@dataclass(frozen=True)
class Translation:
    """What was said, and how sure the model was of a word, on average (a log-probability)."""

    text: str
    score: float
    words: tuple[int, ...] | None = None  # as they were said; None if in parts, or not at all


BLANK = Translation("", 0.0)


@dataclass(frozen=True)
class Looked:
    """Where each word that is said looked in the source: rows of shares that make 1."""

    source: list[str]
    target: list[str]
    weights: Table  # [T, S]


@dataclass(frozen=True, slots=True)
class _Asked(Tokens):
    """A stretch of source, and its number among all that are asked."""

    number: int = 0


class Translator:
    """A network with a decoder, and the words of both sides."""

    def __init__(self, folder: Folder) -> None:
        self.path, self.network = folder.path, folder.network
        decoder = folder.network.heads.decoder
        if decoder is None or folder.target is None:
            raise FolderError(
                f"{folder.path}: the model has no decoder; it reads texts and says none. Train one "
                "with `unmask translate train`."
            )
        keep_freed_memory()
        self.words = Tokenizers(folder.needed_tokenizer(), folder.target)
        self.limit, self.most = folder.network.config.max_length, decoder.max_length
        self.split_texts = 0  # how many were too long and were translated in parts

    def translate(
        self,
        texts: Iterable[str],
        settings: SearchSettings | None = None,
        *,
        split: bool = True,
    ) -> Iterator[Translation]:
        """Every text's translation; without `split` one that is too long is refused."""
        how = settings or SearchSettings()
        parts: deque[int] = deque()  # of each text that waits

        def asked() -> Iterator[_Asked]:
            number = 0
            for at, text in enumerate(texts, start=1):
                found = self._parts(text, at, split)
                parts.append(len(found))
                for ids in found:
                    yield _Asked(ids, number=number)
                    number += 1

        def answer(some: list[_Asked]) -> list[Hypothesis]:
            return said_of(self.network, some, self.words, how, [own.number for own in some])

        said = engine.run(
            asked(),
            answer,
            workers=engine.Live(self.network).workers,
            tokens=AT_ONCE,
            worker_tokens=OF_WORKER,
        )
        for first in said:
            while parts[0] == 0:  # blank texts before it
                parts.popleft()
                yield BLANK
            yield self._joined([first, *islice(said, parts.popleft() - 1)])
        yield from (BLANK for _ in parts)

    def _joined(self, found: Sequence[Hypothesis]) -> Translation:
        words = sum(len(own.words) + 1 for own in found)
        text = " ".join(self.words.text(own.words) for own in found)
        said = tuple(found[0].words) if len(found) == 1 else None
        return Translation(text, sum(own.score for own in found) / words, said)

    def _parts(self, text: str, number: int, split: bool) -> list[list[int]]:
        """A text as it is read: whole, or in parts if it is too long; a blank one not at all."""
        if not text.strip():
            return []
        encoded = self.words.source.encode(text)
        if len(encoded) <= self.limit:
            return [encoded.ids]
        if not split:
            raise DataError(
                f"text {number}: {len(encoded):,} tokens; the model holds {self.limit}. Shorten "
                "it, or let it be split (without --no-split)."
            )
        self.split_texts += 1
        return [
            window.ids
            for sentence in split_sentences(text)
            for window in self.words.source.windows(sentence, limit=self.limit, stride=0)
            if not all(window.special)
        ]

    def evaluate(
        self, pairs: Sequence[Pair], settings: SearchSettings | None = None
    ) -> tuple[dict[str, float], list[str]]:
        """BLEU, chrF, loss and perplexity on pairs, and what was said."""
        task = Translate(TranslateSettings())
        said = [own.text for own in self.translate((pair.source for pair in pairs), settings)]
        tokens = [
            own for own in self.words.tokens(pairs) if len(own.ids) <= min(self.limit, self.most)
        ]
        scores = task.score(said, [pair.target or "" for pair in pairs])
        if tokens:
            total, count = task.loss(self.network, tokens, self.words.source.vocabulary.pad)
            loss = total / max(count, 1)
            scores |= {"loss": loss, "perplexity": perplexity(loss)}
        return scores, said

    def looked(self, source: str, target: str | None = None) -> Looked:
        """Where each word of a translation looked: of the model's own, unless one is given."""
        if not self._lookers:
            raise DataError(
                f"{self.path}: its decoder has one context for the whole source, and looks at no "
                "word of it. Take a model with attention."
            )
        if target is None:
            (found,) = self.translate([source], split=False)
            return self._looked(source, found.words or ())
        words = self.words.target.encode(target).ids[1:-1]
        if len(words) >= self.most:
            raise DataError(
                f"the translation: {len(words):,} tokens; the model says "
                f"{self.most - 1} at most. Shorten it."
            )
        return self._looked(source, words)

    def looked_at(self, source: str, found: Translation) -> Looked | None:
        """The same of a translation that was made; None if it was in parts, or nothing looks."""
        if found.words is None or not self._lookers:
            return None
        return self._looked(source, found.words)

    def _looked(self, source: str, words: Sequence[int]) -> Looked:
        """Heads and layers are averaged; pieces are joined to words."""
        marks = self.words.marks
        ids = self.words.source.encode(source).ids
        # What was cut off has no end.
        tokens = Tokens(ids, [marks.begin, *words, marks.end][: self.most + 1])
        batch = batch_of([tokens], pad_id=self.words.source.vocabulary.pad)
        with torch.inference_mode(), recording(self._lookers) as weights:
            states_of(self.network, batch)
        seen = [found[0].mean(dim=0) for found in weights]  # over heads
        # A Transformer gives all words in each layer, a recurrent decoder one after another.
        at_once = len(seen[0]) == len(tokens.answers)
        mean = torch.stack(seen).mean(dim=0) if at_once else torch.cat(seen)
        across, columns = _words(self.words.source, ids)
        down, rows = _words(self.words.target, tokens.answers)
        return Looked(across, down, merged_weights(mean.float().numpy(), rows, columns))

    @property
    def _lookers(self) -> torch.nn.ModuleList:
        """Whatever looks at the source; nothing, where a decoder has one context for all of it."""
        decoder = self.network.decoder
        if isinstance(decoder, Decoder):
            return torch.nn.ModuleList(decoder.crosses())
        alignment = None if decoder is None else decoder.alignment
        return torch.nn.ModuleList([] if alignment is None else [alignment])


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """The words that ids spell, and the word of each id."""
    return join_pieces([tokenizer.vocabulary.tokens[id] for id in ids])
