"""WordPiece in plain Python: the algorithm by hand."""

import pytest

from unmask.text.wordpiece import PlainToken, is_chinese, is_punctuation, tokenize

VOCABULARY = {
    "un",
    "##aff",
    "##able",
    "##a",
    "##b",
    "hello",
    "hell",
    "!",
    "-",
    "我",
    "e",
    "é",
    "[UNK]",
}


def words(text, lowercase=True):
    return [token.text for token in tokenize(text, VOCABULARY, lowercase=lowercase)]


def test_the_longest_piece_is_taken_first():
    assert words("unaffable hello") == ["un", "##aff", "##able", "hello"]


def test_a_word_that_cannot_be_covered_is_unknown_as_a_whole():
    assert words("hellx unx un") == ["[UNK]", "[UNK]", "un"]


def test_a_word_of_over_100_characters_is_unknown():
    assert words("un" + "a" * 98) == ["un", *["##a"] * 98]
    assert words("un" + "a" * 99) == ["[UNK]"]


def test_punctuation_is_a_word_of_its_own():
    assert words("hello!un-hello") == ["hello", "!", "un", "-", "hello"]


def test_every_chinese_character_is_a_word():
    assert words("我我un我") == ["我", "我", "un", "我"]


def test_lower_casing_strips_accents_and_casing_keeps_them():
    assert words("É") == ["e"]
    assert words("é", lowercase=False) == ["é"]
    assert words("HELLO", lowercase=False) == ["[UNK]"]


def test_control_characters_vanish_and_odd_spaces_split():
    assert words("un\x00aff\u200bable\u00a0un\tun\u3000un") == [
        "un",
        "##aff",
        "##able",
        *["un"] * 3,
    ]


def test_tokens_point_at_the_text_they_stand_for():
    text = "  UNAFF\u0301ABLE, 我[MASK]"
    tokens = tokenize(text, VOCABULARY | {",", "[MASK]"}, lowercase=True)
    assert tokens == [
        PlainToken("un", 2, 4),
        PlainToken("##aff", 4, 7),
        PlainToken("##able", 8, 12),
        PlainToken(",", 12, 13),
        PlainToken("我", 14, 15),
        PlainToken("[MASK]", 15, 21),
    ]


@pytest.mark.parametrize("character", "!$^`~。，“—")
def test_ascii_symbols_and_unicode_punctuation_split_words(character):
    assert is_punctuation(character)


@pytest.mark.parametrize("character", "a5é°€\n ")
def test_letters_digits_and_other_symbols_do_not(character):
    assert not is_punctuation(character)


def test_kana_and_hangul_are_not_chinese():
    assert [is_chinese(c) for c in "我㐀カ한"] == [True, True, False, False]
