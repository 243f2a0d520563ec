"""vocab.txt <-> Vocabulary: one token per line, whose id is the number of the line from 0.

BERT needs five special tokens. Of these, only [UNK] comes out of tokenizing ordinary text.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from unmask.system.errors import DataError, plural

PAD, UNKNOWN, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"  # prefix of a token that continues a word
SIZE_LIMIT = 16 * 2**20  # bytes of vocab.txt: the largest real ones have under 10 MB


class Vocabulary:
    """Tokens in the order of their ids, and the ids by token."""

    def __init__(self, tokens: Sequence[str], *, where: str = "vocabulary") -> None:
        self.tokens = tuple(tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            _refuse_repeated(self.tokens, where)
        missing = [token for token in SPECIALS if token not in self.ids]
        if missing:
            raise DataError(
                f"{where}: no {', '.join(missing)} among {len(self.tokens)} tokens; BERT needs "
                f"{', '.join(SPECIALS)}. Add each missing token on a line of its own."
            )
        self.pad, self.unknown, self.cls, self.sep, self.mask = (self.ids[s] for s in SPECIALS)

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self.ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.tokens == other.tokens

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Read vocab.txt. Lines end in \\n or \\r\\n; a token may contain any other character.

        One blank line is accepted, as an id that no text produces: copies of BERT's Chinese
        vocabulary have lost a line separator character (line 344), and later ids count that line.
        """
        if not path.is_file():  # a pipe would block, a device has no end
            raise DataError(f"{path}: not a regular file; need a vocabulary, one token per line.")
        size = path.stat().st_size
        if size > SIZE_LIMIT:
            raise DataError(
                f"{path}: {size:,} bytes; a vocabulary has at most {SIZE_LIMIT:,}. Is this "
                "the right file?"
            )
        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise DataError(
                f"{path}:{line}: byte {error.start} is not UTF-8 (0x{raw[error.start]:02x}); a "
                "vocabulary is UTF-8 text, one token per line. Convert the file to UTF-8."
            ) from None
        lines = text.removesuffix("\n").split("\n")  # not splitlines(): U+2028 may be a token
        tokens = [line.removesuffix("\r") for line in lines]
        if not tokens[-1]:
            raise DataError(
                f"{path}:{len(tokens)}: a blank line at the end; it would count as "
                "another token, and the vocabulary must end with its last one. Remove it."
            )
        return cls(tokens, where=str(path))

    def text(self) -> str:
        """Return the contents of vocab.txt."""
        return "".join(token + "\n" for token in self.tokens)


def require_mask_token(text: str) -> None:
    """Raise an error if a text contains no [MASK] to predict."""
    if MASK not in text:
        raise DataError(
            f"'{text[:60]}': contains no {MASK}, so there is nothing to predict. Write {MASK} in "
            f"place of a token, as in 'The {MASK} sat.'"
        )


def _refuse_repeated(tokens: Iterable[str], where: str) -> None:
    first_lines: dict[str, int] = {}
    repeated = []
    for line, token in enumerate(tokens, start=1):
        if first_lines.setdefault(token, line) != line:
            repeated.append((line, token))
    line, token = repeated[0]
    duplicate = f"the token '{token}'" if token else "a blank line"
    raise DataError(
        f"{where}:{line}: {duplicate} is already on line {first_lines[token]}; a token has one id "
        f"({len(repeated)} repeated {plural('line', len(repeated))}). Remove duplicates only if "
        "the model was trained without them."
    )
