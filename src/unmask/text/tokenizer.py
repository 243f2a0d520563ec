"""Text -> ids: the compiled WordPiece, for one text or a pair, cut or windowed to a length.

    encode("a b")         [CLS] a b [SEP]                segments 0
    encode("a b", "c")    [CLS] a b [SEP] c [SEP]        segments 0 0 0 0 1 1

The `tokenizers` engine finds the pieces; what BERT puts around them is written out here. The
engine carries its own Unicode tables, so ids do not change with the version of Python.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeVar

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from unmask.system.errors import UserError
from unmask.text.vocabulary import CLS, CONTINUATION, SEP, SPECIALS, UNKNOWN, Vocabulary
from unmask.text.wordpiece import LONGEST_WORD

Cut = Literal["longest", "second"]
Offsets = tuple[int, int]
T = TypeVar("T")

READ_AHEAD = 1024  # texts tokenised at a time, by all cores
CHARACTERS = 2**21  # ... but not more than these: a token takes a hundred bytes before it is cut
NOWHERE: Offsets = (0, 0)  # the offsets of [CLS] and [SEP], which stand for no text
_SURROGATES = re.compile("[\ud800-\udfff]")  # half a character: no text file can hold one


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The tokens of one text, nothing around them."""

    ids: list[int]
    offsets: list[Offsets]


@dataclass(frozen=True, slots=True)
class Encoded:
    """What the model reads: one text or a pair, with [CLS] and [SEP]."""

    ids: list[int]
    segments: list[int]
    offsets: list[Offsets]  # into the text that the segment names
    special: list[bool]
    cut: int = 0  # tokens that did not fit

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Casing:
    """What happens to letters before they are looked up."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: just when lower-casing, as BERT does
    chinese_apart: bool = True


@dataclass
class Tokenizer:
    """A vocabulary and a casing: together they decide every id."""

    vocabulary: Vocabulary
    casing: Casing = Casing()
    engine: tokenizers.Tokenizer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.engine = tokenizers.Tokenizer(
            models.WordPiece(
                vocab=self.vocabulary.ids,
                unk_token=UNKNOWN,
                continuing_subword_prefix=CONTINUATION,
                max_input_chars_per_word=LONGEST_WORD,
            )
        )
        self.engine.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.casing.chinese_apart,
            strip_accents=self.casing.strip_accents,
            lowercase=self.casing.lowercase,
        )
        self.engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self.engine.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=True)
        self.engine.add_special_tokens(list(SPECIALS))
        # Not used here, where `join` does it; but part of the tokenizer.json that others read.
        self.engine.post_processor = processors.BertProcessing(
            (SEP, self.vocabulary.sep), (CLS, self.vocabulary.cls)
        )

    def pieces(self, texts: Sequence[str]) -> list[TokenizedText]:
        """The tokens of each text, found in parallel."""
        encodings = self.engine.encode_batch(
            [whole_characters(text) for text in texts], add_special_tokens=False
        )
        return [TokenizedText(encoding.ids, encoding.offsets) for encoding in encodings]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without offsets, which costs less than `pieces`."""
        encodings = self.engine.encode_batch_fast(
            [whole_characters(text) for text in texts], add_special_tokens=False
        )
        return [encoding.ids for encoding in encodings]

    def ids_of_each(self, texts: Iterable[str]) -> Iterator[tuple[str, list[int]]]:
        """Every text with its ids, in steady memory however many there are."""
        for some in in_groups(texts, len, CHARACTERS, READ_AHEAD):
            yield from zip(some, self.ids(some), strict=True)

    def encode(
        self,
        text: str,
        second: str | None = None,
        *,
        limit: int | None = None,
        cut: Cut = "longest",
    ) -> Encoded:
        """One text or a pair as the model reads it, at most `limit` tokens in all.

        `cut` says which text gives way: the longer one, or only the second.
        """
        texts = [text] if second is None else [text, second]
        return next(self.encode_many([texts], limit=limit, cut=cut))

    def encode_many(
        self,
        texts: Iterable[Sequence[str]],
        *,
        limit: int | None = None,
        cut: Cut = "longest",
    ) -> Iterator[Encoded]:
        """Texts (one string) or pairs (two) as the model reads them, tokenised in parallel."""
        for some in in_groups(texts, _characters, CHARACTERS, READ_AHEAD):
            pieces = iter(self.pieces([part for parts in some for part in parts]))
            for parts in some:
                first, *others = islice(pieces, len(parts))
                yield self.join(first, others[0] if others else None, limit=limit, cut=cut)

    def join(
        self,
        first: TokenizedText,
        second: TokenizedText | None = None,
        *,
        limit: int | None = None,
        cut: Cut = "longest",
    ) -> Encoded:
        """Put [CLS] and [SEP] around tokens that are there already."""
        lengths = [len(first.ids), 0 if second is None else len(second.ids)]
        keep = lengths
        if limit is not None:
            keep = _fit(*lengths, room=self._room(limit, second is not None), cut=cut)
        a, b = keep
        ids = [self.vocabulary.cls, *first.ids[:a], self.vocabulary.sep]
        segments = [0] * (a + 2)
        offsets = [NOWHERE, *first.offsets[:a], NOWHERE]
        special = [True, *[False] * a, True]
        if second is not None:
            ids += [*second.ids[:b], self.vocabulary.sep]
            segments += [1] * (b + 1)
            offsets += [*second.offsets[:b], NOWHERE]
            special += [*[False] * b, True]
        return Encoded(ids, segments, offsets, special, sum(lengths) - sum(keep))

    def windows(
        self,
        text: str,
        second: str | None = None,
        *,
        limit: int,
        stride: int,
        first: int | None = None,
    ) -> list[Encoded]:
        """The last text in overlapping windows, each of at most `limit` tokens.

        Neighbours share `stride` tokens. A first text of a pair stands in every window, whole or
        its `first` tokens.
        """
        pieces = self.pieces([text] if second is None else [text, second])
        if second is not None and first is not None:
            pieces[0] = TokenizedText(pieces[0].ids[:first], pieces[0].offsets[:first])
        fixed = len(pieces[0].ids) if second is not None else 0
        room = self._room(limit, second is not None) - fixed
        if room <= stride or stride < 0:
            raise UserError(
                f"windows of {limit} tokens that share {stride}: only {max(room, 0)} fit beside "
                f"the first text ({fixed} tokens) and the special tokens; a window must be able "
                "to advance, and a stride is not negative. Change the limit or the stride."
            )
        long = pieces[-1]
        starts = range(0, max(len(long.ids) - stride, 1), room - stride)
        parts = [TokenizedText(long.ids[i : i + room], long.offsets[i : i + room]) for i in starts]
        return [self.join(part) if second is None else self.join(pieces[0], part) for part in parts]

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Ids -> text: pieces glued to words, special tokens left out."""
        text = self.engine.decode([int(i) for i in ids], skip_special_tokens=not keep_special)
        return str(text)

    def digest(self) -> str:
        """A sha256 of everything that decides ids."""
        casing = (self.casing.lowercase, self.casing.strip_accents, self.casing.chinese_apart)
        return hashlib.sha256(f"{casing}\n{self.vocabulary.text()}".encode()).hexdigest()

    def _room(self, limit: int, pair: bool) -> int:
        around = 3 if pair else 2
        if limit < around:
            raise UserError(
                f"limit {limit}: no room for {around} special tokens. Give at least {around}."
            )
        return limit - around


def _fit(first: int, second: int, *, room: int, cut: Cut) -> list[int]:
    """How many tokens of each text to keep.

    "longest" takes from the longer text until both are equal, then from each in turn; where one
    token is left over, the text that was longer has it.
    """
    if first + second <= room:
        return [first, second]
    if cut == "second":
        if first > room:
            raise UserError(
                f"the first text has {first} tokens and {room} fit; only the second may be cut. "
                'Cut the longest instead (cut="longest"), or shorten the first text.'
            )
        return [first, room - first]
    short = min(first, second)
    kept_short = min(short, room // 2)  # the longer has room for all that is left
    kept = [kept_short, room - kept_short]
    return kept if first <= second else kept[::-1]


def whole_characters(text: str) -> str:
    """Put U+FFFD, which BERT drops, for half a surrogate pair; every offset stays."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def _characters(parts: Sequence[str]) -> int:
    return sum(map(len, parts))


def in_groups(
    items: Iterable[T], size: Callable[[T], int], most: int, count: int | None = None
) -> Iterator[list[T]]:
    """Lists of items; each ends when its items have a size of `most`, or when it has `count`."""
    some: list[T] = []
    held = 0
    for item in items:
        some.append(item)
        held += size(item)
        if held >= most or len(some) == count:
            yield some
            some, held = [], 0
    if some:
        yield some
