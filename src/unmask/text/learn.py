"""Word counts -> a vocabulary: start with characters, and merge two neighbouring symbols at a time.

    frequency     merge the most frequent pair. This is byte pair encoding, and also what
                  Hugging Face's WordPiece trainer does.
    likelihood    merge the pair that raises the likelihood of the text most, under a model that
                  draws symbols independently (Schuster & Nakajima 2012): WordPiece's own rule.

Ties go to the pair that comes first in alphabetical order, so the result depends on the counts
alone.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from unmask.system.errors import DataError
from unmask.system.settings import Settings
from unmask.text import Criterion
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.text.vocabulary import CONTINUATION, SPECIALS, Vocabulary

Counts = NDArray[np.int64]
Progress = Callable[[int, int], None]  # tokens so far, tokens wanted


class LearnSettings(Settings):
    """Size of a vocabulary, and the rule by which it is learned."""

    size: Annotated[int, Field(ge=len(SPECIALS) + 1, le=2**22)]
    criterion: Criterion = "frequency"
    coverage: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9999  # share that the alphabet covers
    min_count: Annotated[int, Field(ge=1)] = 2  # rarer pairs are not merged


def learn(
    words: Mapping[str, int], settings: LearnSettings, *, progress: Progress | None = None
) -> Vocabulary:
    """Learn a WordPiece vocabulary from word counts."""
    if not words:
        raise DataError("no words to learn from: the text is empty. Give a text with words in it.")
    alphabet = _alphabet(words, settings)
    # A word with a character outside the alphabet is [UNK] whatever is learned. Words are sorted,
    # because the order of the counts depends on the order of the files.
    spelled = [
        (_spell(word), count) for word, count in sorted(words.items()) if alphabet.issuperset(word)
    ]
    symbols = sorted({symbol for spelling, _ in spelled for symbol in spelling})
    # A stable sort: first the characters that begin words, then the continuations.
    symbols.sort(key=lambda symbol: symbol.startswith(CONTINUATION))
    room = settings.size - len(SPECIALS)
    if len(symbols) > room:
        raise DataError(
            f"size {settings.size}: the characters of the text alone need "
            f"{len(symbols) + len(SPECIALS)}. Give a larger size, or a lower coverage."
        )
    joiner = Merger(symbols, spelled, settings.criterion)
    while len(joiner.symbols) < room:
        if not joiner.join_best(settings.min_count):
            break  # too little text for a vocabulary of this size
        if progress:
            progress(len(joiner.symbols), room)
    return Vocabulary([*SPECIALS, *joiner.symbols])


class Merger:
    """Words as lists of symbols, with the counts of all symbols and pairs of neighbours.

    Counts are updated only for the words that contain a merged pair, because counting the whole
    text again for each of thousands of merges would be far too slow.
    """

    def __init__(
        self, symbols: list[str], spelled: list[tuple[list[str], int]], criterion: Criterion
    ) -> None:
        self.criterion = criterion
        self.symbols = list(symbols)
        self.numbers = {symbol: i for i, symbol in enumerate(symbols)}
        self.words = [[self.numbers[s] for s in spelling] for spelling, _ in spelled]
        self.counts = [count for _, count in spelled]
        self.totals: Counter[int] = Counter()  # how often each symbol occurs
        self.total = 0  # symbols in the whole text
        self.pairs: dict[tuple[int, int], int] = {}  # pair of symbols -> its index in the arrays
        self.words_with: list[set[int]] = []  # words of each pair; some may no longer have it
        self.pairs_with: defaultdict[int, list[int]] = defaultdict(list)  # pairs of each symbol
        # Arrays with an entry for each pair, so that the best pair is found without a Python loop.
        self.left, self.right, self.count = (np.zeros(1024, np.int64) for _ in range(3))
        self.score = np.zeros(1024)  # for `likelihood`: the part without N
        changes: Counter[int] = Counter()
        for word in range(len(self.words)):
            self._add(word, 1, changes)
        self._apply(changes, set(self.totals))

    def join_best(self, min_count: int) -> bool:
        """Merge the best pair in every word; return False if no pair occurs often enough."""
        pair = self._best(min_count)
        if pair is None:
            return False
        # All words that still have the pair are rewritten; the changes of counts are summed first,
        # so that each affected pair is rescored once per merge.
        a, b = self.left.item(pair), self.right.item(pair)
        joined = self.symbols[a] + self.symbols[b].removeprefix(CONTINUATION)
        new = self.numbers.setdefault(joined, len(self.symbols))
        if new == len(self.symbols):  # else another way of merging has already produced it
            self.symbols.append(joined)
        changes: Counter[int] = Counter()
        for word in sorted(self.words_with[pair]):
            self._add(word, -1, changes)
            self.words[word] = _joined(self.words[word], a, b, new)
            self._add(word, 1, changes)
        self.words_with[pair] = set()
        self._apply(changes, {a, b, new})
        return True

    def _add(self, word: int, sign: int, changes: Counter[int]) -> None:
        """Add (sign 1) or subtract (-1) the symbols and pairs of one word."""
        symbols, count = self.words[word], sign * self.counts[word]
        self.total += count * len(symbols)
        for symbol in symbols:
            self.totals[symbol] += count
        for key in zip(symbols, symbols[1:], strict=False):
            pair = self.pairs.get(key)
            if pair is None:
                pair = self._new_pair(key)
            changes[pair] += count
            if sign > 0:
                self.words_with[pair].add(word)

    def _new_pair(self, key: tuple[int, int]) -> int:
        pair = self.pairs[key] = len(self.words_with)
        self.words_with.append(set())
        if pair == len(self.count):
            # Doubling the arrays keeps the cost of growing proportional to the number of pairs.
            self.left, self.right, self.count, self.score = (
                np.concatenate([part, np.zeros_like(part)])
                for part in (self.left, self.right, self.count, self.score)
            )
        self.left[pair], self.right[pair] = key
        for symbol in set(key):
            self.pairs_with[symbol].append(pair)
        return pair

    def _apply(self, changes: Counter[int], symbols: set[int]) -> None:
        """Update the counts of pairs, and the scores that depend on the totals of `symbols`."""
        changed = np.fromiter(changes.keys(), np.int64, len(changes))
        self.count[changed] += np.fromiter(changes.values(), np.int64, len(changes))
        if self.criterion == "frequency":  # the counts are the scores
            return
        stale = [changed, *(np.array(self.pairs_with[s], np.int64) for s in symbols)]
        self._rescore(np.unique(np.concatenate(stale)))

    def _rescore(self, pairs: Counts) -> None:
        """Compute how merging each of these pairs changes the sum of c log c over symbols."""
        together = self.count[pairs].astype(np.float64)
        left = _lookup(self.totals, self.left[pairs])
        right = _lookup(self.totals, self.right[pairs])
        twins = self.left[pairs] == self.right[pairs]  # a merge then takes two of one symbol
        apart = _xlogx(left - together) - _xlogx(left) + _xlogx(right - together) - _xlogx(right)
        double = _xlogx(left - 2 * together) - _xlogx(left)
        self.score[pairs] = _xlogx(together) + np.where(twins, double, apart)

    def _best(self, min_count: int) -> int | None:
        count = self.count[: len(self.words_with)]
        most = int(count.max(initial=0))
        if most < min_count:
            return None
        if self.criterion == "frequency":
            return self._first_of(np.flatnonzero(count == most))
        # With N symbols, the log-likelihood is sum(c log c) - N log N. Merging m pairs takes m from
        # N, and N log N falls by at most m (log N + 1): an upper bound without a logarithm for each
        # pair. Only the pairs whose bound reaches the gain of the top one are computed exactly.
        bound = self.score[: len(count)] + count * (np.log(self.total) + 1)
        bound[count < min_count] = -np.inf
        top = bound.argmax(keepdims=True)
        # Gains closer than this differ by rounding only, which must not decide: the alphabet does.
        same = 1e-12 * float(_xlogx(np.float64(self.total)))
        close = np.flatnonzero(bound >= self._gain(top)[0] - same)
        gain = self._gain(close)
        return self._first_of(close[gain >= gain.max() - same])

    def _gain(self, pairs: Counts) -> NDArray[np.float64]:
        """Return by how much the log-likelihood of the text rises when each pair is merged."""
        total = np.float64(self.total)
        rest = _xlogx(total) - _xlogx(total - self.count[pairs])
        return np.asarray(self.score[pairs] + rest)

    def _first_of(self, pairs: Counts) -> int:
        """Return the pair that comes first in alphabetical order."""
        names = self.symbols
        left, right = self.left, self.right
        return min(map(int, pairs), key=lambda p: (names[left.item(p)], names[right.item(p)]))


@dataclass(frozen=True)
class VocabularyReport:
    """How well a vocabulary fits the words it was learned from."""

    tokens: int
    words: int
    distinct_words: int
    characters_spelled: float  # share of characters in words that are not [UNK]
    tokens_per_word: float
    unknown_words: float  # share of words that are [UNK]


def report(words: Mapping[str, int], vocabulary: Vocabulary, casing: Casing) -> VocabularyReport:
    """Measure how well a vocabulary spells the counted words."""
    tokenizer = Tokenizer(vocabulary, casing)
    pieces = unknown = spelled = characters = 0
    for word, ids in tokenizer.ids_of_each(words):
        count = words[word]
        pieces += count * len(ids)
        characters += count * len(word)
        if vocabulary.unknown in ids:
            unknown += count
        else:
            spelled += count * len(word)
    total = sum(words.values())
    return VocabularyReport(
        tokens=len(vocabulary),
        words=total,
        distinct_words=len(words),
        characters_spelled=spelled / max(characters, 1),
        tokens_per_word=pieces / max(total, 1),
        unknown_words=unknown / max(total, 1),
    )


def _alphabet(words: Mapping[str, int], settings: LearnSettings) -> set[str]:
    """Return the most frequent characters that together make up `coverage` of the text."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    wanted = settings.coverage * characters.total()
    kept: set[str] = set()
    # Ties in alphabetical order, so that the alphabet does not depend on the order of the words.
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if wanted <= 0:
            break
        kept.add(character)
        wanted -= count
    return kept


def _spell(word: str) -> list[str]:
    """Split a word into characters, all but the first marked as continuations."""
    return [word[0], *(CONTINUATION + character for character in word[1:])]


def _joined(symbols: list[int], a: int, b: int, new: int) -> list[int]:
    """Replace each `a b` by `new`, from left to right."""
    out: list[int] = []
    i = 0
    while i < len(symbols):
        if symbols[i] == a and i + 1 < len(symbols) and symbols[i + 1] == b:
            out.append(new)
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


def _xlogx(x: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    """Compute x log x, with 0 for x = 0."""
    # Also 0 for a negative x: in "aaa" the pair (a, a) counts twice, and takes more than there is.
    return np.asarray(x * np.log(np.maximum(x, 1.0)))


def _lookup(totals: Counter[int], symbols: Counts) -> NDArray[np.float64]:
    return np.array([totals[s] for s in symbols.tolist()], np.float64)
