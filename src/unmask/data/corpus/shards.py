"""Documents -> a shard: split into sentences, tokenized, and written completely or not at all."""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.data.corpus.layout import TOKENIZER_FOLDER, shard_path
from unmask.data.corpus.statistics import CorpusReport, length_bins
from unmask.data.read.documents import Document
from unmask.system.disk import write_file
from unmask.text.tokenizer import READ_AHEAD, Tokenizer
from unmask.text.tokenizer_files import read_tokenizer

Words = Literal["pieces", "spaces"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Documents of one shard, and where in the input they end."""

    number: int
    documents: list[Document]
    folder: Path
    tokenizer: str  # its digest
    words: Words
    end: int  # bytes of the input that were read

    def digest(self) -> str:
        """Return a sha256 of the text, which tells whether an existing shard was made from it."""
        digest = hashlib.sha256()
        for document in self.documents:
            # Lengths, so that the same text divided into other documents has another digest.
            header = f"{document.split:d} {document.records} {len(document.text)}\n"
            digest.update(header.encode() + document.text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def id_type(vocab_size: int) -> str:
    """Return the type of stored ids: two bytes where they suffice."""
    return "<u2" if vocab_size <= 2**16 else "<u4"


def write_shard(chunk: Chunk) -> None:
    """Make a shard; its .json is written last and marks it as complete."""
    tokenizer = _tokenizer(chunk.folder, chunk.tokenizer)
    texts = _tokenize(chunk, tokenizer)
    dtype = id_type(len(tokenizer.vocabulary))
    contents = {
        "bin": np.frombuffer(texts.ids, dtype="u4").astype(dtype).tobytes(),
        "idx": np.array([*texts.sentences, *texts.documents], dtype="<u4").tobytes(),
    }
    if chunk.words == "spaces":
        contents["wrd"] = np.packbits(np.frombuffer(texts.continues, dtype="u1")).tobytes()
    for ending, raw in contents.items():
        write_file(shard_path(chunk.folder, chunk.number, ending), raw)
    entry: dict[str, Any] = {
        "tokens": len(texts.ids),
        "sentences": len(texts.sentences),
        "documents": len(texts.documents),
        "source": chunk.digest(),
        "sha256": {ending: hashlib.sha256(raw).hexdigest() for ending, raw in contents.items()},
        "statistics": vars(_statistics(texts, chunk, tokenizer)),
    }
    raw = json.dumps(entry, ensure_ascii=False, sort_keys=True).encode("utf-8", "replace")
    write_file(shard_path(chunk.folder, chunk.number, "json"), raw + b"\n")


@dataclass(slots=True)
class _Texts:
    """Token ids of a shard, and where its sentences and documents begin."""

    ids: "array[int]"
    continues: bytearray
    sentences: list[int]
    documents: list[int]
    counts: Counter[str]
    empty: int = 0


def _tokenize(chunk: Chunk, tokenizer: Tokenizer) -> _Texts:
    texts = _Texts(array("I"), bytearray(), [], [], Counter())
    last_document = -1
    numbered_sentences = (
        (i, sentence)
        for i, document in enumerate(chunk.documents)
        for sentence in document.sentences()
    )
    while group := list(islice(numbered_sentences, READ_AHEAD)):  # a batch for the engine
        sentences = [sentence for _, sentence in group]
        texts.counts.update(sentences)
        encoded = _ids_of_sentences(sentences, tokenizer, chunk.words)
        for (number, _), (ids, continues) in zip(group, encoded, strict=True):
            if not ids:
                texts.empty += 1
                continue
            # Only now: a document whose sentences have no tokens is no document of the corpus.
            if number != last_document:
                texts.documents.append(len(texts.sentences))
                last_document = number
            texts.sentences.append(len(texts.ids))
            texts.ids.extend(ids)
            texts.continues.extend(continues)
    return texts


def _ids_of_sentences(
    sentences: list[str], tokenizer: Tokenizer, words: Words
) -> Iterator[tuple[list[int], bytes]]:
    """Yield each sentence's ids and, if words stand between spaces, which ones continue a word."""
    if words == "pieces":
        yield from ((ids, b"") for ids in tokenizer.ids(sentences))
        return
    for sentence, tokenized in zip(sentences, tokenizer.tokenize(sentences), strict=True):
        continues, end_before = bytearray(), 0
        for start, end in tokenized.offsets:
            # A token continues a word if no white space lies between it and the token before it.
            continues.append(
                end_before > 0 and not any(map(str.isspace, sentence[end_before:start]))
            )
            end_before = end
        yield tokenized.ids, bytes(continues)


def _statistics(texts: _Texts, chunk: Chunk, tokenizer: Tokenizer) -> CorpusReport:
    ids = np.frombuffer(texts.ids, dtype="u4")
    sentences = np.diff([*texts.sentences, len(ids)])
    documents = np.diff([*texts.documents, len(texts.sentences)])
    tokens = np.add.reduceat(sentences, texts.documents) if texts.documents else documents
    statistics = CorpusReport(
        records=sum(document.records for document in chunk.documents),
        documents=len(documents),
        single=int((documents == 1).sum()),
        empty=texts.empty,
        sentences=len(sentences),
        tokens=len(ids),
        unknown=int((ids == tokenizer.vocabulary.unknown).sum()),
        characters=sum(len(document.text) for document in chunk.documents),
        sentence_bins=length_bins(sentences),
        document_bins=length_bins(tokens),
    )
    statistics.note_sentences(texts.counts)
    return statistics


@cache
def _tokenizer(folder: Path, digest: str) -> Tokenizer:
    """Return the tokenizer of this worker, read once per digest."""
    return read_tokenizer(folder / TOKENIZER_FOLDER)
