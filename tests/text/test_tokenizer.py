"""The fast tokenizer: what BERT puts around tokens, and how texts that are too long are cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.system.errors import UserError
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

LETTERS = Tokenizer(Vocabulary([*SPECIALS, *"abcdefghijklmnopqrstuvwxyz", "##b"]))


def names(tokenizer, encoded):
    return [tokenizer.vocabulary.tokens[i] for i in encoded.ids]


def test_one_text_has_cls_before_it_and_sep_behind(tokenizer):
    encoded = tokenizer.encode("The cat sat.")
    assert names(tokenizer, encoded) == ["[CLS]", "the", "cat", "sat", ".", "[SEP]"]
    assert encoded.segments == [0] * 6
    assert encoded.offsets == [(0, 0), (0, 3), (4, 7), (8, 11), (11, 12), (0, 0)]
    assert encoded.special == [True, False, False, False, False, True]


def test_the_second_text_of_a_pair_is_segment_one(tokenizer):
    encoded = tokenizer.encode("the cat", "dog")
    assert names(tokenizer, encoded) == ["[CLS]", "the", "cat", "[SEP]", "dog", "[SEP]"]
    assert encoded.segments == [0, 0, 0, 0, 1, 1]
    assert encoded.offsets[4] == (0, 3)  # in the second text
    assert encoded.special == [True, False, False, True, False, True]


def test_an_empty_text_is_cls_and_sep(tokenizer):
    assert names(tokenizer, tokenizer.encode("")) == ["[CLS]", "[SEP]"]
    assert names(tokenizer, tokenizer.encode("", "")) == ["[CLS]", "[SEP]", "[SEP]"]


def test_chinese_characters_are_apart(tokenizer):
    assert names(tokenizer, tokenizer.encode("我爱你"))[1:-1] == ["我", "爱", "你"]


@pytest.mark.parametrize(
    ("first", "second", "limit", "kept"),
    [
        ("a b c d e f", "x y", 8, ("a b c", "x y")),  # the longer gives way
        ("a b", "u v w x y z", 8, ("a b", "u v w")),
        ("a b c d", "w x y z", 8, ("a b", "w x y")),  # of equals, the first
        ("a b c d e", "w x y z", 8, ("a b c", "w x")),  # the odd one to the longer
        ("a b c", "x", 100, ("a b c", "x")),
    ],
)
def test_the_longer_text_is_cut_first(first, second, limit, kept):
    encoded = LETTERS.encode(first, second, limit=limit)
    expected = f"[CLS] {kept[0]} [SEP] {kept[1]} [SEP]".split()
    assert names(LETTERS, encoded) == expected
    assert encoded.cut == len(first.split()) + len(second.split()) - len(expected) + 3


def test_only_the_second_text_is_cut_on_request():
    encoded = LETTERS.encode("a b c d", "x y z", limit=8, cut="second")
    assert names(LETTERS, encoded) == "[CLS] a b c d [SEP] x [SEP]".split()
    with pytest.raises(UserError, match="the first text has 4 tokens, but only 3 fit"):
        LETTERS.encode("a b c d", "x", limit=6, cut="second")


def test_a_limit_without_room_for_special_tokens_is_refused():
    with pytest.raises(UserError, match="limit 1: too small for the 2 special tokens"):
        LETTERS.encode("a", limit=1)


def test_windows_overlap_by_the_stride_and_keep_the_question_whole():
    windows = LETTERS.windows("q", "a b c d e f", limit=7, stride=1)  # room for 3
    texts = [" ".join(names(LETTERS, window)) for window in windows]
    assert texts == [
        "[CLS] q [SEP] a b c [SEP]",
        "[CLS] q [SEP] c d e [SEP]",
        "[CLS] q [SEP] e f [SEP]",
    ]
    assert windows[1].offsets[3:6] == [(4, 5), (6, 7), (8, 9)]  # still into the whole text


def test_a_text_that_fits_is_one_window():
    assert len(LETTERS.windows("a b c", limit=5, stride=2)) == 1
    assert len(LETTERS.windows("", limit=5, stride=2)) == 1


def test_windows_that_cannot_advance_are_refused():
    with pytest.raises(UserError, match="leave room for 2;"):
        LETTERS.windows("a b", "c d e f g", limit=7, stride=2)
    with pytest.raises(UserError, match="the stride must be 0 or more"):
        LETTERS.windows("a b", limit=7, stride=-1)


@given(count=st.integers(0, 60), limit=st.integers(4, 20), data=st.data())
@settings(deadline=None)
def test_windows_together_hold_every_token_in_order(count, limit, data):
    stride = data.draw(st.integers(0, limit - 3))
    text = " ".join("abcdefghij"[i % 10] for i in range(count))
    seen = {}
    for window in LETTERS.windows(text, limit=limit, stride=stride):
        assert len(window) <= limit
        for offsets, id in zip(window.offsets, window.ids, strict=True):
            if offsets != (0, 0):
                seen[offsets] = id
    assert [seen[key] for key in sorted(seen)] == LETTERS.ids([text])[0]


def test_decoding_glues_pieces_and_leaves_special_tokens_out(tokenizer):
    ids = tokenizer.encode("The unwanted dog, running!").ids
    assert tokenizer.decode(ids) == "the unwanted dog, running!"
    assert tokenizer.decode(ids, keep_special=True).startswith("[CLS] the")


def test_half_a_surrogate_pair_is_dropped_and_moves_no_offset(tokenizer):
    encoded = tokenizer.encode("cat \ud800 dog")
    assert names(tokenizer, encoded) == ["[CLS]", "cat", "dog", "[SEP]"]
    assert encoded.offsets[2] == (6, 9)


def test_cased_vocabularies_keep_capitals():
    cased = Tokenizer(Vocabulary([*SPECIALS, "Cat", "cat"]), Casing(lowercase=False))
    assert names(cased, cased.encode("Cat cat")) == ["[CLS]", "Cat", "cat", "[SEP]"]


@given(st.lists(st.text(alphabet="ab cé我!\u0301\u200b\ud800", max_size=30), max_size=5))
@settings(deadline=None)
def test_offsets_are_ordered_and_lie_inside_the_text(texts):
    for text, pieces in zip(texts, LETTERS.tokenize(texts), strict=True):
        last = 0
        for start, end in pieces.offsets:
            assert last <= start < end <= len(text)
            last = end


@pytest.mark.parametrize("unit", ["a", " ", "\u0301", "我", "!", "a\u0301", "\ud83d\ude00"])
def test_time_grows_in_proportion_to_the_text(unit):
    import time

    def cost(length):
        text = unit * length
        begun = time.perf_counter()
        LETTERS.ids([text])
        return time.perf_counter() - begun

    small = min(cost(20_000) for _ in range(3))
    assert cost(200_000) < max(40 * small, 1.0)  # 10 if all were ideal; 100 were it quadratic
