"""Counting words: as the tokenizer splits them, in bounded pieces."""

from collections import Counter

import pytest

from unmask.text import count
from unmask.text.count import count_words
from unmask.text.tokenizer import Casing


def test_words_are_counted_as_the_tokenizer_splits_them():
    counted = count_words(["The cat, the CAT!", "Él 我爱"], Casing())
    assert counted == Counter({"the": 2, "cat": 2, ",": 1, "!": 1, "el": 1, "我": 1, "爱": 1})


def test_casing_is_kept_when_asked():
    assert count_words(["The É"], Casing(lowercase=False)) == Counter({"The": 1, "É": 1})


def test_a_word_that_could_only_be_unknown_is_not_counted():
    assert count_words(["a" * 101 + " b"], Casing()) == Counter({"b": 1})


@pytest.mark.parametrize("space", [" ", "\n", "\t", "\u3000"])
def test_cutting_a_very_long_text_loses_and_changes_no_word(monkeypatch, space):
    text = space.join(f"word{i % 7}" for i in range(200))
    whole = count_words([text], Casing())
    monkeypatch.setattr(count, "LONG_TEXT", 50)
    assert count_words([text], Casing()) == whole


def test_progress_adds_up_to_the_text():
    seen = []
    count_words(["abc"] * 100, Casing(), chunk=30, progress=seen.append)
    assert sum(seen) == 300
    assert len(seen) == 10
