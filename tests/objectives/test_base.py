"""One pass for several readers: each gets the states where it reads, and no others are finished."""

import pytest
import torch

from tests.conftest import tiny_network
from tests.objectives.conftest import around, batch_of, letters
from unmask.data.examples import DIFFERS, FOLLOWS
from unmask.model.config import HeadsConfig
from unmask.objectives.base import OnePass
from unmask.objectives.mlm import MaskedLM, MaskSettings
from unmask.objectives.pairs import PairOrder, PairSettings

TEXTS = [around([7, 8], [9]), around([10], [11, 12, 13]), around([14, 15], [16, 17, 18])]


@pytest.fixture(scope="module")
def readers():
    words = letters(23)
    return [MaskedLM(MaskSettings(rate=0.5), words), PairOrder(PairSettings(), words)]


@pytest.fixture(params=["post", "pre"])
def network(request):
    heads = HeadsConfig(tokens=True, pair=True)
    return tiny_network(heads, norm=request.param, dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def batch(readers):
    plain = batch_of(TEXTS, pair=[FOLLOWS, DIFFERS, FOLLOWS], row_length=16)
    assert len(plain.tokens) < len(TEXTS), "rows hold several texts"
    return OnePass(readers).prepare(plain, 3)


@pytest.mark.parametrize("training", [False, True])
def test_the_sums_are_those_of_the_states_of_all_places(network, readers, batch, training):
    network.train(training)
    hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    expected = {}
    for reader in readers:
        expected |= reader.read(network, hidden.flatten(0, 1)[reader.places(batch)], batch)
    found = OnePass(readers)(network, batch)
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_so_are_the_gradients(network, readers, batch):
    network.train()
    hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    whole = sum(
        value
        for reader in readers
        for value in reader.read(
            network, hidden.flatten(0, 1)[reader.places(batch)], batch
        ).values()
    )
    weights = list(network.parameters())
    expected = torch.autograd.grad(whole, weights)
    found = torch.autograd.grad(sum(OnePass(readers)(network, batch).values()), weights)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_main_question_comes_first_and_the_standard_form_is_at_fifteen_percent(readers):
    both = OnePass(readers)
    assert both.asks == {"mlm": "hidden tokens", "pair": "pairs"}
    assert both.standard().readers[0].how == MaskSettings()
    assert both.standard().readers[1] is readers[1]
    assert [reader.choices for reader in readers] == [len(letters(23)), 2]
