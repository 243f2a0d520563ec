"""Batches: packed rows as tensors, checked by hand and by reading every text back."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.batch import Batch, collate
from unmask.data.packing import pack


class Text(NamedTuple):
    ids: list[int]
    segments: list[int]


PAD = 9
PAIR = Text([1, 5, 2, 6, 2], [0, 0, 0, 1, 1])
SHORT = Text([1, 7, 2], [0, 0, 0])
LONG = Text([1, 3, 3, 3, 3, 2], [0] * 6)

texts = st.lists(
    st.lists(st.tuples(st.integers(10, 99), st.integers(0, 1)), min_size=1, max_size=12).map(
        lambda pairs: Text([id for id, _ in pairs], [segment for _, segment in pairs])
    ),
    max_size=12,
)


@pytest.fixture
def batch() -> Batch:
    """Three texts: the pair and the short one share the second row."""
    return collate([PAIR, SHORT, LONG], [[2], [0, 1]], pad_id=PAD)


def laid_out(of: list[Text]) -> Batch:
    return collate(of, pack([len(text.ids) for text in of], 20), pad_id=PAD)


def test_tokens_by_hand(batch):
    assert batch.tokens.tolist() == [[1, 3, 3, 3, 3, 2, PAD, PAD], [1, 5, 2, 6, 2, 1, 7, 2]]


def test_segments_by_hand(batch):
    assert batch.segments.tolist() == [[0] * 8, [0, 0, 0, 1, 1, 0, 0, 0]]


def test_index_starts_anew_with_each_text_by_hand(batch):
    assert batch.index.tolist() == [[0, 1, 2, 3, 4, 5, 0, 0], [0, 1, 2, 3, 4, 0, 1, 2]]


def test_owner_numbers_the_texts_of_a_row_and_padding_is_minus_one_by_hand(batch):
    assert batch.owner.tolist() == [[0] * 6 + [-1] * 2, [0] * 5 + [1] * 3]


def test_row_start_and_length_are_in_the_order_of_the_texts_by_hand(batch):
    assert batch.row.tolist() == [1, 1, 0]
    assert batch.start.tolist() == [0, 5, 0]
    assert batch.length.tolist() == [5, 3, 6]


def test_a_row_is_no_longer_than_the_fullest_needs():
    assert collate([SHORT, PAIR], [[0], [1]], pad_id=PAD).tokens.shape == (2, 5)


def test_no_text_gives_an_empty_batch():
    batch = collate([], [], pad_id=PAD)
    assert batch.tokens.shape == (0, 0)
    assert batch.row.shape == (0,)


def test_every_tensor_holds_whole_numbers(batch):
    assert {tensor.dtype for tensor in batch.tensors().values()} == {torch.int64}


def test_another_device_changes_no_number(batch):
    moved = batch.to(torch.device("cpu"))
    assert all(torch.equal(value, getattr(moved, name)) for name, value in batch.tensors().items())


@settings(deadline=None)
@given(texts)
def test_every_text_can_be_read_back_from_its_place(of):
    batch = laid_out(of)
    places = zip(of, batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True)
    for text, row, start, length in places:
        stretch = (row, slice(start, start + length))
        assert batch.tokens[stretch].tolist() == text.ids
        assert batch.segments[stretch].tolist() == text.segments
        assert batch.index[stretch].tolist() == list(range(length))
        assert len(set(batch.owner[stretch].tolist())) == 1


@settings(deadline=None)
@given(texts)
def test_what_no_text_owns_is_padding_and_nothing_else_is(of):
    batch = laid_out(of)
    padding = batch.owner == -1
    assert (~padding).sum() == sum(len(text.ids) for text in of)
    assert (batch.tokens[padding] == PAD).all()
    assert not batch.segments[padding].any()


@settings(deadline=None)
@given(texts)
def test_the_texts_of_a_row_are_owned_from_zero_up_without_a_gap(of):
    for row in laid_out(of).owner:
        owners = sorted(set(row.tolist()) - {-1})
        assert owners == list(range(len(owners)))


@settings(deadline=None)
@given(texts)
def test_the_same_texts_give_the_same_batch(of):
    one, other = laid_out(of), laid_out(of)
    assert all(torch.equal(value, getattr(other, name)) for name, value in one.tensors().items())
