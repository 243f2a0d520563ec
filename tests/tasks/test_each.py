"""The loss of each record: summed, it is the loss of training, for every task."""

import math
from dataclasses import replace

import pytest
import torch

from unmask.data.labelled.columns import Sample
from unmask.data.labelled.conll import Entity, Sentence
from unmask.data.labelled.parallel import Pair
from unmask.data.labelled.squad import Question, Span
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.system.errors import SettingsError
from unmask.tasks.classify import Classify, ClassifySettings
from unmask.tasks.labels import LabelTask, LabelWindow, SupervisedObjective, heads_of
from unmask.tasks.ner import Ner, NerSettings
from unmask.tasks.qa import Qa, QaSettings
from unmask.tasks.regress import Regress, RegressSettings
from unmask.tasks.translate import Translate, TranslateSettings
from unmask.text.tokens import Tokenizers

NAMES = ("bad", "good", "very")
TEXTS = ["the cat sat on the mat", "a dog", "good film .", "unaffable", "bad very good films"]
CONTEXT = "it began in october 1973 . the cat sat on the mat in paris ."


def texts(*labels):
    return [Sample(t, None, label, "here") for t, label in zip(TEXTS, labels, strict=True)]


def sentence(text, *entities):
    words, at = [], 0
    for word in text.split():
        words.append((at, at + len(word)))
        at += len(word) + 1
    named = tuple(Entity(words[a][0], words[b - 1][1], label) for label, a, b in entities)
    return Sentence(text, tuple(words), named, "here")


def question(*found):
    spans = tuple(Span(one, CONTEXT.index(one)) for one in found)
    return Question("1", "when", CONTEXT, spans, "here")


ONE = texts(("bad",), ("good",), ("very",), ("bad",), ("good",))
SEVERAL = texts(("bad", "good"), ("good",), (), ("very", "bad"), ("good",))
CASES = {
    "classify": (Classify(ClassifySettings(), NAMES), ONE),
    "weighted and smoothed": (
        Classify(ClassifySettings(label_smoothing=0.1), NAMES, [0.5, 1.0, 3.0]),
        ONE,
    ),
    "several labels": (
        Classify(ClassifySettings(multi_label=True, label_smoothing=0.1), NAMES, [0.5, 1.0, 3.0]),
        SEVERAL,
    ),
    "regress": (Regress(RegressSettings()), texts(1.0, -2.0, 0.5, 3.0, 0.0)),
    "ner": (
        Ner(NerSettings(), ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")),
        [
            sentence("john smith lives in paris .", ("PER", 0, 2), ("LOC", 4, 5)),
            sentence("unaffable"),
            sentence("a cat and john", ("PER", 3, 4)),
        ],
    ),
    "qa": (Qa(QaSettings(stride=4)), [question("october 1973"), question(), question("paris")]),
}


def batches(task, records, words, limit=24):
    """The windows of each record, and the batch of all of them."""
    tokens = Tokenizers(words, limit)
    groups = [found for _, found in task.windows(records, tokens)]
    return groups, task.batch([window for group in groups for window in group], tokens), tokens


def alone(task, network, groups, tokens):
    """The loss of each group of windows in a batch of its own."""
    one = [task.batch(group, tokens) for group in groups]
    return torch.stack([task.objective(network, batch, {})[task.name] for batch in one])


@pytest.mark.parametrize("case", CASES)
def test_the_losses_of_windows_and_of_records_add_up_to_the_loss(case, network_for, words):
    task, records = CASES[case]
    network = network_for(task)
    groups, batch, tokens = batches(task, records, words)
    windows = [[window] for group in groups for window in group]
    fused = task.objective(network, batch, {})[task.name]
    each = task.objective(network, batch, {}, each=True)[task.name]
    assert each.shape == (len(windows),)
    torch.testing.assert_close(each.sum(), fused)
    torch.testing.assert_close(each, alone(task, network, windows, tokens), atol=1e-4, rtol=1e-4)
    record = [number for number, group in enumerate(groups) for _ in group]
    grouped = replace(batch, record=torch.tensor(record))
    each = task.objective(network, grouped, {}, each=True)[task.name]
    assert each.shape == (len(records),)
    torch.testing.assert_close(each, alone(task, network, groups, tokens), atol=1e-4, rtol=1e-4)


def test_a_record_of_a_translation_has_the_loss_of_its_words(network_for, words):
    task = Translate(TranslateSettings())
    pairs = [Pair(a, b, "here") for a, b in zip(TEXTS, reversed(TEXTS), strict=True)]
    tokens = Tokenizers(words, 24, words)
    torch.manual_seed(0)
    shape = network_for(CASES["regress"][0]).shape
    network = Network(Shape.of(shape.main, task.heads(shape.main, tokens, {}))).eval()
    windows = [w for _, found in task.windows(pairs, tokens) for w in found]
    batch = task.batch(windows, tokens)
    each = task.objective(network, batch, {}, each=True)[task.name]
    fused = task.objective(network, batch, {})[task.name]
    assert each.shape == (len(pairs),)
    torch.testing.assert_close(each.sum(), fused)


@pytest.mark.parametrize("name", ["number", "tags"])
def test_each_of_several_tasks_has_losses_of_single_records(name, network_for, words):
    tasks = {"number": CASES["classify"][0], "tags": CASES["ner"][0]}
    records = {"number": CASES["classify"][1], "tags": CASES["ner"][1]}[name]
    network = Network(Shape.of(network_for(tasks["number"]).shape.main, heads_of(tasks)))
    objective = SupervisedObjective(tasks, {own: own for own in tasks})
    _, batch, _ = batches(tasks[name], records, words)
    batch = replace(batch, counts={name: len(records)})
    network.eval()
    each = objective(network, batch, {}, each=True)
    assert list(each) == [name]
    assert each[name].shape == (len(records),)
    torch.testing.assert_close(each[name].sum(), objective(network, batch, {})[name])


def test_the_losses_of_single_windows_by_hand(words):
    regress = Regress(RegressSettings())
    windows = [LabelWindow([2, 3], [0, 0], [0], truth) for truth in (1.0, -2.0)]
    batch = regress.batch(windows, Tokenizers(words, 16))
    assert regress.losses(torch.tensor([[1.5], [1.0]]), batch).tolist() == [0.25, 9.0]
    classify = Classify(ClassifySettings(), ("a", "b"))
    windows = [LabelWindow([2, 3], [0, 0], [0], truth) for truth in ([0], [1])]
    batch = classify.batch(windows, Tokenizers(words, 16))
    found = classify.losses(torch.tensor([[0.0, 0.0], [math.log(3), 0.0]]), batch)
    assert found.tolist() == pytest.approx([math.log(2), math.log(4)])


def test_a_task_without_losses_of_records_is_refused_and_named(network_for, words):
    class Plain(Regress):
        losses = LabelTask.losses  # as in a task that only has a summed loss

    task = Plain(RegressSettings())
    _, batch, _ = batches(task, CASES["regress"][1], words)
    with pytest.raises(
        SettingsError, match="regress: the loss of a single record is not.*'losses' to"
    ):
        task.objective(network_for(task), batch, {}, each=True)
