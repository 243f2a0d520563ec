"""Words -> text: restores the spaces, which WordPiece does not keep.

BERT's tokenizer makes every punctuation mark a word. In text, a mark attaches to the word before
it, to the word after it, or to both; quotes open and close in turn. Chinese and Japanese have no
spaces.
"""

from collections.abc import Sequence

from unmask.text.vocabulary import CONTINUATION

# Marks that attach to the word before them.
ATTACHES_LEFT = frozenset(".,;:!?)]}%'’”»…、。，；：！？）」』》")
# Marks that attach to the word after them.
ATTACHES_RIGHT = frozenset("([{$#“„«（「『《¿¡")
BETWEEN = frozenset("-/_@")  # attach to the words on both sides
APOSTROPHES = frozenset("'’‘`´")
ENDINGS = frozenset("s t re ve ll d m n em clock".split())  # after an apostrophe: it's, o'clock
CONJUNCTIONS = frozenset(
    "and or und oder et ou y o".split()
)  # after a hyphen: "two- and three-year"
NUMERIC = frozenset(".,:")  # inside a number


def merge_word_pieces(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """Join ## tokens to the word before them; also return the index of each token's word.

    >>> merge_word_pieces(["un", "##mask", "it"])
    (['unmask', 'it'], [0, 0, 1])
    """
    words: list[str] = []
    numbers = []
    for token in tokens:
        # The token "##" is itself a word: two number signs in the text.
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
    text, joined = "", True  # joined: no space before the next word
    opened = False
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        after = words[at + 1] if at + 1 < len(words) else ""
        if word == '"' or (word == "“" and opened):  # German closes with English's opening quote
            lean_back, lean_on = opened, not opened
            opened = not opened
        elif word in BETWEEN and _letters(before) and _letters(after):
            lean_back, lean_on = True, word != "-" or after.lower() not in CONJUNCTIONS
        elif word in APOSTROPHES and _letters(before) and after.lower() in ENDINGS:
            lean_back = lean_on = True
        elif word in NUMERIC and before[-1:].isdigit() and after[:1].isdigit():
            # A comma inside a number separates thousands; in "2, 3" it separates two numbers.
            lean_back, lean_on = True, word != "," or len(after) == 3
        else:
            lean_back, lean_on = word in ATTACHES_LEFT and bool(before), word in ATTACHES_RIGHT
            opened = word == "„" or (opened and word != "”")
        joined = joined or lean_back or _chinese(before[-1:]) or _chinese(word[:1])
        text += word if joined else f" {word}"
        joined = lean_on
    return text


def _letters(word: str) -> bool:
    return word[:1].isalnum() and word[-1:].isalnum()


def _chinese(character: str) -> bool:
    """Whether a character belongs to a script without spaces, or is one of its marks."""
    blocks = ("\u3000", "\u30ff"), ("\u3400", "\u9fff"), ("\uff00", "\uffef")
    return bool(character) and any(first <= character <= last for first, last in blocks)
