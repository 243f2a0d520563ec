"""Masks, by hand: True means "may look"."""

import torch

from tests.conftest import tiny_config
from unmask.model import masks


def rows(mask):
    return mask[0, 0].int().tolist()


def test_texts_of_one_row_do_not_see_each_other():
    owner = torch.tensor([[0, 0, 1, -1]])
    assert rows(masks.same_text(owner)) == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
    ]


def test_rows_of_one_text_need_no_mask():
    assert masks.same_text(torch.tensor([[0, 0, 0], [0, 0, 0]])) is None
    assert masks.same_text(torch.tensor([[0, 0, 0], [0, 0, -1]])) is not None


def test_a_text_sees_its_counterpart_in_the_other_rows_and_padding_sees_everything():
    owner, memory = torch.tensor([[0, 1, 1, -1]]), torch.tensor([[0, 0, 1, -1, -1]])
    assert rows(masks.other_text(owner, memory)) == [
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [1, 1, 1, 1, 1],
    ]


def test_causal_sees_itself_and_the_past():
    assert rows(masks.causal(torch.tensor([[0, 1, 2]]))) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_a_window_reaches_to_both_sides():
    assert rows(masks.window(torch.tensor([[0, 1, 2, 3]]), 1)) == [
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [0, 1, 1, 1],
        [0, 0, 1, 1],
    ]


def test_masks_join_to_what_all_of_them_allow():
    owner, index = torch.tensor([[0, 0, 0, 1, 1]]), torch.tensor([[0, 1, 2, 0, 1]])
    allowed = masks.of(tiny_config(causal=True, window=1), owner, index)
    assert rows(allowed) == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]


def test_barred_places_are_minus_infinity_in_the_scores():
    allowed = torch.tensor([[[[True, False]]]])
    added = masks.as_scores(allowed, torch.tensor([[[[2.0, 3.0]]]]), torch.float32)
    assert added.tolist() == [[[[2.0, float("-inf")]]]]
    assert masks.as_scores(None, None, torch.float32) is None
