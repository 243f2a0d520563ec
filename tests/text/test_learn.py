"""Learning a vocabulary: the two rules by hand, and against the plainest way to compute them."""

from collections import Counter
from math import log
from pydoc_data.topics import topics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.system.errors import DataError
from unmask.text.count import count_words
from unmask.text.learn import LearnSettings, learn, report
from unmask.text.tokenizer import Casing, Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary

PROSE = [topics[name] for name in sorted(topics)][:40]


def learned(words, size, **changes):
    """The tokens after the special ones and the characters."""
    vocabulary = learn(words, LearnSettings(size=size, **{"coverage": 1.0, **changes}))
    letters = {c for word in words for c in word}
    return [t for t in vocabulary.tokens[5:] if t.removeprefix("##") not in letters]


def test_the_textbook_example_of_joining_the_most_frequent_pair():
    words = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    joined = ["##es", "##est", "##ow", "low", "##ew", "##ewest", "newest"]
    assert learned(words, 5 + 11 + 7) == joined


def test_likelihood_prefers_a_pair_that_belongs_together_to_one_that_is_merely_frequent():
    # "e" and "t" are everywhere, so "et" is frequent by chance; "q" and "u" occur only together.
    words = Counter({"et": 14, "ete": 4, "tet": 4, "qu": 12, "te": 12, "tt": 12, "ee": 12})
    assert learned(words, 5 + 6 + 1, criterion="frequency") == ["et"]
    assert learned(words, 5 + 6 + 1, criterion="likelihood") == ["qu"]


def spelled(word):
    return [word[0], *("##" + c for c in word[1:])]


def slow_learn(words, joins, criterion):
    """Count everything anew for each join: slow, and hard to get wrong."""
    split = {word: spelled(word) for word in words}
    symbols = []

    def total(split):
        counts = Counter()
        for word, parts in split.items():
            for part in parts:
                counts[part] += words[word]
        n = sum(counts.values())
        return sum(c * log(c / n) for c in counts.values())

    def join(parts, a, b):
        out = []
        for part in parts:
            if out and out[-1] == a and part == b:
                out[-1] = a + b.removeprefix("##")
            else:
                out.append(part)
        return out

    for _ in range(joins):
        pairs = Counter()
        for word, parts in split.items():
            for pair in zip(parts, parts[1:], strict=False):
                pairs[pair] += words[word]
        pairs = {pair: count for pair, count in pairs.items() if count >= 2}
        if not pairs:
            break
        if criterion == "likelihood":
            before = total(split)
            pairs = {
                (a, b): total({w: join(parts, a, b) for w, parts in split.items()}) - before
                for a, b in pairs
            }
        best = max(pairs.values())
        a, b = min(pair for pair, score in pairs.items() if score > best - 1e-9)
        split = {word: join(parts, a, b) for word, parts in split.items()}
        symbols.append(a + b.removeprefix("##"))
    return list(dict.fromkeys(symbols))


# No letter twice in a word: there the gain of joining a symbol with itself is only approximate.
WORDS = st.dictionaries(
    st.permutations("abcdef").flatmap(lambda p: st.integers(1, 6).map(lambda n: "".join(p[:n]))),
    st.integers(1, 50),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("criterion", ["frequency", "likelihood"])
@given(words=WORDS)
@settings(deadline=None, max_examples=60)
def test_fast_and_slow_learning_agree(criterion, words):
    symbols = {s for word in words for s in spelled(word)}
    slow = slow_learn(words, 6, criterion)
    fast = learn(
        words,
        LearnSettings(size=5 + len(symbols) + len(slow) or 6, criterion=criterion, coverage=1.0),
    )
    assert list(fast.tokens[5 + len(symbols) :]) == slow[: len(fast) - 5 - len(symbols)]
    assert len(fast) == 5 + len(symbols) + len(slow)


@pytest.mark.parametrize("criterion", ["frequency", "likelihood"])
def test_the_vocabulary_is_the_same_for_any_number_of_workers_and_any_chunks(criterion):
    found = set()
    for workers, chunk in ((1, 10**6), (1, 999), (2, 5_000), (3, 50_000)):
        words = count_words(PROSE, Casing(), workers=workers, chunk=chunk)
        found.add(learn(words, LearnSettings(size=600, criterion=criterion)).text())
    backwards = count_words(PROSE[::-1], Casing())
    found.add(learn(backwards, LearnSettings(size=600, criterion=criterion)).text())
    assert len(found) == 1


def test_frequency_is_what_hugging_faces_trainer_does():
    from tokenizers import models, trainers

    theirs = Tokenizer(Vocabulary(SPECIALS)).engine
    theirs.model = models.WordPiece(unk_token="[UNK]")
    trainer = trainers.WordPieceTrainer(
        vocab_size=800, special_tokens=list(SPECIALS), min_frequency=2, show_progress=False
    )
    theirs.train_from_iterator(PROSE, trainer)
    ours = learn(count_words(PROSE, Casing()), LearnSettings(size=800, coverage=1.0))
    # Not all: its order of ties changes from run to run.
    assert len(set(theirs.get_vocab()) & set(ours.tokens)) >= 760


def test_chinese_characters_stay_whole():
    vocabulary = learn(count_words(["我爱你我爱你", "我们 ok"], Casing()), LearnSettings(size=30))
    assert {"我", "爱", "你", "们"} <= set(vocabulary.tokens)
    assert not [token for token in vocabulary.tokens if token.startswith("##我") or "我爱" in token]


def test_rare_characters_beyond_the_coverage_are_left_out():
    words = {"aaaaaaaaab": 100, "ξ": 1}
    vocabulary = learn(words, LearnSettings(size=20, coverage=0.99))
    assert "ξ" not in vocabulary.tokens
    assert "ξ" in learn(words, LearnSettings(size=20, coverage=1.0)).tokens


def test_learning_stops_when_no_pair_occurs_twice():
    assert len(learn({"abc": 1}, LearnSettings(size=1000, coverage=1.0))) == 8


def test_a_size_below_the_alphabet_is_refused():
    with pytest.raises(DataError, match="size 7: too small; .* need 8"):
        learn({"abc": 5}, LearnSettings(size=7, coverage=1.0))


def test_no_text_is_refused():
    with pytest.raises(DataError, match="the text is empty"):
        learn({}, LearnSettings(size=10))


def test_the_report_counts_by_hand():
    vocabulary = Vocabulary([*SPECIALS, "cat", "##s"])
    result = report({"cat": 6, "cats": 3, "dog": 1}, vocabulary, Casing())
    assert (result.words, result.distinct_words, result.tokens) == (10, 3, 7)
    assert result.tokens_per_word == pytest.approx((6 + 6 + 1) / 10)
    assert result.unknown_words == pytest.approx(0.1)
    assert result.characters_spelled == pytest.approx(30 / 33)
