"""Pooling by hand, and the same vectors from packed and from padded rows."""

import torch

from unmask.data.batch import collate
from unmask.infer.pooling import first_of_texts, mean_of_rows, mean_of_texts
from unmask.text.tokenizer import Encoded

STATES = torch.tensor([[[1.0, 0.0], [3.0, 2.0], [5.0, 4.0], [9.0, 9.0]]])  # [1, 4, 2]


def batch_of(*lengths: int):
    """Texts of these lengths in one row."""
    texts = [Encoded([1] * n, [0] * n, [], []) for n in lengths]
    return collate(texts, [list(range(len(texts)))], pad_id=0)


def test_each_text_of_a_row_has_its_own_mean_by_hand():
    batch = batch_of(2, 1)
    assert mean_of_texts(STATES, batch).tolist() == [[2.0, 1.0], [5.0, 4.0]]
    assert first_of_texts(STATES, batch).tolist() == [[1.0, 0.0], [5.0, 4.0]]


def test_padding_is_no_part_of_the_mean_of_a_row():
    real = torch.tensor([[1, 1, 1, 0]])
    assert mean_of_rows(STATES, real).tolist() == [[3.0, 2.0]]


def test_packed_and_padded_rows_have_the_same_means():
    torch.manual_seed(0)
    states, lengths = torch.randn(3, 5, 4), [5, 2, 3]
    packed = torch.cat([states[i, :n] for i, n in enumerate(lengths)])[None]
    real = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
    found = mean_of_texts(packed, batch_of(*lengths))
    torch.testing.assert_close(found, mean_of_rows(states, real.long()))
