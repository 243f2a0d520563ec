"""Packed rows and rows of single texts: one way and back, nothing is lost or mixed up."""

import pytest
import torch

from unmask.data.batch import collate
from unmask.data.packing import pack
from unmask.model.decoding.unpacking import selected_texts, texts_of
from unmask.text.tokenizer import Encoded

OWNER = torch.tensor([[0, 0, 0, 1, 1, -1], [0, 0, 1, 2, 2, 2]])
INDEX = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 0, 0, 1, 2]])
TOKENS = torch.tensor([[10, 11, 12, 20, 21, 99], [30, 31, 40, 50, 51, 52]])
APART = [[10, 11, 12], [20, 21, 0], [30, 31, 0], [40, 0, 0], [50, 51, 52]]


def random_texts(lengths, row_length):
    examples = [Encoded([7] * n, [0] * n, [(0, 0)] * n, [False] * n) for n in lengths]
    batch = collate(examples, pack(lengths, row_length), pad_id=0)
    return texts_of(batch.owner, batch.index), batch


def test_texts_are_numbered_row_by_row_and_from_left_to_right():
    texts = texts_of(OWNER, INDEX)
    assert texts.length.tolist() == [3, 2, 2, 1, 3]
    assert texts.apart(TOKENS).tolist() == APART


def test_a_text_is_followed_by_zeros_and_says_so():
    assert texts_of(OWNER, INDEX).real().int().tolist() == [
        [1, 1, 1],
        [1, 1, 0],
        [1, 1, 0],
        [1, 0, 0],
        [1, 1, 1],
    ]


def test_together_lays_texts_where_they_were_and_zeros_between():
    back = texts_of(OWNER, INDEX).together(torch.tensor(APART) + 1)
    assert back.tolist() == [[11, 12, 13, 21, 22, 0], [31, 32, 41, 51, 52, 53]]


@pytest.mark.parametrize("row_length", [9, 16, 40])
def test_apart_and_together_undo_each_other(row_length):
    texts, batch = random_texts([7, 3, 9, 1, 5, 5, 2], row_length)
    x = torch.randn(*batch.tokens.shape, 2, 3)
    real = batch.owner >= 0
    back = texts.together(texts.apart(x))
    assert torch.equal(back[real], x[real])
    assert back[~real].eq(0).all()
    y = torch.randn(7, 9, 2, 3)
    inside = texts.real()
    there = texts.apart(texts.together(y))
    assert torch.equal(there[inside], y[inside])
    assert there[~inside].eq(0).all()


def test_truths_are_taken_apart_as_numbers_are():
    assert texts_of(OWNER, INDEX).apart(TOKENS % 2 == 1).tolist() == [
        [False, True, False],
        [False, True, False],
        [False, True, False],
        [False, False, False],
        [False, True, False],
    ]


def test_gradients_go_both_ways_and_not_through_padding():
    texts = texts_of(OWNER, INDEX)
    x = torch.ones(2, 6, requires_grad=True)
    (texts.together(2 * texts.apart(x)) * TOKENS).sum().backward()
    assert x.grad.tolist() == (2 * TOKENS).masked_fill(OWNER < 0, 0).tolist()


def test_rows_in_groups_have_the_texts_of_their_groups():
    assert selected_texts(torch.tensor([1, 0, 2, 2]), 2, 2, 2) is None, (
        "both texts stay where they are"
    )
    assert selected_texts(torch.tensor([1, 0, 2, 2]), 2, 2, 3).tolist() == [0, 1], (
        "the third has left"
    )
    assert selected_texts(torch.tensor([4, 5, 0, 0, 5, 5]), 2, 2, 3).tolist() == [2, 0, 2]
    several = torch.tensor([0, 0, 0, 1, 1, 1])
    assert selected_texts(several, 1, 3, 2) is None, "each row three times: their texts stay"
    with pytest.raises(AssertionError, match="different texts"):
        selected_texts(torch.tensor([1, 2]), 2, 2, 2)
