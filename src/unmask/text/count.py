"""Texts -> word counts, streamed and in parallel: the input of vocabulary learning.

The counts depend neither on the number of processes nor on how texts are grouped: a long text is
cut at places that depend on that text alone, and sums commute.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from unmask.system.process_pool import map_in_order
from unmask.text.tokenizer import Casing, Offsets, Tokenizer, in_groups, replace_surrogates
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.text.wordpiece import LONGEST_WORD

CHUNK = 2**20  # characters that a worker receives at a time
LONG_TEXT = 2**17  # texts over twice this are split, to bound the engine's memory

_SPACE = re.compile(r"\s")

Progress = Callable[[int], None]  # called with the number of characters just counted


def count_words(
    texts: Iterable[str],
    casing: Casing,
    *,
    workers: int = 1,
    chunk: int = CHUNK,
    progress: Progress | None = None,
) -> Counter[str]:
    """Count words as the tokenizer splits them: normalized, with punctuation marks apart."""
    unsplit: Counter[str] = Counter()  # strings between spaces, with their punctuation
    parts = (part for text in texts for part in _split_long_text(text))
    count = partial(_count_chunk, casing=casing)
    for counted_texts, counts in map_in_order(count, in_groups(parts, len, chunk), workers):
        unsplit.update(counts)
        if progress:
            progress(sum(map(len, counted_texts)))
    # Punctuation is split off last: once for each distinct string, not for each occurrence.
    return _split_punctuation(unsplit, casing)


def _split_long_text(text: str) -> Iterator[str]:
    """Cut a very long text before white space, or at a fixed length where there is none."""
    begin = 0
    while len(text) - begin > 2 * LONG_TEXT:
        # Cut before the space: the words on both sides stay whole, so no count changes.
        space = _SPACE.search(text, begin + LONG_TEXT, begin + 2 * LONG_TEXT)
        end = space.start() if space else begin + 2 * LONG_TEXT
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _count_chunk(texts: list[str], casing: Casing) -> Counter[str]:
    normalize: Callable[[str], str] = _splitter(casing).engine.normalizer.normalize_str
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalize(replace_surrogates(text)).split())
    return counts


def _split_punctuation(unsplit: Counter[str], casing: Casing) -> Counter[str]:
    split: Callable[[str], list[tuple[str, Offsets]]]
    split = _splitter(casing).engine.pre_tokenizer.pre_tokenize_str
    words: Counter[str] = Counter()
    for string, count in unsplit.items():
        for word, _ in split(string):
            # WordPiece makes a longer word [UNK] as a whole: no vocabulary could spell it.
            if len(word) <= LONGEST_WORD:
                words[word] += count
    return words


@cache
def _splitter(casing: Casing) -> Tokenizer:
    """Return a tokenizer that is used only to normalize and split."""
    return Tokenizer(Vocabulary(SPECIALS), casing)
