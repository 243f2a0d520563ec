"""What a network begins with that is made from another."""

import torch

from tests.conftest import tiny_config
from unmask.model.factory import make_network
from unmask.model.shape import LABELS, PAIR, PAIRS, POOLER, LabelsConfig, PoolerConfig, Shape


def of_labels(*names, seed, start=None):
    """A network with one head of labels alone, one among several tasks, and the pair head."""
    heads = {POOLER: PoolerConfig(), PAIR: PAIRS}
    heads |= {name: LabelsConfig(names=names) for name in (LABELS, "mood")}
    return make_network(Shape.of(tiny_config(), heads), seed, start=start)


def test_heads_of_labels_are_new_and_all_else_is_copied():
    start = of_labels("sad", "glad", seed=1)
    own, fresh = of_labels("good", "bad", seed=2, start=start), of_labels("good", "bad", seed=2)
    for name, tensor in own.state_dict().items():
        new = name.startswith((f"heads.{LABELS}.", "heads.mood."))
        expected = (fresh if new else start).state_dict()[name]
        assert torch.equal(tensor, expected), name


def test_heads_of_more_labels_start_from_heads_of_fewer():
    own = of_labels("good", "fair", "bad", seed=2, start=of_labels("good", "bad", seed=1))
    assert len(own.heads["mood"].dense.weight) == 3
