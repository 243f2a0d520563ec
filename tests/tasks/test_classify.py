"""Classification: one label for a text, the same code for training, scoring and answering."""

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import tiny_network
from unmask.data.labelled import Labelled, LabelledStream, label_batch
from unmask.tasks.classify import Classify

NAMES = ("red", "green", "blue")


@pytest.fixture
def task():
    return Classify(NAMES)


@pytest.fixture
def network(task):
    return tiny_network(task.heads)


def some(count):
    draw = torch.Generator().manual_seed(3)
    for i in range(count):
        length = 3 + i % 5
        ids = torch.randint(5, 23, (length,), generator=draw).tolist()
        yield Labelled([2, *ids, 3], [0] * (length + 2), i % 3)


def test_the_loss_is_the_cross_entropy_of_each_text_by_itself(task, network):
    examples = list(some(7))
    together = task.prepare(label_batch([examples[:4], examples[4:]], pad_id=0), 0)
    apart = [task.prepare(label_batch([[e]], pad_id=0), 0) for e in examples]
    alone = [F.cross_entropy(task.scores(network, batch), batch.labels["label"]) for batch in apart]
    torch.testing.assert_close(task(network, together)["label"], torch.stack(alone).sum())
    assert together.counts == {"label": 7}


def test_what_is_answered_is_what_is_scored(task, network):
    batch = task.prepare(label_batch([list(some(9))], pad_id=0), 0)
    right = sum(
        answer.name == NAMES[label]
        for answer, label in zip(
            task.answer(network, batch), batch.labels["label"].tolist(), strict=True
        )
    )
    assert int(task(network, batch)["label_right"]) == right


def test_an_answer_has_a_probability(task, network):
    batch = label_batch([list(some(5))], pad_id=0)
    for answer in task.answer(network, batch):
        assert 1 / 3 <= answer.probability <= 1.0


def test_every_labelled_example_is_in_each_epoch_once_and_in_another_order(task):
    examples = list(some(40))
    stream = LabelledStream(examples, seed=1, length=16, pad_id=0)
    from unmask.data.stream import Cursor

    seen, cursor = [], Cursor()
    while cursor.epoch < 2:
        (row,), cursor = stream.take(cursor, 1)
        seen += [(cursor, id(example)) for example in row]
    orders = [[e for _, e in seen[:40]], [e for _, e in seen[40:]]]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(map(id, examples))
    assert orders[0] != orders[1]


def test_evaluation_reads_every_example_once(task):
    examples = list(some(23))
    batches = LabelledStream(examples, seed=0, length=16, pad_id=0).in_order(4)
    labels = [label for batch in batches for label in batch.labels["label"].tolist()]
    assert sorted(labels) == sorted(example.label for example in examples)
