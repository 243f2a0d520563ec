"""Sentences and tokens -> what a corpus is like: counts that add up over shards, and a report.

Duplicates are counted in constant memory: exact for the sentences that repeat most, and for the
rest on a sample of the sentences, those whose hash ends in enough zeros (so that every repetition
of a sampled sentence is sampled too).
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SAMPLED = 2048  # sentences of a shard whose hashes are kept
MERGED = 2**17  # ... and of a whole corpus
OFTEN = 10  # the most repeated sentences that are kept by name
BINS = 32  # lengths are counted by powers of two
SUMS = "records documents single empty sentences tokens unknown characters".split()


class Keyed(Protocol):
    """Anything that can tell whether another one is the same."""

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same as another one."""


@dataclass
class CorpusReport:
    """Sums over any part of a corpus."""

    records: int = 0  # lines or records of the input
    documents: int = 0
    single: int = 0  # documents of one sentence
    empty: int = 0  # sentences without a token, which are left out
    sentences: int = 0
    tokens: int = 0
    unknown: int = 0
    characters: int = 0
    sentence_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # by length in tokens
    document_bins: list[int] = field(default_factory=lambda: [0] * BINS)
    zeros: int = 0  # a hash is sampled if it ends in so many zero bits
    sample: dict[str, int] = field(default_factory=dict)  # hash -> occurrences
    often: dict[str, int] = field(default_factory=dict)  # sentence -> occurrences

    def add(self, other: "CorpusReport") -> None:
        """Add those of another part."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.sentence_bins = _summed(self.sentence_bins, other.sentence_bins)
        self.document_bins = _summed(self.document_bins, other.document_bins)
        self.zeros = max(self.zeros, other.zeros)
        self.sample = dict(Counter(self.sample) + Counter(other.sample))
        self._thin(MERGED)
        often = Counter(self.often) + Counter(other.often)
        self.often = dict(_most(often, 20 * OFTEN))

    def note_sentences(self, counts: Counter[str]) -> None:
        """Keep what tells duplicates: a sample of the hashes, and the sentences repeated most."""
        self.sample = {_hash(sentence): count for sentence, count in counts.items()}
        self._thin(SAMPLED)
        repeated = Counter({s[:200]: count for s, count in counts.items() if count > 1})
        self.often = dict(_most(repeated, OFTEN))

    @property
    def duplicate_share(self) -> float:
        """The share of the sentences that have occurred before, about."""
        if not self.sentences:
            return 0.0
        named = {_hash(s): count for s, count in self.often.items() if len(s) < 200}
        # One that is sampled is counted in every shard, also where it is not among the often.
        often = sum(self.sample.get(key, count) - 1 for key, count in named.items())
        rest = [count for key, count in self.sample.items() if key not in named]
        sampled = sum(count - 1 for count in rest) << self.zeros
        return min((often + sampled) / self.sentences, 1.0)

    def _thin(self, most: int) -> None:
        while True:
            rest = (1 << self.zeros) - 1
            self.sample = {k: count for k, count in self.sample.items() if not int(k, 16) & rest}
            if len(self.sample) <= most:
                return
            self.zeros += 1

    def report(self) -> dict[str, Any]:
        """What a reader wants to know, by name."""
        return {
            "documents": self.documents,
            "sentences": self.sentences,
            "empty": self.empty,
            "tokens": self.tokens,
            "tokens a sentence": self.tokens / max(self.sentences, 1),
            "unknown share": self.unknown / max(self.tokens, 1),
            "single share": self.single / max(self.documents, 1),
            "duplicate share": self.duplicate_share,
            "often": sorted(self.often.items(), key=lambda item: (-item[1], item[0]))[:OFTEN],
            "sentence lengths": self.sentence_bins,
            "document lengths": self.document_bins,
        }


def length_bins(lengths: NDArray[np.int64]) -> list[int]:
    """How many lengths are in [2^i, 2^(i+1)), for each i.

    >>> length_bins(np.array([1, 2, 3, 4, 900]))[:3]
    [1, 2, 1]
    """
    powers = np.log2(np.maximum(lengths, 1)).astype(np.int64)
    return list(map(int, np.bincount(powers, minlength=BINS)))


def _summed(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return list(map(sum, zip(one, other, strict=True)))


def _hash(sentence: str) -> str:
    return hashlib.blake2b(sentence.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _most(counts: Counter[str], most: int) -> Iterable[tuple[str, int]]:
    """The highest counts; ties by the sentence itself, so that the order of files is all."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]


def leaks(train: Sequence[Keyed], dev: Sequence[Keyed], path: Path) -> list[str]:
    """What is in both files flatters every score: say how much it is."""
    seen = {record.key for record in train}
    both = sum(record.key in seen for record in dev)
    if not both:
        return []
    return [f"warning: {path}: {both:,} of {len(dev):,} examples are in the training data too"]
