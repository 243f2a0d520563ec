"""Text -> sentences: English and Chinese, by their marks, with an eye for abbreviations.

A line break ends a sentence. Within a line, a sentence ends at one of . ! ? and the like, with
the quotes and brackets that close after it; in Chinese at once, elsewhere only before a space and
something that can begin a sentence. A full stop after an abbreviation or an initial ends none.
"""

import re
from collections.abc import Iterator
from itertools import chain

# Before a name or a number: never the end of a sentence.
_TITLES = frozenset(
    "mr mrs ms dr prof st sr jr rev hon gen col capt lt sgt maj cmdr gov sen rep pres messrs mme "
    "mlle vs cf viz no nos vol vols pp p fig figs eq eqs ch sec art al ed eds trans approx ca "
    "jan feb mar apr jun jul aug sep sept oct nov dec mt ft".split()
)
# Often the end: only what follows can tell, and a capital says yes.
_ABBREVIATIONS = frozenset("etc inc ltd co corp bros dept est univ assn ave blvd rd".split())
_NEVER_ALONE = frozenset(("e.g", "i.e", "a.m", "p.m", "c.f", "u.s", "u.k", "u.n", "d.c", "ph.d"))

_CLOSING = "\"'”’»)\\]}」』）】》"
_OPENING = "\"'“‘«(\\[{「『（【《"
# A mark of Chinese, or a run of . ! ? ... before a space; each with what closes after it.
# Possessive (++): a run of marks is tried once, not once for each of its marks.
_END = re.compile(
    rf"(?:[。！？]++|……|…(?=\s|$)|(?<![.!?])[.!?]++(?=[{_CLOSING}]*+(?:\s|$)))[{_CLOSING}]*+"
)
_BEGINS = re.compile(rf"\s*[{_OPENING}¿¡—–-]*\s?(?P<first>\S)?")
_LAST_WORD = re.compile(r"(?P<word>[^\W_](?:[\w.]*\w)?)\.$")


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, without the spaces around them; blank ones are left out.

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
    """The places of a line where a sentence ends and something follows."""
    for match in _END.finditer(line):
        end = match.end()
        first = _first_after(line, end)
        if first is None or _is_end(line, match, first):
            yield end


def _first_after(line: str, end: int) -> str | None:
    """The first letter or digit of what follows, past opening quotes."""
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
    return not _abbreviated(line[max(0, match.start() - 40) : match.start() + 1], first)


def _abbreviated(before: str, first: str) -> bool:
    """Does the full stop at the end of `before` belong to its last word?"""
    found = _LAST_WORD.search(before)
    if found is None:
        return False
    word = found["word"]
    bare = word.lower()
    if bare in _TITLES:
        return bare not in ("no", "art", "ed", "mar", "jun", "dec", "al") or _names(bare, first)
    if bare in _NEVER_ALONE:
        return bare in ("e.g", "i.e", "c.f") or not first.isupper()
    if len(word) == 1 and word.isupper():  # an initial, but "I" ends sentences
        return word != "I"
    return bare in _ABBREVIATIONS and not first.isupper()


def _names(word: str, first: str) -> bool:
    """Words that are abbreviations only before a number, or before more of a reference."""
    return first.isdigit() or (word == "al" and not first.isupper())
