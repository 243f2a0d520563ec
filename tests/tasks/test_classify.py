"""Labels: read, learned, answered and scored by the same code everywhere."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.conftest import tiny_config
from unmask.data.labelled.columns import Columns, Sample
from unmask.data.read.lines import REFUSE
from unmask.infer.answering import answer_records
from unmask.model.shape import Shape
from unmask.system.errors import DataError
from unmask.tasks.classify import Classify, ClassifySettings, Labels
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import LiveForward, scores_of
from unmask.tasks.results import AnswerCounts
from unmask.text.tokens import Tokenizers

NAMES = ("bad", "good", "very")


def sample(text, *labels, second=None):
    return Sample(text, second, labels or None, "here:1")


def records(count=9):
    texts = ["the cat sat", "a good film", "bad", "not good , not bad", "john smith lives in paris"]
    return [sample(texts[i % 5], NAMES[i % 3]) for i in range(count)]


@pytest.fixture
def task():
    return Classify(ClassifySettings(), NAMES)


@pytest.fixture
def tokens(words):
    return Tokenizers(words, 32)


def windows_of(task, some, tokenizer, limit=32):
    return [
        window for _, found in task.windows(some, Tokenizers(tokenizer, limit)) for window in found
    ]


def test_the_loss_is_the_cross_entropy_of_each_text_by_itself(task, network_for, words, tokens):
    network = network_for(task)
    windows = windows_of(task, records(), words)
    batch = task.batch(windows, tokens)
    alone = [task.batch([window], tokens) for window in windows]
    expected = [
        F.cross_entropy(scores_of(network, one), torch.tensor(window.truth))
        for one, window in zip(alone, windows, strict=True)
    ]
    loss = task.loss(scores_of(network, batch), batch)
    torch.testing.assert_close(loss, torch.stack(expected).sum())
    assert batch.counts == {"classify": 9}


def test_answers_come_in_order_with_their_probabilities(task, network_for, words, tokens):
    network = network_for(task)
    found = list(answer_records(LiveForward(network), tokens, task, records()))
    assert [record.text for record, _ in found] == [record.text for record in records()]
    for record, answer in found:
        (window,) = windows_of(task, [record], words)
        scores = scores_of(network, task.batch([window], tokens))[0]
        shares = scores.softmax(-1)
        assert answer.label == NAMES[int(scores.argmax())]
        assert answer.probabilities[answer.label] == pytest.approx(float(shares.max()), abs=1e-5)
        assert sum(answer.probabilities.values()) == pytest.approx(1.0, abs=1e-5)


def test_the_loss_of_answers_is_the_loss_of_training(task, network_for, words, tokens):
    network = network_for(task)
    tally = AnswerCounts()
    list(
        answer_records(
            LiveForward(network),
            tokens,
            task,
            records(),
            known=Criterion(network, task.objective),
            tally=tally,
        )
    )
    batch = task.batch(windows_of(task, records(), words), tokens)
    expected = float(task.loss(scores_of(network, batch), batch))
    assert sum(tally.losses) == pytest.approx(expected, rel=1e-5)
    assert tally.counts == [9]


def test_several_labels_are_those_above_the_threshold(tokens):
    task = Classify(ClassifySettings(multi_label=True, threshold=0.4), NAMES)
    answer = task.decode(sample("x"), [], [np.array([[2.0, -0.3, -2.0]], np.float32)], tokens)
    assert answer.labels == ("bad", "good")  # sigmoid 0.88, 0.43, 0.12
    nothing = task.decode(sample("x"), [], [np.array([[-2.0, -3.0, -2.0]], np.float32)], tokens)
    assert nothing.labels == ()


def test_the_loss_of_several_labels_by_hand(words, tokens):
    task = Classify(ClassifySettings(multi_label=True), NAMES)
    some = [sample("good film", "good", "very"), Sample("bad", None, (), "here:2")]
    batch = task.batch(windows_of(task, some, words), tokens)
    scores = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, -0.5]])
    truth = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    expected = F.binary_cross_entropy_with_logits(scores, truth, reduction="sum") / 3
    torch.testing.assert_close(task.loss(scores, batch), expected)


def test_rare_labels_count_as_much_as_frequent_ones_when_balanced():
    """Of eight examples six are bad: 8 / (2 * 6) and 8 / (2 * 2)."""
    some = [sample("x", "bad")] * 6 + [sample("y", "good")] * 2
    task = Classify.learn(ClassifySettings(balance="labels"), some)
    torch.testing.assert_close(task.weights, torch.tensor([2 / 3, 2.0]))


def test_labels_are_learned_in_their_order():
    learned = Classify.learn(ClassifySettings(), [sample("x", n) for n in ("10", "9", "-1")])
    assert learned.names == ("-1", "9", "10")
    assert Classify.learn(ClassifySettings(), records()).names == NAMES


def test_scores_by_hand(task):
    said = ["bad", "good", "good", "bad"]
    some = [sample("x", name) for name in ("bad", "good", "bad", "bad")]
    found = task.score(some, [Labels((name,), {name: 0.9}) for name in said])
    assert found["accuracy"] == 0.75
    assert found["macro_f1"] == pytest.approx((4 / 5 + 2 / 3 + 0.0) / 3)


def test_the_surest_mistakes_come_first(task):
    some = [sample("one", "bad"), sample("two", "bad"), sample("three", "good")]
    said = [Labels(("good",), {"good": p}) for p in (0.6, 0.9, 0.99)]
    detail = task.detail(some, said)
    assert [(m.text, m.truth, m.prediction) for m in detail.mistakes] == [
        ("two", "bad", "good"),
        ("one", "bad", "good"),
    ]
    assert detail.confusion == {"names": list(NAMES), "counts": [[0, 2, 0], [0, 1, 0], [0, 0, 0]]}


def test_a_text_too_long_loses_its_end_and_says_so(task, words):
    (window,) = windows_of(task, [sample("cat " * 50, "bad")], words, limit=8)
    assert len(window.ids) == 8
    assert window.cut == 44


def test_a_pair_is_two_segments(task, words):
    (window,) = windows_of(task, [sample("a cat", "bad", second="a dog")], words)
    assert list(window.segments) == [0, 0, 0, 0, 1, 1, 1]


def test_a_label_seen_only_in_held_out_data_is_named(task):
    with pytest.raises(DataError, match=r"here:1: unknown label 'god'; did you mean 'good'\?.*not"):
        task.check([sample("x", "god")])


def test_one_label_alone_cannot_be_learned():
    with pytest.raises(
        DataError, match="only the label 'bad' in 3 examples; expected at least two"
    ):
        Classify.learn(ClassifySettings(), [sample("x", "bad")] * 3)


def test_numbers_with_a_point_are_for_regress():
    some = [sample("x", f"{i / 7:.3f}") for i in range(10)]
    with pytest.raises(DataError, match="are 10 different numbers.*use regress"):
        Classify.learn(ClassifySettings(), some)


@pytest.mark.parametrize(
    ("text", "how", "labels"),
    [
        ("text,label\ncat,good\n", {}, [("good",)]),
        ('text,label\ncat,"good, bad"\n', {"multi_label": True}, [("good", "bad")]),
        ("text,label\ncat,\n", {"multi_label": True}, [()]),
    ],
)
def test_labels_are_read_from_a_table(tmp_path, text, how, labels):
    path = tmp_path / "a.csv"
    path.write_text(text)
    columns = Columns("text", None, "label", True)
    read = Classify.read([path], columns, REFUSE, ClassifySettings(**how))
    assert [record.label for record in read] == labels


def test_a_label_that_is_given_twice_is_named():
    how = ClassifySettings(multi_label=True)
    with pytest.raises(DataError, match="here:1: the label 'good' is given twice"):
        Classify.parse_label(how, Sample("x", None, ["bad", "good", "good"], "here:1"))


def test_a_model_that_was_saved_is_the_same_task_again(task, tokens):
    def shape_of(one):
        config = tiny_config()
        return Shape.of(config, one.heads(config, tokens, {}))

    again = Classify.restore(shape_of(task), ClassifySettings())
    assert again.names == task.names
    several = Classify(ClassifySettings(multi_label=True), NAMES)
    assert Classify.restore(shape_of(several), ClassifySettings()).config.multi_label
