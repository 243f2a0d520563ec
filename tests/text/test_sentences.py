"""Sentences: where a mark ends one, and where it only looks like it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.text.sentences import split_sentences


@pytest.mark.parametrize(
    "text",
    [
        "It rained.| Nobody came.",
        "Really?| Yes!| Well...| Perhaps.",
        "He paid 3.50 for v1.2 at 10.30.| Then he left.",
        "Mr. Brown met Dr. J. R. Smith at St. Mary's.| They spoke.",
        "See Fig. 3 and pp. 12-14, cf. No. 7.| It is clear.",
        "I said no.| Then I left.",
        "Fruit, e.g. Apples, i.e. Food.| Good.",
        "He lives in the U.S. and works at 5 p.m. every day.",
        "Apples, pears, etc. are fruit.| Nuts, etc.| They are not.",
        "It was I.| Nobody else was there.",
        '"Who is there?" he asked.| "Nobody."| She laughed.',
        "(It was late.)| They went home.",
        "He stopped... and went on.| Then he stopped...| He was tired.",
        "What?!| No way!!",
        "It ended in 1999.| 2000 was better.",
        "He said: “Go.”| “Why?”",
        "天下大势，分久必合。|合久必分！|是吗？|他说：“好。”|走了。",
        "他想……|算了。",
        "中文。|English too.| 再来。",
        "no end mark at all",
        "The company was Brown Inc. of York.| It failed.",
        "Smith et al. 2019 say so.| We agree.",
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text):
    expected = [part.strip() for part in text.split("|")]
    assert list(split_sentences(text.replace("|", ""))) == expected


def test_a_line_break_ends_a_sentence():
    assert list(split_sentences("A title\n\nSome text\r\nmore")) == ["A title", "Some text", "more"]


@given(st.text(alphabet='ab AB.!?…。！”"() \n1我', max_size=60))
def test_nothing_but_space_is_lost(text):
    joined = "".join(split_sentences(text))
    assert "".join(joined.split()) == "".join(text.split())


@pytest.mark.parametrize("unit", ["a. B", ".", ".)", "aaaa", "?! ", "…"])
def test_time_grows_in_proportion_to_the_text(unit):
    import time

    def cost(length):
        text = unit * length + "x"
        begun = time.perf_counter()
        sum(1 for _ in split_sentences(text))
        return time.perf_counter() - begun

    assert cost(100_000) < max(40 * cost(10_000), 1.0)
