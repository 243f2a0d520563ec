"""Pair order: a yes or no for each pair that has an answer, and nothing for the others."""

import math

import pytest
import torch

from tests.conftest import tiny_config, tiny_network
from tests.objectives.conftest import around, batch_of, letters
from tests.shapes import bert_heads
from unmask.data.corpus.examples import IS_NEXT, NO_PAIR, NOT_NEXT
from unmask.model.shape import PAIRS, PoolerConfig, Shape
from unmask.objectives.pairs import PairOrder, PairSettings

TEXTS = [around([7, 8], [9]), around([10], [11, 12, 13]), around([14, 15]), around([16], [17])]
LABELS = [IS_NEXT, NOT_NEXT, NO_PAIR, IS_NEXT]


@pytest.fixture(scope="module")
def network():
    return tiny_network(bert_heads(pair=True))


@pytest.fixture(scope="module")
def order():
    return PairOrder(PairSettings(), letters(23))


def scores(network, text):
    """The two scores of a text that has a row to itself."""
    batch = batch_of([text])
    hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    return network.pair_scores(hidden[batch.row, batch.start])[0]


def read(order, network, texts, labels):
    batch = order.prepare(batch_of(texts, pair=labels, row_length=16), 0, 0.0)
    hidden = network.encoder(batch.tokens, batch.segments, batch.index, batch.owner)
    return order.read(network, hidden.flatten(0, 1)[order.places(batch)], batch), batch


def cost(network, text, label):
    """By hand: minus the logarithm of the share that the right answer gets."""
    yes, no = (math.exp(value) for value in scores(network, text).tolist())
    return -math.log((yes if label == IS_NEXT else no) / (yes + no))


def test_the_loss_is_the_sum_over_the_pairs_with_an_answer_by_hand(order, network):
    sums, batch = read(order, network, TEXTS, LABELS)
    labelled = [(t, y) for t, y in zip(TEXTS, LABELS, strict=True) if y != NO_PAIR]
    expected = sum(cost(network, text, label) for text, label in labelled)
    assert sums["pair"].item() == pytest.approx(expected, rel=1e-5)
    assert batch.counts == {"pair": 3}


def test_follows_is_not_ignored_though_it_is_zero(order, network):
    sums, batch = read(order, network, TEXTS[:1], [IS_NEXT])
    assert IS_NEXT == 0
    assert batch.counts["pair"] == 1
    assert sums["pair"].item() == pytest.approx(cost(network, TEXTS[0], IS_NEXT), rel=1e-5)
    assert sums["pair"].item() > 0.01


def test_the_two_answers_cost_differently(order, network):
    follows, differs = (
        read(order, network, TEXTS[:1], [label])[0]["pair"] for label in (IS_NEXT, NOT_NEXT)
    )
    gap = (scores(network, TEXTS[0])[0] - scores(network, TEXTS[0])[1]).item()
    assert (differs - follows).item() == pytest.approx(gap, abs=1e-5)


def test_an_example_of_which_nothing_is_said_costs_and_teaches_nothing(order, network):
    network.zero_grad()
    sums, batch = read(order, network, TEXTS, [NO_PAIR] * 4)
    assert batch.counts == {"pair": 0}
    assert sums["pair"].item() == 0.0
    sums["pair"].backward()
    assert not any(p.grad is not None and p.grad.any() for p in network.parameters())


def test_an_example_of_which_nothing_is_said_changes_nothing_for_others(order, network):
    with_it = read(order, network, TEXTS, LABELS)[0]["pair"]
    without = read(order, network, [*TEXTS[:2], TEXTS[3]], [*LABELS[:2], LABELS[3]])[0]["pair"]
    torch.testing.assert_close(with_it, without)


def test_right_answers_are_counted_in_evaluation_only(order, network):
    best = [int(scores(network, text).argmax()) for text in TEXTS]
    assert int(read(order, network, TEXTS, best)[0]["pair_right"]) == 4
    wrong = [1 - answer for answer in best]
    assert int(read(order, network, TEXTS, wrong)[0]["pair_right"]) == 0
    assert int(read(order, network, TEXTS, [NO_PAIR] * 4)[0]["pair_right"]) == 0
    try:
        assert set(read(order, network.train(), TEXTS, LABELS)[0]) == {"pair"}
    finally:
        network.eval()


def test_pairs_of_one_row_are_answered_apart(order, network):
    alone = [read(order, network, [t], [IS_NEXT])[0]["pair"].item() for t in TEXTS]
    sums, batch = read(order, network, TEXTS, [IS_NEXT] * 4)
    assert len(batch.tokens) < 4
    assert sums["pair"].item() == pytest.approx(sum(alone), rel=1e-5)


def test_pooler_and_pair_head_get_gradient(order, network):
    network.zero_grad()
    read(order, network, TEXTS, LABELS)[0]["pair"].backward()
    for module in (network.heads["pooler"], network.heads["pair"], network.encoder.blocks[0]):
        assert all(p.grad is not None and p.grad.any() for p in module.parameters()), module


def test_what_it_asks_for_is_a_pooler_and_a_head(order):
    shape = Shape.of(tiny_config())
    assert order.heads(shape) == {"pooler": PoolerConfig(), "pair": PAIRS}
