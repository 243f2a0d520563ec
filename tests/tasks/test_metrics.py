"""Metrics: small cases by hand, and scikit-learn's and SciPy's numbers on random ones."""

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unmask.tasks.metrics import (
    LabelCounts,
    confusion,
    count_labels,
    matthews,
    pearson,
    ranks,
    spearman,
)

NAMES = ("a", "b", "c")


def test_hits_by_hand():
    """Three predicted, four true, two both."""
    found = LabelCounts(predicted=3, true=4, both=2)
    assert (found.precision, found.recall) == (2 / 3, 0.5)
    assert found.f1 == pytest.approx(4 / 7)


def test_what_is_neither_said_nor_true_has_no_score():
    assert (LabelCounts().precision, LabelCounts().recall, LabelCounts().f1) == (0.0, 0.0, 0.0)


def test_hits_of_sets_by_hand():
    found = count_labels([{"a", "b"}, {"a"}, set()], [{"a"}, {"b"}, {"b"}])
    assert found == {"a": LabelCounts(1, 2, 1), "b": LabelCounts(2, 1, 0)}


def test_a_confusion_has_the_truth_in_rows():
    assert confusion(["a", "a", "b"], ["a", "b", "b"], NAMES).tolist() == [
        [1, 1, 0],
        [0, 1, 0],
        [0, 0, 0],
    ]


labels = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), min_size=1)


@given(labels)
@settings(deadline=None)
def test_labels_score_as_with_scikit_learn(pairs):
    truth, said = zip(*pairs, strict=True)
    table = confusion(truth, said, NAMES)
    assert table.tolist() == sklearn.metrics.confusion_matrix(truth, said, labels=NAMES).tolist()
    assert matthews(table) == pytest.approx(
        sklearn.metrics.matthews_corrcoef(truth, said), abs=1e-12
    )
    found = count_labels([{t} for t in truth], [{s} for s in said])
    expected = sklearn.metrics.f1_score(truth, said, labels=NAMES, average=None, zero_division=0)
    assert [found.get(name, LabelCounts()).f1 for name in NAMES] == pytest.approx(list(expected))


def test_ranks_share_their_places_by_hand():
    assert ranks([3.0, 1.0, 3.0, 3.0]).tolist() == [3.0, 1.0, 3.0, 3.0]


numbers = st.lists(
    st.tuples(st.integers(-5, 5), st.floats(-100, 100, width=32)), min_size=3, max_size=50
)


@given(numbers)
@settings(deadline=None)
def test_correlations_are_those_of_scipy(pairs):
    first, second = (np.array(side, dtype=np.float64) for side in zip(*pairs, strict=True))
    if len(set(first)) == 1 or np.ptp(second) < 1e-3:
        return
    assert pearson(first, second) == pytest.approx(stats.pearsonr(first, second)[0], abs=1e-6)
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second)[0], abs=1e-9)


def test_what_never_changes_correlates_with_nothing():
    assert pearson([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0.0
    assert spearman([1.0, 2.0, 3.0], [7.0, 7.0, 7.0]) == 0.0
