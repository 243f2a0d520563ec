"""Text -> sentences: rules for English and Chinese that know abbreviations.

A line break ends a sentence. Within a line, a sentence ends at . ! ? or a similar mark, with the
quotes and brackets that close after it. A Chinese mark always ends one; another mark does so only
before a space and something that can begin a sentence. The full stop of an abbreviation or an
initial does not end a sentence.
"""

import re
from collections.abc import Iterator
from itertools import chain

# Abbreviations that stand before a name or a number: their full stop ends no sentence.
_TITLES = frozenset(
    "mr mrs ms dr prof st sr jr rev hon gen col capt lt sgt maj cmdr gov sen rep pres messrs mme "
    "mlle vs cf viz no nos vol vols pp p fig figs eq eqs ch sec art al ed eds trans approx ca "
    "jan feb mar apr jun jul aug sep sept oct nov dec mt ft".split()
)
# Titles that are words as well: "no" is an abbreviation in "no. 5", not in "He said no."
_ALSO_WORDS = frozenset("no art ed mar jun dec al".split())
# Abbreviations that often end a sentence: they do if a capital follows.
_ABBREVIATIONS = frozenset("etc inc ltd co corp bros dept est univ assn ave blvd rd".split())
_DOTTED = frozenset(("e.g", "i.e", "a.m", "p.m", "c.f", "u.s", "u.k", "u.n", "d.c", "ph.d"))

_CLOSING = "\"'”’»)\\]}」』）】》"
_OPENING = "\"'“‘«(\\[{「『（【《"
# A Chinese mark, or a run of . ! ? ... before a space, each with the quotes that close after it.
# Possessive (++): backtracking would try a run of marks once for each mark, in quadratic time.
_END = re.compile(
    rf"(?:[。！？]++|……|…(?=\s|$)|(?<![.!?])[.!?]++(?=[{_CLOSING}]*+(?:\s|$)))[{_CLOSING}]*+"
)
_BEGINS = re.compile(rf"\s*[{_OPENING}¿¡—–-]*\s?(?P<first>\S)?")
_LAST_WORD = re.compile(r"(?P<word>[^\W_](?:[\w.]*\w)?)\.$")


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, stripped; blank ones are skipped.

    >>> list(split_sentences("Dr. No left. He took 3.5 kg! 天下大势。分久必合。"))
    ['Dr. No left.', 'He took 3.5 kg!', '天下大势。', '分久必合。']
    """
    for line in text.split("\n"):
        begin = 0
        for end in chain(_ends(line), [len(line)]):
            if sentence := line[begin:end].strip():
                yield sentence
            begin = end


def _ends(line: str) -> Iterator[int]:
    """Yield the offsets in a line at which a sentence ends and something follows."""
    for match in _END.finditer(line):
        end = match.end()
        first = _first_after(line, end)
        if first is None or _is_end(line, match, first):
            yield end


def _first_after(line: str, end: int) -> str | None:
    """Return the first character after `end` and any opening quotes."""
    begins = _BEGINS.match(line, end)
    return begins["first"] if begins else None


def _is_end(line: str, match: re.Match[str], first: str) -> bool:
    mark = match[0][0]
    if mark in "。！？…":
        return mark != "…" or not first.islower()
    if first.islower():  # "Really?" he said
        return False
    if mark != "." or match[0].startswith(".."):
        return True
    # A window of 40 characters holds any abbreviation; searching all of a long line at each of
    # its full stops would take quadratic time.
    return not _ends_in_abbreviation(line[max(0, match.start() - 40) : match.start() + 1], first)


def _ends_in_abbreviation(before: str, first: str) -> bool:
    """Whether the full stop at the end of `before` belongs to an abbreviation or an initial."""
    match = _LAST_WORD.search(before)
    if match is None:
        return False
    word = match["word"]
    lowered = word.lower()
    if lowered in _TITLES:
        return lowered not in _ALSO_WORDS or _is_abbreviation_before(lowered, first)
    if lowered in _DOTTED:
        return lowered in ("e.g", "i.e", "c.f") or not first.isupper()
    if len(word) == 1 and word.isupper():  # an initial, but "I" ends sentences
        return word != "I"
    return lowered in _ABBREVIATIONS and not first.isupper()


def _is_abbreviation_before(word: str, first: str) -> bool:
    """Whether an ambiguous word is an abbreviation: "no. 5", or "al." before a small letter."""
    return first.isdigit() or (word == "al" and not first.isupper())
