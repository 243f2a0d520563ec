"""A number for a text: the least square, the number as it is, and refusals of what is no number."""

import pytest
import torch

from unmask.data.labelled.columns import Columns, Sample
from unmask.data.read.lines import REFUSE
from unmask.model.shape import LabelsConfig, Shape
from unmask.objectives.base import Objective
from unmask.system.errors import DataError
from unmask.tasks.labels import TRUTH, LabelWindow
from unmask.tasks.regress import Number, Regress, RegressSettings
from unmask.text.tokens import Tokenizers

TASK = Regress(RegressSettings())


@pytest.fixture
def tokens(words) -> Tokenizers:
    return Tokenizers(words, 16)


def told(label: object) -> Sample:
    return Sample("a text", None, label, "here:3")


def test_the_loss_is_the_square_of_the_difference_by_hand(tokens):
    windows = [LabelWindow([2, 3], [0, 0], [0], truth) for truth in (1.0, -2.0)]
    batch = TASK.batch(windows, tokens)
    assert batch.counts == {TASK.name: 2}
    assert batch.labels[TRUTH].tolist() == [1.0, -2.0]
    assert float(TASK.loss(torch.tensor([[1.5], [1.0]]), batch)) == 0.25 + 9.0


def test_the_answer_is_the_number_as_it_is(tokens):
    values = [torch.tensor([[0.5]]).numpy()]
    answer = TASK.decode(told(None), [], values, tokens)
    assert answer == Number(0.5)
    assert TASK.view(told(None), answer).value == 0.5


@pytest.mark.parametrize(("label", "number"), [("1.5", 1.5), (3, 3.0), (-0.25, -0.25)])
def test_numbers_are_understood_as_texts_and_as_numbers(label, number):
    assert TASK.parse_label(TASK.config, told(label)) == number


@pytest.mark.parametrize("label", ["good", True, None, [1.0], "nan", "inf"])
def test_what_is_no_number_is_refused_with_its_place(label):
    with pytest.raises(DataError, match="here:3: the score is"):
        TASK.parse_label(TASK.config, told(label))


def test_numbers_that_are_all_alike_cannot_be_learned():
    with pytest.raises(DataError, match="the score is 2 in all 3 examples"):
        Regress.learn(RegressSettings(), [told(2.0)] * 3)
    assert isinstance(Regress.learn(RegressSettings(), [told(2.0), told(3.0)]), Regress)


def test_a_table_of_fractions_is_one_of_numbers_and_a_table_of_names_is_not(tmp_path):
    for name, labels in (("numbers.tsv", ("0.5", "1.25")), ("names.tsv", ("good", "bad"))):
        rows = "".join(f"a text\t{label}\n" for label in labels * 8)
        (tmp_path / name).write_text(f"text\tlabel\n{rows}")
    assert Regress.recognises(tmp_path / "numbers.tsv", ".tsv", [])
    assert not Regress.recognises(tmp_path / "names.tsv", ".tsv", [])
    read = list(Regress.read([tmp_path / "numbers.tsv"], columns(), REFUSE, TASK.config))
    assert [record.label for record in read] == [0.5, 1.25] * 8


def columns() -> Columns:
    return Columns("text", None, "label", header=True)


def test_it_is_known_again_by_a_label_that_is_a_number(network_for):
    assert isinstance(Regress.restore(network_for(TASK).shape, TASK.config), Regress)
    names = LabelsConfig(on="text", names=("bad", "good"))
    config = network_for(TASK).config
    shape = Shape.of(config, {"pooler": network_for(TASK).shape.heads["pooler"], "labels": names})
    assert Regress.restore(shape, TASK.config) is None


def test_scores_are_correlations_and_the_mean_square_by_hand():
    records = [told(number) for number in (0.0, 1.0, 2.0, 3.0)]
    scores = TASK.score(records, [Number(number) for number in (0.0, 2.0, 4.0, 6.0)])
    assert scores["pearson"] == pytest.approx(1.0)
    assert scores["spearman"] == pytest.approx(1.0)
    assert scores["mean_square"] == pytest.approx((0 + 1 + 4 + 9) / 4)


def test_the_variance_that_is_kept_says_how_alike_two_models_are():
    truth = [Number(number) for number in (1.0, 2.0, 3.0)]
    assert TASK.agreement(truth, truth).share == 1.0
    shifted = TASK.agreement(truth, [Number(own.score + 1.0) for own in truth])
    assert shifted.share == pytest.approx(1.0 - 1.0 / (2 / 3))


def test_its_objective_has_the_task_s_loss(network_for, tokens):
    assert isinstance(TASK.objective, Objective)
    ((_, (window,)),) = TASK.windows([told(2.0)], tokens)
    batch = TASK.batch([window], tokens)
    network = network_for(TASK)
    loss = TASK.objective(network, batch, {})[TASK.name]
    score = network.label_scores(network.encode(batch, places=torch.tensor([0])))
    torch.testing.assert_close(loss, (score[0, 0] - 2.0) ** 2)
