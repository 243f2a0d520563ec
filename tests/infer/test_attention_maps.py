"""Attention maps: hidden, merged and filtered by hand; rollout as Abnar and Zuidema write it."""

import numpy as np
import pytest

from unmask.infer.attention_maps import AttentionMaps
from unmask.system.errors import SettingsError
from unmask.text.detokenize import merge_word_pieces


def maps(weights, tokens=("[CLS]", "un", "##mask", "[SEP]"), segments=None):
    weights = np.array(weights, np.float32)
    return AttentionMaps(
        list(tokens),
        segments or [0] * len(tokens),
        [token.startswith("[") for token in tokens],
        weights.reshape(1, 1, len(tokens), len(tokens)) if weights.ndim == 2 else weights,
    )


ROWS = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [0.4, 0.3, 0.3, 0.0], [1.0, 0.0, 0.0, 0.0]]


def test_pieces_go_on_with_the_word_before_them():
    pieces = ["[CLS]", "un", "##mask", "##ed", "it", "[SEP]"]
    assert merge_word_pieces(pieces) == (["[CLS]", "unmasked", "it", "[SEP]"], [0, 1, 1, 1, 2, 3])
    assert merge_word_pieces(["##s", "a"]) == (["s", "a"], [0, 1])
    assert merge_word_pieces(["中", "文", "。"]) == (["中", "文", "。"], [0, 1, 2])


def test_a_word_is_looked_at_with_all_pieces_and_looks_as_their_mean():
    found = maps(ROWS).merged()
    assert found.tokens == ["[CLS]", "unmask", "[SEP]"]
    by_hand = [[0.1, 0.5, 0.4], [0.45, 0.45, 0.1], [1.0, 0.0, 0.0]]
    np.testing.assert_allclose(found.weights[0, 0], by_hand, atol=1e-7)


def test_hidden_tokens_leave_rows_that_sum_to_one():
    found = maps(ROWS).hidden()
    assert found.tokens == ["un", "##mask"]
    assert found.words == [0, 0]
    np.testing.assert_allclose(found.weights[0, 0], [[1 / 3, 2 / 3], [0.5, 0.5]], atol=1e-7)


def test_a_row_that_looked_only_at_hidden_tokens_is_left_with_nothing():
    found = maps([[1, 0, 0], [0.5, 0, 0.5], [0, 1, 0]], ("[CLS]", "a", "[SEP]")).hidden()
    assert found.weights.tolist() == [[[[0.0]]]]


def test_hiding_and_merging_may_come_in_either_order_where_no_word_has_pieces():
    tokens = ("[CLS]", "a", "b", "[SEP]")
    one, two = maps(ROWS, tokens).hidden().merged(), maps(ROWS, tokens).merged().hidden()
    np.testing.assert_allclose(one.weights, two.weights, atol=1e-7)


def test_from_one_text_to_the_other():
    tokens, segments = ("[CLS]", "a", "[SEP]", "b"), [0, 0, 0, 1]
    both = maps(ROWS, tokens, segments)
    np.testing.assert_allclose(
        both.between("first to second")[0, 0], [[0.4], [0.2], [0.0]], atol=1e-7
    )
    np.testing.assert_allclose(both.between("second to first")[0, 0], [[1.0, 0.0, 0.0]], atol=1e-7)
    assert both.between("all").shape == (1, 1, 4, 4)
    with pytest.raises(SettingsError, match="unknown texts 'first'"):
        both.between("first")


def test_rollout_by_hand():
    weights = np.zeros((2, 2, 2, 2), np.float32)
    weights[0, 0], weights[0, 1] = [[0, 1], [0, 1]], [[1, 0], [0, 1]]  # mean [[.5, .5], [0, 1]]
    weights[1, :] = [[1, 0], [1, 0]]
    found = maps(weights, ("a", "b")).rollout()
    first = np.array([[0.75, 0.25], [0.0, 1.0]])
    second = np.array([[1.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(found, second @ first, atol=1e-7)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-6)
