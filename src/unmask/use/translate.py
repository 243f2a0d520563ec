"""Texts -> their translations, in order, in steady memory; and what each word looked at.

A text that is longer than the model holds is split into sentences, and those into stretches of
words if need be; a blank text stays blank.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.checkpoint.folder import Folder
from unmask.data.parallel import Pair
from unmask.errors import DataError, FolderError
from unmask.memory import keep_freed_memory
from unmask.model.attention import Alignment, Attention, listening
from unmask.model.config import DecoderConfig, SearchSettings
from unmask.model.decoder import Decoder
from unmask.model.search import Hypothesis
from unmask.tasks import engine
from unmask.tasks.translate import (
    Tokenizers,
    Tokens,
    Translate,
    batch_of,
    perplexity,
    said_of,
    side,
    states_of,
)
from unmask.text.sentences import split_sentences
from unmask.text.vocabulary import CONTINUES

# Tokens of the sources that are searched together, by all cores or by each. A step has many small
# sums: in small batches workers would wait for Python's lock more than they compute.
AT_ONCE, OF_WORKER = 4096, 2048
Table = NDArray[np.float32]


@dataclass(frozen=True)
class Translation:
    """What was said, and how sure the model was of a word, on average (a log-probability)."""

    text: str
    score: float
    words: tuple[int, ...] | None = None  # as they were said; None if in parts, or not at all


@dataclass(frozen=True)
class Looked:
    """Where each word that is said looked in the source: rows of shares that make 1."""

    source: list[str]
    target: list[str]
    weights: Table  # [T, S]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A stretch of source, and its number among all that are asked."""

    tokens: Tokens
    number: int

    @property
    def ids(self) -> Sequence[int]:
        return self.tokens.ids

    @property
    def segments(self) -> Sequence[int]:
        return self.tokens.segments


class Translator:
    """A network with a decoder, and the words of both sides."""

    def __init__(self, folder: Folder) -> None:
        self.path, self.network = folder.path, folder.network
        if folder.network.decoder is None or folder.target is None:
            raise FolderError(
                f"{folder.path}: the model has no decoder; it reads texts and says none. Train one "
                "with `unmask translate train`."
            )
        keep_freed_memory()
        self.words = Tokenizers(folder.needed_tokenizer(), folder.target)
        self.limit = folder.network.config.max_length
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
                    yield _Asked(Tokens(side(ids)), number)
                    number += 1

        def answer(some: list[_Asked]) -> list[Hypothesis]:
            tokens, numbers = [own.tokens for own in some], [own.number for own in some]
            return said_of(self.network, tokens, self.words, how, numbers)

        found: list[Hypothesis] = []
        for own in engine.run(
            asked(),
            answer,
            workers=engine.Live(self.network).workers,
            tokens=AT_ONCE,
            worker_tokens=OF_WORKER,
        ):
            while parts and parts[0] == 0:  # blank ones before it
                parts.popleft()
                yield Translation("", 0.0)
            found.append(own)
            if len(found) == parts[0]:
                parts.popleft()
                yield self._joined(found)
                found = []
        yield from (Translation("", 0.0) for _ in parts)

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
        parts: list[list[int]] = []
        for sentence in split_sentences(text):
            pieces = self.words.source.encode(sentence).ids[1:-1]
            room = self.limit - 2
            vocabulary = self.words.source.vocabulary
            for at in range(0, len(pieces), room):
                parts.append([vocabulary.cls, *pieces[at : at + room], vocabulary.sep])
        return parts

    def evaluate(
        self, pairs: Sequence[Pair], settings: SearchSettings | None = None
    ) -> tuple[dict[str, float], list[str]]:
        """BLEU, chrF, loss and perplexity on pairs, and what was said."""
        task = Translate.with_search(settings or SearchSettings())
        said = [own.text for own in self.translate((pair.source for pair in pairs), settings)]
        tokens = [
            own
            for own in self.words.tokens(pairs)
            if len(own.ids) <= min(self.limit, self._decoder.max_length)
        ]
        scores = task.score(said, [pair.target or "" for pair in pairs])
        if tokens:
            total, count = task.loss(self.network, tokens, self.words.source.vocabulary.pad)
            loss = total / max(count, 1)
            scores |= {"loss": loss, "perplexity": perplexity(loss)}
        return scores, said

    def looked(self, source: str, target: str | None = None) -> Looked:
        """Where each word of a translation looked: of the model's own, unless one is given."""
        lookers = self._lookers()
        if target is None:
            (found,) = self.translate([source], split=False)
            return self._looked(source, found.words or (), lookers)
        words = self.words.target.encode(target).ids[1:-1]
        most = self._decoder.max_length - 1
        if len(words) > most:
            raise DataError(
                f"the translation: {len(words):,} tokens; the model says "
                f"{most} at most. Shorten it."
            )
        return self._looked(source, words, lookers)

    def looked_at(self, source: str, found: Translation) -> Looked | None:
        """The same of a translation that was made; None if it was in parts, or nothing looks."""
        if found.words is None or not self._found():
            return None
        return self._looked(source, found.words, self._lookers())

    def _looked(self, source: str, words: Sequence[int], lookers: torch.nn.ModuleList) -> Looked:
        """Heads and layers are averaged; pieces are joined to words."""
        marks = self.words.marks
        ids = self.words.source.encode(source).ids
        most = self._decoder.max_length  # what was cut off has no end
        heard, answers = [marks.begin, *words][:most], [*words, marks.end][:most]
        tokens = Tokens(side(ids), side(heard), answers)
        seen: list[torch.Tensor] = []

        def keep(layer: int, weights: torch.Tensor) -> torch.Tensor:
            seen.append(weights[0].mean(dim=0))  # over heads: [T, S]
            return weights

        batch = batch_of([tokens], pad_id=self.words.source.vocabulary.pad)
        with torch.inference_mode(), listening(lookers, keep):
            states_of(self.network, batch)
        rows = len(tokens.answers)
        weights = torch.cat(seen) if len(seen) == rows else torch.stack(seen).mean(dim=0)
        return self._by_word(tokens, weights.float().numpy())

    @property
    def _decoder(self) -> DecoderConfig:
        own = self.network.heads.decoder
        assert own is not None, "the constructor refuses others"
        return own

    def _found(self) -> list[Attention | Alignment]:
        decoder = self.network.decoder
        if isinstance(decoder, Decoder):
            return list(decoder.crosses())
        return [] if decoder is None or decoder.alignment is None else [decoder.alignment]

    def _lookers(self) -> torch.nn.ModuleList:
        """Whatever looks at the source."""
        found = self._found()
        if not found:
            raise DataError(
                f"{self.path}: its decoder has one context for the whole source, and looks at no "
                "word of it. Take a model with attention."
            )
        return torch.nn.ModuleList(found)

    def _by_word(self, tokens: Tokens, weights: Table) -> Looked:
        source, target = self.words.source.vocabulary.tokens, self.words.target.vocabulary.tokens
        across, columns = _words([source[int(i)] for i in tokens.source.ids])
        down, rows = _words([target[int(i)] for i in tokens.answers])
        table = np.zeros((len(down), len(across)), np.float32)
        counts = np.bincount(rows, minlength=len(down))
        for row, weight in zip(rows, weights, strict=True):
            np.add.at(table[row], columns, weight / counts[row])
        return Looked(across, down, table)


def _words(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """Pieces joined to words, and the word of each piece."""
    words: list[str] = []
    numbers = []
    for token in tokens:
        if token.startswith(CONTINUES) and words:
            words[-1] += token.removeprefix(CONTINUES)
        else:
            words.append(token)
        numbers.append(len(words) - 1)
    return words, numbers
