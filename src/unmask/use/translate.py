"""Texts -> their translations, in order, in steady memory; and what each word looked at."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unmask.checkpoint.folder import Folder
from unmask.data.parallel import Pair
from unmask.errors import DataError, FolderError
from unmask.memory import keep_freed_memory
from unmask.model.attention import recording
from unmask.model.config import SearchSettings
from unmask.model.decoder import Decoder
from unmask.model.recurrent import RecurrentDecoder
from unmask.model.shape import DECODER
from unmask.objectives.nextword import PairTokens, decoder_states
from unmask.tasks.base import answers
from unmask.tasks.engine import Live
from unmask.tasks.translate import Translate, TranslateSettings, Translation
from unmask.text.spacing import join_pieces
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokens
from unmask.use.maps import Table, merged_weights


@dataclass(frozen=True)
class Looked:
    """Where each word that is said looked in the source: rows of shares that make 1."""

    source: list[str]
    target: list[str]
    weights: Table  # [T, S]


class Translator:
    """A network with a decoder, and the words of both sides."""

    def __init__(self, folder: Folder, limit: int | None = None) -> None:
        self.path, self.network = folder.path, folder.network
        decoder = folder.network.shape.decoder
        if decoder is None or folder.target is None:
            raise FolderError(
                f"{folder.path}: the model has no decoder; it reads texts and says none. Train one "
                "with `unmask translate train`."
            )
        keep_freed_memory()
        limit = limit or folder.network.config.max_length
        self.tokens = Tokens(folder.needed_tokenizer(), limit, folder.target)
        self.limit, self.most = limit, decoder.max_length
        self.split_texts = 0  # how many were too long and were translated in parts

    def translate(
        self, texts: Iterable[str], settings: SearchSettings | None = None, *, split: bool = True
    ) -> Iterator[Translation]:
        """Every text's translation; without `split` one that is too long is refused."""
        search = settings or SearchSettings()
        task = Translate(TranslateSettings(search=search), split=split)
        pairs = (Pair(text, None, f"text {number}") for number, text in enumerate(texts, 1))
        for _, found in answers(Live(self.network), self.tokens, task, pairs):
            yield found
        self.split_texts += task.split_texts

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
        words = self._said.encode(target).ids[1:-1]
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
        vocabulary = self._said.vocabulary
        ids = self.tokens.source.encode(source).ids
        # What was cut off has no end.
        target = [vocabulary.cls, *words, vocabulary.sep][: self.most + 1]
        pair = PairTokens(ids, target)
        batch = Translate(TranslateSettings()).batch([pair], self.tokens)
        with torch.inference_mode(), recording(self._lookers) as weights:
            decoder_states(self.network, batch)
        seen = [found[0].mean(dim=0) for found in weights]  # over heads
        # A Transformer gives all words in each layer, a recurrent decoder one after another.
        at_once = len(seen[0]) == len(pair.answers)
        mean = torch.stack(seen).mean(dim=0) if at_once else torch.cat(seen)
        across, columns = _words(self.tokens.source, ids)
        down, rows = _words(self._said, target[1:])
        return Looked(across, down, merged_weights(mean.float().numpy(), rows, columns))

    @property
    def _said(self) -> Tokenizer:
        """The tokenizer of what is said."""
        return self.tokens.target or self.tokens.source

    @property
    def _lookers(self) -> torch.nn.ModuleList:
        """Whatever looks at the source; nothing, where a decoder has one context for all of it."""
        decoder: Any = self.network.heads[DECODER]
        if isinstance(decoder, Decoder):
            return torch.nn.ModuleList(decoder.crosses())
        assert isinstance(decoder, RecurrentDecoder)
        alignment = decoder.alignment
        return torch.nn.ModuleList([] if alignment is None else [alignment])


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """The words that ids spell, and the word of each id."""
    return join_pieces([tokenizer.vocabulary.tokens[id] for id in ids])
