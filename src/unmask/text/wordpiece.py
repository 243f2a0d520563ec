"""Text -> tokens in plain Python: WordPiece as BERT published it, to read and to test against.

    "Un-affable!"  --clean, lower, strip accents-->  un-affable!
                   --split into words----------->    un  -  affable  !
                   --longest match first-------->    un  -  aff ##able  !

Every step carries along, with each character, its index in the original text, so that a token
knows the span of the text that it covers. `tokenizer.py` does the same in a compiled engine;
docs/text.md lists the few characters on which the two differ, and why.
"""

import unicodedata
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from unmask.text.vocabulary import CONTINUATION, SPECIALS, UNKNOWN

LONGEST_WORD = 100  # characters; a longer word is one [UNK]

Character = tuple[str, int]  # a character and its index in the original text


@dataclass(frozen=True, slots=True)
class PlainToken:
    """A token, and the span [start, end) of the text that it covers."""

    text: str
    start: int
    end: int


def tokenize(text: str, vocabulary: Container[str], *, lowercase: bool) -> list[PlainToken]:
    """Split a text into the tokens of a vocabulary.

    >>> [token.text for token in tokenize("Unwanted, rain", {"un", "##want", "##ed", ","},
    ...                                   lowercase=True)]
    ['un', '##want', '##ed', ',', '[UNK]']
    """
    return [
        token
        for part in _between_specials(text)
        for word in ([part] if isinstance(part, PlainToken) else split(normalize(part, lowercase)))
        for token in ([word] if isinstance(word, PlainToken) else split_word(word, vocabulary))
    ]


def normalize(characters: Iterable[Character], lowercase: bool) -> Iterator[Character]:
    """Clean; when lower-casing, also strip accents: decompose (NFD) and drop combining marks."""
    if not lowercase:
        yield from clean(characters)
        return
    for character, index in _decompose(clean(characters)):
        if unicodedata.category(character) != "Mn":
            # One character may become two, which then share its index.
            yield from ((lower, index) for lower in character.lower())


def clean(characters: Iterable[Character]) -> Iterator[Character]:
    """Drop control characters, make white space plain, put spaces around Chinese characters."""
    for character, index in characters:
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            yield " ", index
        elif is_chinese(character):
            yield from ((part, index) for part in f" {character} ")
        elif category[0] != "C" and character != "\ufffd":
            yield character, index


def split(characters: Iterable[Character]) -> Iterator[list[Character]]:
    """Split at white space, and make each punctuation mark a word of its own."""
    word: list[Character] = []
    for character, index in characters:
        if character.isspace() or is_punctuation(character):
            if word:
                yield word
            word = []
            if not character.isspace():
                yield [(character, index)]
        else:
            word.append((character, index))
    if word:
        yield word


def split_word(word: list[Character], vocabulary: Container[str]) -> list[PlainToken]:
    """Split one word greedily: the longest token of the vocabulary that matches, then the next.

    If no token matches at some place, the whole word is [UNK].
    """
    text = "".join(character for character, _ in word)
    unknown = PlainToken(UNKNOWN, word[0][1], word[-1][1] + 1)
    if len(text) > LONGEST_WORD:
        return [unknown]
    tokens: list[PlainToken] = []
    start = 0
    while start < len(text):
        prefix = CONTINUATION if start else ""
        for end in range(len(text), start, -1):
            if prefix + text[start:end] in vocabulary:
                break
        else:
            return [unknown]
        tokens.append(PlainToken(prefix + text[start:end], word[start][1], word[end - 1][1] + 1))
        start = end
    return tokens


def is_punctuation(character: str) -> bool:
    """Whether a character is Unicode punctuation or an ASCII symbol, such as `$` or `^`."""
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character)[0] == "P"


def is_chinese(character: str) -> bool:
    """Whether a character is an ideograph, which is a word of its own; kana and hangul are not."""
    code = ord(character)
    return any(first <= code <= last for first, last in _IDEOGRAPHS)


# The blocks "CJK Unified Ideographs", extensions A to E, and the two of compatibility forms.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def _between_specials(text: str) -> Iterator[PlainToken | list[Character]]:
    """Split a text around the special tokens that it contains literally, such as [MASK]."""
    start = 0
    while start < len(text):
        matches = [
            (position, special)
            for special in SPECIALS
            if (position := text.find(special, start)) >= 0
        ]
        position, special = min(matches, default=(len(text), ""))
        if position > start:
            yield [
                (character, index) for index, character in enumerate(text[start:position], start)
            ]
        if special:
            yield PlainToken(special, position, position + len(special))
        start = position + len(special)


def _decompose(characters: Iterable[Character]) -> Iterator[Character]:
    """Decompose to NFD: the characters of a letter and its accents all have the letter's index."""
    marks: list[Character] = []  # NFD sorts the marks after a letter by combining class

    def ordered() -> list[Character]:
        return sorted(marks, key=lambda mark: unicodedata.combining(mark[0]))

    for character, index in characters:
        for decomposed in unicodedata.normalize("NFD", character):
            if unicodedata.combining(decomposed):
                marks.append((decomposed, index))
            else:
                yield from ordered()
                marks.clear()
                yield decomposed, index
    yield from ordered()
