"""A corpus folder: token ids in memory-mapped shards, with the starts of sentences and documents.

    manifest.json        what it was made from and with, its statistics, the sha256 of every shard
    tokenizer/           the tokenizer that made it
    shard-00000.bin      ids, uint16 or uint32
    shard-00000.idx      uint32: where each sentence begins, then where each document begins
    shard-00000.wrd      one bit per token, if words are given: whether it continues a word
    shard-00000.json     counts, statistics, digests; written last, it marks the shard as complete

A corpus is read as one long sequence of tokens; positions count through all shards.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.data.corpus.layout import MANIFEST, TOKENIZER_FOLDER, Shard, read_manifest, shard_path
from unmask.data.corpus.statistics import CorpusReport
from unmask.system.disk import sha256_of_file
from unmask.system.errors import FolderError
from unmask.text.tokenizer import Tokenizer
from unmask.text.tokenizer_files import read_tokenizer
from unmask.text.vocabulary import SPECIALS

COUNTED = 50_000_000  # tokens, about, from which token frequencies are estimated
Ids = NDArray[np.int64]
Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class Corpus:
    """Tokens, sentences and documents of a corpus, numbered through all shards."""

    path: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]
    digest: str  # of the manifest, and so of everything
    sentences: Ids  # [sentences + 1] position of each one's first token
    documents: Ids  # [documents + 1] first sentence of each
    shard_starts: list[int]  # position of each shard's first token
    shards: list[NDArray[Any]]
    continues: list[NDArray[np.uint8]] | None  # packed bits, if words are given

    def tokens(self, start: int, length: int) -> Ids:
        """Return `length` ids from position `start`; they lie in one shard, as a document does."""
        shard = bisect_right(self.shard_starts, start) - 1
        offset = start - self.shard_starts[shard]
        return self.shards[shard][offset : offset + length].astype(np.int64)

    def continuing(self, start: int, length: int) -> Bits | None:
        """Return which tokens of a stretch continue a word; None if the corpus has no words."""
        if self.continues is None:
            return None
        shard = bisect_right(self.shard_starts, start) - 1
        offset = start - self.shard_starts[shard]
        # Eight tokens share a byte: take whole bytes, and cut off the bits before and after.
        packed = self.continues[shard][offset // 8 : (offset + length + 7) // 8]
        return np.unpackbits(packed)[offset % 8 : offset % 8 + length].astype(bool)

    @property
    def statistics(self) -> CorpusReport:
        """Statistics of the corpus."""
        return CorpusReport(**self.manifest["statistics"])

    @cached_property
    def frequencies(self) -> NDArray[np.float64]:
        """Share of each token in the corpus, smoothed so that none is zero.  -> [V]"""
        vocabulary = self.tokenizer.vocabulary
        # Half a count for a token that does not occur, because its logarithm is taken. Special
        # tokens are never predicted, so [UNK] counts as rare however often it occurs.
        counts = np.full(len(vocabulary), 0.5)
        for shard in self.shards[:: -(-self.size // COUNTED)]:  # from all parts
            counts += np.bincount(shard, minlength=len(vocabulary))
        counts[[vocabulary.ids[token] for token in SPECIALS]] = 0.5
        shares: NDArray[np.float64] = counts / counts.sum()
        return shares

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.sentences.item(-1)


def open_corpus(
    path: Path, *, check: bool = True, progress: Callable[[int], None] | None = None
) -> Corpus:
    """Memory-map a corpus folder; `check` reads every byte and compares digests."""
    manifest = read_manifest(path)
    tokenizer = read_tokenizer(path / TOKENIZER_FOLDER)
    if tokenizer.digest() != manifest["tokenizer"]:
        raise FolderError(
            f"{path / TOKENIZER_FOLDER}: not the tokenizer that this corpus was prepared with (its "
            f"sha256 differs from {MANIFEST}). Restore it, or prepare the corpus again."
        )
    id_type: np.dtype[np.unsignedinteger[Any]] = np.dtype(manifest["ids"])
    has_words = bool(manifest["words"] == "spaces")
    sentences, documents, shard_starts, shards, continues = [], [], [], [], []
    token_count = sentence_count = 0
    entries: list[Shard] = manifest["shards"]
    for number, entry in enumerate(entries):
        _check_shard(path, number, entry, id_type.itemsize, check)
        # A shard counts from its own beginning; what the shards before it hold is added.
        index = np.fromfile(shard_path(path, number, "idx"), dtype="<u4").astype(np.int64)
        sentences.append(index[: entry["sentences"]] + token_count)
        documents.append(index[entry["sentences"] :] + sentence_count)
        shard_starts.append(token_count)
        shards.append(_memory_map(shard_path(path, number, "bin"), id_type))
        if has_words:
            continues.append(_memory_map(shard_path(path, number, "wrd"), np.dtype("u1")))
        token_count += entry["tokens"]
        sentence_count += entry["sentences"]
        if progress:
            progress(entry["tokens"])
    return Corpus(
        path,
        tokenizer,
        manifest,
        sha256_of_file(path / MANIFEST),
        np.concatenate([*sentences, [token_count]]),
        np.concatenate([*documents, [sentence_count]]),
        shard_starts,
        shards,
        continues if has_words else None,
    )


def _check_shard(folder: Path, number: int, shard: Shard, id_bytes: int, full: bool) -> None:
    """Compare the files of a shard with the manifest: sizes and, with `full`, digests."""
    sizes = {
        "bin": shard["tokens"] * id_bytes,
        "idx": 4 * (shard["sentences"] + shard["documents"]),
        "wrd": -(-shard["tokens"] // 8),
    }
    for ending, sha256 in shard["sha256"].items():
        path = shard_path(folder, number, ending)
        if not path.is_file():
            raise FolderError(
                f"{path}: is missing, but {MANIFEST} lists it. Prepare the corpus again."
            )
        size = path.stat().st_size
        if size != sizes[ending] or (full and sha256_of_file(path) != sha256):
            raise FolderError(
                f"{path}: was changed since it was written (it differs from {MANIFEST}). Remove it "
                f"with its .json and {MANIFEST}, and run `unmask prepare` again."
            )


def _memory_map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")
