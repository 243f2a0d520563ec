"""The task of a model: told by its name in the folder, or by its heads."""

import pytest

from tests.conftest import tiny_config
from tests.shapes import bert_heads
from unmask.model.shape import DecoderConfig, LabelsConfig, Shape
from unmask.system import plugins
from unmask.system.errors import SettingsError
from unmask.tasks.classify import Classify
from unmask.tasks.ner import Ner
from unmask.tasks.qa import Qa
from unmask.tasks.regress import Regress
from unmask.tasks.restore import task_of
from unmask.tasks.translate import Translate

NAMES = ("no", "yes")
SHAPES = {
    "classify": (bert_heads(labels="text", label_names=NAMES), Classify),
    "regress": (bert_heads(labels="text", label_names=("x",), label_answer="number"), Regress),
    "qa": (bert_heads(pooler=False, labels="span", label_names=("start", "end")), Qa),
    "ner": (bert_heads(pooler=False, labels="token", label_names=("O", "B-X", "I-X")), Ner),
    "translate": (bert_heads(decoder=DecoderConfig(vocab_size=9, layers=1)), Translate),
}


def shape_of(heads):
    return Shape.of(tiny_config(), heads)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("named", [True, False])
def test_each_built_in_task_is_known_by_its_heads_and_by_its_name(name, named):
    heads, kind = SHAPES[name]
    table = {"name": name, "length": 32} if named else None
    assert type(task_of(shape_of(heads), table, "here")) is kind


def test_the_settings_of_a_model_are_those_of_its_task():
    heads, _ = SHAPES["qa"]
    table = {"name": "qa", "length": 32, "stride": 17, "unanswerable": True}
    task = task_of(shape_of(heads), table, "here")
    assert (task.config.stride, task.config.unanswerable) == (17, True)
    assert table["name"] == "qa", "the table stays as it is"
    assert task_of(shape_of(heads), None, "here").config.stride == 128


def test_a_setting_that_the_task_does_not_have_is_named():
    with pytest.raises(SettingsError, match=r"here \[task\]: unknown key 'strid'"):
        task_of(shape_of(SHAPES["qa"][0]), {"name": "qa", "strid": 17}, "here")


def test_a_name_that_the_heads_do_not_fit_gives_way_to_them():
    assert type(task_of(shape_of(SHAPES["ner"][0]), {"name": "qa"}, "here")) is Ner


def test_a_task_of_somebodys_own_is_found_where_its_plugin_is_given_and_else_named(monkeypatch):
    class Mine(Qa):
        name = "mine"

    monkeypatch.setattr(plugins, "_registered", {"task": {}})
    heads, table = SHAPES["qa"][0], {"name": "mine", "stride": 9}
    with pytest.raises(SettingsError) as error:
        task_of(shape_of(heads), table, "here")
    assert str(error.value) == (
        "here: the model was trained for an unknown task, 'mine'. If a plugin defines the task, "
        "load it with --plugin FILE.py."
    )
    plugins.register("task", "mine", Mine)
    monkeypatch.setattr(Mine, "restore", classmethod(lambda cls, shape, config: cls(config)))
    found = task_of(shape_of(heads), table, "here")
    assert type(found) is Mine
    assert found.config.stride == 9
    assert type(task_of(shape_of(heads), None, "here")) is Qa, "nobody has asked for it"


def test_a_model_of_several_tasks_is_none_of_one_and_says_where_those_are():
    several = {"mood": LabelsConfig(names=NAMES), "who": LabelsConfig(on="token", names=NAMES)}
    with pytest.raises(SettingsError, match=r"heads for several tasks \(mood, who\).*`models`"):
        task_of(shape_of(bert_heads(several=several)), None, "here")


@pytest.mark.parametrize("heads", [{}, bert_heads(tokens=True, pair=True)], ids=["none", "BERT's"])
def test_a_model_that_was_not_fine_tuned_has_no_task(heads):
    with pytest.raises(SettingsError, match="here: the model has no task head: it is not"):
        task_of(shape_of(heads), None, "here")
