"""Words -> text: where the spaces go, which WordPiece does not keep.

Punctuation is a word of its own to a model. In text it leans on what is before it, on what is
behind it, or on both; quotes open and close in turn. Chinese and Japanese have no spaces.
"""

from collections.abc import Sequence

from unmask.text.vocabulary import CONTINUATION

LEANS_BACK = frozenset(".,;:!?)]}%'’”»…、。，；：！？）」』》")
LEANS_ON = frozenset("([{$#“„«（「『《¿¡")
BETWEEN = frozenset("-/_@")  # joins what is on both sides
APOSTROPHES = frozenset("'’‘`´")
ENDINGS = frozenset("s t re ve ll d m n em clock".split())  # behind an apostrophe
AND = frozenset("and or und oder et ou y o".split())  # behind a hyphen that stands for a word
NUMERIC = frozenset(".,:")  # inside a number


def merge_word_pieces(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """Join pieces marked with ## to the word before them; also return the word of each token.

    >>> merge_word_pieces(["un", "##mask", "it"])
    (['unmask', 'it'], [0, 0, 1])
    """
    words: list[str] = []
    numbers = []
    for token in tokens:
        piece = token.removeprefix(CONTINUATION) or token
        if piece != token and words:
            words[-1] += piece
        else:
            words.append(piece)
        numbers.append(len(words) - 1)
    return words, numbers


def with_spaces(words: Sequence[str]) -> str:
    """Join words as they would be written.

    >>> with_spaces("a man ' s t - shirt says \\" stop ! \\" , at 3 . 50 .".split())
    'a man\\'s t-shirt says "stop!", at 3.50.'
    """
    text, joined = "", True  # joined: nothing comes between this word and the one before it
    opened = False
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        after = words[at + 1] if at + 1 < len(words) else ""
        if word == '"' or (word == "“" and opened):  # German closes with what English opens with
            lean_back, lean_on = opened, not opened
            opened = not opened
        elif word in BETWEEN and _letters(before) and _letters(after):
            lean_back, lean_on = True, word != "-" or after.lower() not in AND
        elif word in APOSTROPHES and _letters(before) and after.lower() in ENDINGS:
            lean_back = lean_on = True
        elif word in NUMERIC and before[-1:].isdigit() and after[:1].isdigit():
            lean_back, lean_on = True, word != "," or len(after) == 3
        else:
            lean_back, lean_on = word in LEANS_BACK and bool(before), word in LEANS_ON
            opened = word == "„" or (opened and word != "”")
        joined = joined or lean_back or _chinese(before[-1:]) or _chinese(word[:1])
        text += word if joined else f" {word}"
        joined = lean_on
    return text


def _letters(word: str) -> bool:
    return word[:1].isalnum() and word[-1:].isalnum()


def _chinese(character: str) -> bool:
    """A character of a script without spaces, or one of its marks."""
    blocks = ("\u3000", "\u30ff"), ("\u3400", "\u9fff"), ("\uff00", "\uffef")
    return bool(character) and any(first <= character <= last for first, last in blocks)
