"""Sentences and tokens -> corpus statistics: counts that add up over shards, and a report.

Duplicates are counted in constant memory: exactly for the sentences that repeat most, and by a
sample for the rest. Sampled are the sentences whose hash ends in enough zero bits, so the sample
contains either every occurrence of a sentence or none.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SAMPLED = 2048  # hashes that are kept of a shard
MERGED = 2**17  # ... and of a whole corpus
OFTEN = 10  # of the most repeated sentences, this many are kept by name
BINS = 32  # lengths are counted by powers of two
SUMMED_FIELDS = "records documents single empty sentences tokens unknown characters".split()


class Keyed(Protocol):
    """Anything that can be recognised as a duplicate."""

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the record among duplicates."""


@dataclass
class CorpusReport:
    """Statistics of any part of a corpus, as sums."""

    records: int = 0  # lines or records of the input
    documents: int = 0
    single: int = 0  # documents of one sentence
    empty: int = 0  # sentences without a token, which are skipped
    sentences: int = 0
    tokens: int = 0
    unknown: int = 0
    characters: int = 0
    sentence_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # by length in tokens
    document_bins: list[int] = field(default_factory=lambda: [0] * BINS)
    zeros: int = 0  # sampled are hashes that end in this many zero bits
    sample: dict[str, int] = field(default_factory=dict)  # hash -> occurrences
    often: dict[str, int] = field(default_factory=dict)  # sentence -> occurrences

    def add(self, other: "CorpusReport") -> None:
        """Add the statistics of another part."""
        for name in SUMMED_FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.sentence_bins = _summed(self.sentence_bins, other.sentence_bins)
        self.document_bins = _summed(self.document_bins, other.document_bins)
        # The stricter of both rules, applied to both samples: only then do they mean the same.
        self.zeros = max(self.zeros, other.zeros)
        self.sample = dict(Counter(self.sample) + Counter(other.sample))
        self._thin(MERGED)
        # More than are shown, because one that is rare so far may be frequent in later shards.
        often = Counter(self.often) + Counter(other.often)
        self.often = dict(_most_frequent(often, 20 * OFTEN))

    def note_sentences(self, counts: Counter[str]) -> None:
        """Sample the hashes of sentences, and keep the most repeated ones by name."""
        self.sample = {_hash(sentence): count for sentence, count in counts.items()}
        self._thin(SAMPLED)
        repeated = Counter(
            {sentence[:200]: count for sentence, count in counts.items() if count > 1}
        )
        self.often = dict(_most_frequent(repeated, OFTEN))

    @property
    def duplicate_share(self) -> float:
        """Estimated share of the sentences that have occurred before."""
        if not self.sentences:
            return 0.0
        # `often` has only the beginnings of long sentences, and so not the hashes of the whole.
        frequent = {
            _hash(sentence): count for sentence, count in self.often.items() if len(sentence) < 200
        }
        # The sample counts a sentence in every shard, `often` only where it is among the top.
        repeats = sum(self.sample.get(key, count) - 1 for key, count in frequent.items())
        other_counts = [count for key, count in self.sample.items() if key not in frequent]
        # A sampled sentence stands for 2^zeros sentences.
        sampled = sum(count - 1 for count in other_counts) << self.zeros
        return min((repeats + sampled) / self.sentences, 1.0)

    def _thin(self, limit: int) -> None:
        while True:
            mask = (1 << self.zeros) - 1
            self.sample = {
                key: count for key, count in self.sample.items() if not int(key, 16) & mask
            }
            if len(self.sample) <= limit:
                return
            # Every further zero bit halves the sample.
            self.zeros += 1

    def report(self) -> dict[str, Any]:
        """Return the statistics to display, by name."""
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
    """Count the lengths in [2^i, 2^(i+1)), for each i.

    >>> length_bins(np.array([1, 2, 3, 4, 900]))[:3]
    [1, 2, 1]
    """
    powers = np.log2(np.maximum(lengths, 1)).astype(np.int64)
    return list(map(int, np.bincount(powers, minlength=BINS)))


def _summed(bins: Sequence[int], other: Sequence[int]) -> list[int]:
    return list(map(sum, zip(bins, other, strict=True)))


def _hash(sentence: str) -> str:
    return hashlib.blake2b(sentence.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _most_frequent(counts: Counter[str], limit: int) -> Iterable[tuple[str, int]]:
    """Return the highest counts; ties are decided by the sentences, so that the result is fixed."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]


def leak_warning(train: Sequence[Keyed], dev: Sequence[Keyed], path: Path) -> list[str]:
    """Return a warning if training and dev data have examples in common, which flatters scores."""
    seen = {record.key for record in train}
    shared = sum(record.key in seen for record in dev)
    if not shared:
        return []
    return [f"warning: {path}: {shared:,} of {len(dev):,} examples are also in the training data"]
