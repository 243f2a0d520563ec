"""Text -> ids: the compiled WordPiece, for texts and pairs, truncated or split into windows.

    encode("a b")         [CLS] a b [SEP]                segments 0
    encode("a b", "c")    [CLS] a b [SEP] c [SEP]        segments 0 0 0 0 1 1

The `tokenizers` engine finds the tokens; special tokens, pairs, truncation and windows are
implemented here. The engine has its own Unicode tables, so ids do not depend on the version of
Python.
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

READ_AHEAD = 1024  # texts tokenized at a time, on all cores
CHARACTERS = 2**21  # ... or fewer: a token takes a hundred bytes before truncation
NO_OFFSET: Offsets = (0, 0)  # offsets of [CLS] and [SEP], which cover no text
_SURROGATES = re.compile("[\ud800-\udfff]")  # half a character: no text file can hold it


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """Token ids and character offsets of one text, without special tokens."""

    ids: list[int]
    offsets: list[Offsets]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Model input: one text or a pair, with [CLS] and [SEP]."""

    ids: list[int]
    segments: list[int]
    offsets: list[Offsets]  # into the text that the segment names
    special: list[bool]
    cut: int = 0  # tokens that were truncated

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Casing:
    """How letters are normalized before the vocabulary lookup."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: if lower-casing, as BERT does
    chinese_apart: bool = True


@dataclass
class Tokenizer:
    """A vocabulary and its casing: together they determine every id."""

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
        # Otherwise the engine would split a [MASK] that a text contains at its brackets.
        self.engine.add_special_tokens(list(SPECIALS))
        # Not used here, as `join` adds special tokens; other programs read it in tokenizer.json.
        self.engine.post_processor = processors.BertProcessing(
            (SEP, self.vocabulary.sep), (CLS, self.vocabulary.cls)
        )

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Tokenize texts in parallel, with character offsets."""
        encodings = self.engine.encode_batch(
            [replace_surrogates(text) for text in texts], add_special_tokens=False
        )
        return [TokenizedText(encoding.ids, encoding.offsets) for encoding in encodings]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts in parallel to ids alone, which is faster than `tokenize`."""
        encodings = self.engine.encode_batch_fast(
            [replace_surrogates(text) for text in texts], add_special_tokens=False
        )
        return [encoding.ids for encoding in encodings]

    def ids_of_each(self, texts: Iterable[str]) -> Iterator[tuple[str, list[int]]]:
        """Yield each text with its ids, in memory that does not grow with the number of texts."""
        for group in in_groups(texts, len, CHARACTERS, READ_AHEAD):
            yield from zip(group, self.ids(group), strict=True)

    def encode(
        self,
        text: str,
        second: str | None = None,
        *,
        limit: int | None = None,
        cut: Cut = "longest",
    ) -> Encoded:
        """Encode one text or a pair as model input, of at most `limit` tokens.

        `cut` says which text is truncated: the longer one, or only the second.
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
        """Encode texts (one string) or pairs (two) as model input, tokenized in parallel."""
        for group in in_groups(texts, _total_characters, CHARACTERS, READ_AHEAD):
            # All parts of a group in one call: the engine spreads the texts of a call over the
            # cores.
            tokenized = iter(self.tokenize([part for parts in group for part in parts]))
            for parts in group:
                first, *others = islice(tokenized, len(parts))
                yield self.join(first, others[0] if others else None, limit=limit, cut=cut)

    def join(
        self,
        first: TokenizedText,
        second: TokenizedText | None = None,
        *,
        limit: int | None = None,
        cut: Cut = "longest",
    ) -> Encoded:
        """Add [CLS] and [SEP] to the tokens of a text or a pair, truncated to `limit`."""
        lengths = [len(first.ids), 0 if second is None else len(second.ids)]
        keep = lengths
        if limit is not None:
            keep = _kept_lengths(
                *lengths, room=self._room_for_texts(limit, second is not None), cut=cut
            )
        kept_first, kept_second = keep
        ids = [self.vocabulary.cls, *first.ids[:kept_first], self.vocabulary.sep]
        segments = [0] * (kept_first + 2)
        offsets = [NO_OFFSET, *first.offsets[:kept_first], NO_OFFSET]
        special = [True, *[False] * kept_first, True]
        if second is not None:
            ids += [*second.ids[:kept_second], self.vocabulary.sep]
            segments += [1] * (kept_second + 1)
            offsets += [*second.offsets[:kept_second], NO_OFFSET]
            special += [*[False] * kept_second, True]
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
        """Split the last text into overlapping windows, each of at most `limit` tokens.

        Neighbouring windows share `stride` tokens. The first text of a pair is repeated in every
        window, either whole or truncated to `first` tokens.
        """
        tokenized = self.tokenize([text] if second is None else [text, second])
        if second is not None and first is not None:
            tokenized[0] = TokenizedText(tokenized[0].ids[:first], tokenized[0].offsets[:first])
        fixed = len(tokenized[0].ids) if second is not None else 0
        room = self._room_for_texts(limit, second is not None) - fixed
        if room <= stride or stride < 0:
            raise UserError(
                f"windows of {limit} tokens with an overlap (stride) of {stride}: the special "
                f"tokens and the first text ({fixed} tokens) leave room for {max(room, 0)}; the "
                "stride must be 0 or more, and less than that. Change the limit or the stride."
            )
        last = tokenized[-1]
        # A window that began within `stride` tokens of the end would hold nothing new.
        starts = range(0, max(len(last.ids) - stride, 1), room - stride)
        parts = [TokenizedText(last.ids[i : i + room], last.offsets[i : i + room]) for i in starts]
        return [
            self.join(part) if second is None else self.join(tokenized[0], part) for part in parts
        ]

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Decode ids to text: tokens joined to words, special tokens skipped."""
        text = self.engine.decode([int(i) for i in ids], skip_special_tokens=not keep_special)
        return str(text)

    def digest(self) -> str:
        """Return a sha256 of everything that determines ids."""
        casing = (self.casing.lowercase, self.casing.strip_accents, self.casing.chinese_apart)
        return hashlib.sha256(f"{casing}\n{self.vocabulary.text()}".encode()).hexdigest()

    def _room_for_texts(self, limit: int, pair: bool) -> int:
        specials = 3 if pair else 2
        if limit < specials:
            raise UserError(
                f"limit {limit}: too small for the {specials} special tokens. Give at least "
                f"{specials}."
            )
        return limit - specials


def _kept_lengths(first: int, second: int, *, room: int, cut: Cut) -> list[int]:
    """Decide how many tokens of each text to keep.

    "longest" truncates the longer text until both are equal, and then each in turn; if the room is
    odd, the text that was longer keeps one token more.
    """
    if first + second <= room:
        return [first, second]
    if cut == "second":
        if first > room:
            raise UserError(
                f"the first text has {first} tokens, but only {room} fit, and only the second may "
                'be truncated. Truncate the longest instead (cut="longest"), or shorten the first '
                "text."
            )
        return [first, room - first]
    shorter = min(first, second)
    kept_shorter = min(shorter, room // 2)  # the longer text gets the rest
    kept = [kept_shorter, room - kept_shorter]
    return kept if first <= second else kept[::-1]


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates by U+FFFD, which BERT drops; all offsets stay valid."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def _total_characters(parts: Sequence[str]) -> int:
    return sum(map(len, parts))


def in_groups(
    items: Iterable[T], size: Callable[[T], int], most: int, count: int | None = None
) -> Iterator[list[T]]:
    """Group items; a group ends when its size reaches `most`, or when it has `count` items."""
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= most or len(group) == count:
            yield group
            group, total = [], 0
    if group:
        yield group
