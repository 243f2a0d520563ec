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
    word_indices = []
    for token in tokens:
        # The token "##" is itself a word: two number signs in the text.
        piece = token.removeprefix(CONTINUATION) or token
        if piece != token and words:
            words[-1] += piece
        else:
            words.append(piece)
        word_indices.append(len(words) - 1)
    return words, word_indices


def with_spaces(words: Sequence[str]) -> str:
    """Join words as they would be written.

    >>> with_spaces("a man ' s t - shirt says \\" stop ! \\" , at 3 . 50 .".split())
    'a man\\'s t-shirt says "stop!", at 3.50.'
    """
    text, no_space = "", True  # whether the next word follows without a space
    opened = False
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        after = words[i + 1] if i + 1 < len(words) else ""
        if word == '"' or (word == "“" and opened):  # German closes with English's opening quote
            attach_left, attach_right = opened, not opened
            opened = not opened
        elif word in BETWEEN and _is_alphanumeric(before) and _is_alphanumeric(after):
            attach_left, attach_right = True, word != "-" or after.lower() not in CONJUNCTIONS
        elif word in APOSTROPHES and _is_alphanumeric(before) and after.lower() in ENDINGS:
            attach_left = attach_right = True
        elif word in NUMERIC and before[-1:].isdigit() and after[:1].isdigit():
            # A comma inside a number separates thousands; in "2, 3" it separates two numbers.
            attach_left, attach_right = True, word != "," or len(after) == 3
        else:
            attach_left = word in ATTACHES_LEFT and bool(before)
            attach_right = word in ATTACHES_RIGHT
            opened = word == "„" or (opened and word != "”")
        no_space = no_space or attach_left or _is_chinese(before[-1:]) or _is_chinese(word[:1])
        text += word if no_space else f" {word}"
        no_space = attach_right
    return text


def _is_alphanumeric(word: str) -> bool:
    return word[:1].isalnum() and word[-1:].isalnum()


def _is_chinese(character: str) -> bool:
    """Whether a character belongs to a script without spaces, or is one of its marks."""
    blocks = ("\u3000", "\u30ff"), ("\u3400", "\u9fff"), ("\uff00", "\uffef")
    return bool(character) and any(first <= character <= last for first, last in blocks)
