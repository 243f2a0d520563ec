"""How long a decoder speaks, and by whose random numbers; training is in tests/tasks."""

import pytest
import torch

from tests.conftest import tiny_translator
from unmask.model.config import SearchSettings
from unmask.objectives.next_token import DecodingSession, PairTokens
from unmask.text.tokens import Tokenizers


def endless(longest):
    """A translator that never comes to an end by itself."""
    network = tiny_translator({"shared": True, "max_length": longest})
    with torch.no_grad():
        network.heads["decoder"].bias[3] = -1e9  # [SEP]
    return network


def said(network, tokenizer, lengths, settings, numbers=None):
    """The words for texts with these numbers of tokens."""
    numbers = numbers or range(len(lengths))
    pairs = [PairTokens([7] * n, number=i) for n, i in zip(lengths, numbers, strict=True)]
    rows = [[i] for i in range(len(pairs))]
    with torch.inference_mode():
        decoding = DecodingSession(
            network, pairs, rows, Tokenizers(tokenizer, 32, tokenizer), settings
        )
    while not decoding.done:
        decoding.step()
    return [own.words for own in decoding.values()]


@pytest.mark.parametrize(
    ("lengths", "most", "settings", "limits"),
    [
        ([1, 2, 5], 32, {}, [12, 14, 20]),
        ([1, 2, 5], 13, {}, [12, 13, 13]),
        ([1, 2, 5], 13, {"max_length": 4}, [4, 4, 4]),
        ([1, 2, 5], 13, {"max_length": 40}, [13, 13, 13]),
        ([1, 2, 5], 1, {}, [1, 1, 1]),
    ],
)
@pytest.mark.parametrize("how", [{}, {"beam_size": 3}, {"sample": True}])
def test_a_text_is_twice_as_long_as_its_source_and_ten_or_as_asked_or_what_the_decoder_holds(
    tokenizer, lengths, most, settings, limits, how
):
    found = said(endless(most), tokenizer, lengths, SearchSettings(**settings, **how))
    assert [len(words) for words in found] == limits


def test_draws_go_by_the_number_of_a_text(tokenizer):
    network, how = endless(32), SearchSettings(sample=True, max_length=8)
    first, second, third = said(network, tokenizer, [4, 4, 4], how, [0, 1, 7])
    assert first != second, "alike, and drawn apart"
    assert said(network, tokenizer, [4, 4], how, [7, 0]) == [third, first]
