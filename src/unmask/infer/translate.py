"""Texts -> translations, in their order and in constant memory, with word alignments."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.checkpoint.folder import Folder
from unmask.data.labelled.parallel import Pair
from unmask.infer.answering import answer_records
from unmask.model.config import SearchSettings
from unmask.model.kernels.malloc import keep_freed_memory
from unmask.system.errors import DataError, FolderError
from unmask.tasks.alignment import Table, alignment_of
from unmask.tasks.forward import LiveForward
from unmask.tasks.results import Result
from unmask.tasks.translate import Translate, TranslateSettings, Translation
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokens import Tokenizers


@dataclass(frozen=True, repr=False)
class WordAlignment(Result):
    """Attention of each target word to the source words; every row sums to 1."""

    source: list[str]
    target: list[str]
    weights: Table  # [T, S]


class Translator:
    """A network with a decoder, and the tokenizers of both languages."""

    def __init__(self, folder: Folder, limit: int | None = None) -> None:
        self.path, self.network = folder.path, folder.network
        decoder = folder.network.shape.decoder
        if decoder is None or folder.target is None:
            raise FolderError(
                f"{folder.path}: the model has no decoder, so it cannot generate text. Train one "
                "that can with `unmask translate train`."
            )
        keep_freed_memory()
        limit = limit or folder.network.config.max_length
        self.tokens = Tokenizers(folder.needed_tokenizer(), limit, folder.target)
        self.limit, self.most = limit, decoder.max_length
        self.split_texts = 0  # texts that were too long and were translated in parts

    def translate(
        self,
        texts: Iterable[str],
        settings: SearchSettings | None = None,
        *,
        split: bool = True,
        alignment: bool = False,
    ) -> Iterator[Translation]:
        """Yield the translation of each text; without `split`, one that is too long is an error.

        With `alignment`, each translation has its word alignment, unless it was made in parts.
        """
        search = settings or SearchSettings()
        task = Translate(TranslateSettings(search=search), split=split, alignment=alignment)
        pairs = (Pair(text, None, f"text {number}") for number, text in enumerate(texts, 1))
        # Graphs are compiled for encoders and their labels only, so the network itself decodes.
        for _, translation in answer_records(LiveForward(self.network), self.tokens, task, pairs):
            yield translation
        self.split_texts += task.split_texts

    def looked(self, source: str, target: str | None = None) -> WordAlignment:
        """Align a translation with its source; without `target`, align the model's own."""
        if target is None:
            (translation,) = self.translate([source], split=False)
            return self._align(source, translation.words or ())
        token_ids = self._target_tokenizer.encode(target).ids[1:-1]  # without [CLS] and [SEP]
        if len(token_ids) >= self.most:
            raise DataError(
                f"the translation has {len(token_ids):,} tokens; the model generates at most "
                f"{self.most - 1}. Shorten it."
            )
        return self._align(source, token_ids)

    def _align(self, source: str, token_ids: Sequence[int]) -> WordAlignment:
        alignment = alignment_of(
            self.network, self.tokens, self.tokens.source.encode(source).ids, token_ids
        )
        if alignment is None:
            raise DataError(
                f"{self.path}: its decoder has no attention over the source, so there is no word "
                "alignment. Use a model with attention."
            )
        return WordAlignment(
            alignment.source, alignment.target, np.array(alignment.weights, np.float32)
        )

    @property
    def _target_tokenizer(self) -> Tokenizer:
        """The tokenizer of the target language, which may be that of the source."""
        return self.tokens.target or self.tokens.source
