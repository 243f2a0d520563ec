"""Former names of settings of objectives and tasks: accepted everywhere, and reported to users."""

from collections.abc import Mapping
from typing import ClassVar

import pytest

from tests.train.conftest import Heard
from unmask.jobs.settings_read import FINETUNE, MULTI_TASK, PRETRAIN, TRANSLATE
from unmask.model.config import SearchSettings
from unmask.objectives.mlm import MaskSettings
from unmask.system.errors import SettingsError
from unmask.system.settings import Settings, old_names_within, validate, write_toml
from unmask.tasks.classify import ClassifySettings
from unmask.tasks.qa import QaSettings
from unmask.tasks.translate import TranslateSettings
from unmask.train.compose import compose

PLAIN = {"schedule": {"steps": 10}}
SHAPE = {"model": {"width": 32, "layers": 1, "heads": 2, "inner_width": 64}}
CASES = {  # a job, the least it needs, the former and the present name of a setting, a value
    "mlm rate": (PRETRAIN, PLAIN, "objective.rate", "objective.mask_rate", 0.3),
    "mlm last rate": (PRETRAIN, PLAIN, "objective.last_rate", "objective.final_mask_rate", 0.3),
    "mlm words": (PRETRAIN, PLAIN, "objective.whole_words", "objective.whole_word_masking", True),
    "mlm bias": (PRETRAIN, PLAIN, "objective.frequencies", "objective.init_output_bias", True),
    "classify": (FINETUNE, "classify", "task.several", "task.multi_label", True),
    "smoothing": (FINETUNE, "classify", "task.smoothing", "task.label_smoothing", 0.2),
    "qa question": (FINETUNE, "qa", "task.longest_question", "task.max_question_length", 9),
    "qa answer": (FINETUNE, "qa", "task.longest_answer", "task.max_answer_length", 9),
    "qa best": (FINETUNE, "qa", "task.best", "task.n_best", 9),
    "forcing": (TRANSLATE, SHAPE, "task.forcing", "task.teacher_forcing", 0.5),
    "forcing end": (TRANSLATE, SHAPE, "task.forcing_end", "task.final_teacher_forcing", 0.5),
    "translate smoothing": (TRANSLATE, SHAPE, "task.smoothing", "task.label_smoothing", 0.2),
    "beams": (TRANSLATE, SHAPE, "task.search.beams", "task.search.beam_size", 3),
    "longest": (TRANSLATE, SHAPE, "task.search.longest", "task.search.max_length", 7),
}


def least(given) -> dict:
    return {"task": {"name": given}} if isinstance(given, str) else given


def notice(old: str, new: str) -> list[str]:
    return [f"notice: the setting {old} is now called {new}"]


def with_setting(table: Mapping, name: str, value: object) -> dict:
    first, _, rest = name.partition(".")
    inner = with_setting(table.get(first, {}), rest, value) if rest else value
    return {**table, first: inner}


@pytest.mark.parametrize("case", CASES)
def test_a_former_name_in_a_file_means_the_present_one_and_is_reported(case, tmp_path):
    scope, given, old, new, value = CASES[case]
    heard, path = Heard(), tmp_path / "mine.toml"
    path.write_text(write_toml(with_setting(least(given), old, value)))
    made = compose(scope, path, console=heard)
    assert (
        made
        == compose(scope, with_setting(least(given), new, value))
        != compose(scope, least(given))
    )
    assert heard.said == notice(old, new)


@pytest.mark.parametrize("case", CASES)
def test_a_former_name_in_set_means_the_present_one_and_is_reported(case):
    scope, given, old, new, value = CASES[case]
    heard, written = Heard(), str(value).lower()
    made = compose(scope, least(given), [f"{old}={written}"], console=heard)
    assert made == compose(scope, with_setting(least(given), new, value))
    assert heard.said == notice(old, new)


TOGETHER = {  # settings that are only read beside others
    "forcing": ("teacher_forcing", 0.5),
    "forcing_by": ("teacher_forcing_by", "sentence"),
    "search.beams": ("search.beam_size", 3),
    "search.penalty": ("search.length_penalty", 0.5),
}


def test_former_names_of_settings_that_need_each_other_are_accepted_together():
    old = new = SHAPE
    for name, (now, value) in TOGETHER.items():
        old = with_setting(old, f"task.{name}", value)
        new = with_setting(new, f"task.{now}", value)
    heard = Heard()
    assert compose(TRANSLATE, old, console=heard) == compose(TRANSLATE, new)
    expected = [
        line
        for name, (now, _) in TOGETHER.items()
        for line in notice(f"task.{name}", f"task.{now}")
    ]
    assert sorted(heard.said) == sorted(expected)


def test_every_former_name_is_tried():
    tried = {old.partition(".")[2] for _, _, old, _, _ in CASES.values()} | TOGETHER.keys()
    for kind in (MaskSettings, ClassifySettings, QaSettings, TranslateSettings):
        named = old_names_within(kind)
        assert named
        assert set(named) <= tried
        assert not set(named.values()) & set(named)


@pytest.mark.parametrize(
    ("given", "change"), [("multi_label", "several"), ("several", "multi_label")]
)
def test_a_change_replaces_the_value_of_a_file_whatever_the_names(given, change):
    table = {"task": {"name": "classify", given: False}}
    made = compose(FINETUNE, table, [f"task.{change}=true"], console=Heard())
    assert made.task.settings.multi_label is True


def test_a_stored_recipe_keeps_its_meaning_and_nothing_is_reported():
    heard = Heard()
    table = {"task": {"name": "qa", "longest_answer": 9}}
    made = compose(FINETUNE, table, stored=True, console=heard)
    assert made.task.settings.max_answer_length == 9
    assert heard.said == []


def test_one_of_several_tasks_may_have_a_former_name():
    files = {"train": "a.tsv", "dev": "b.tsv"}
    old = {"name": "mood", "task": {"name": "classify", "several": True}, **files}
    new = {"name": "mood", "task": {"name": "classify", "multi_label": True}, **files}
    other = {"name": "who", "task": {"name": "ner"}, **files}
    heard = Heard()
    made = compose(MULTI_TASK, {"tasks": [other, old]}, console=heard)
    assert made == compose(MULTI_TASK, {"tasks": [other, new]})
    assert heard.said == notice("tasks.1.task.several", "tasks.1.task.multi_label")


def test_python_settings_may_have_a_former_name_also_in_nested_tables():
    assert ClassifySettings(several=True) == ClassifySettings(multi_label=True)
    found = validate(TranslateSettings, {"search": {"beams": 3}}, where="here")
    assert found.search == SearchSettings(beam_size=3)
    assert set(found.model_dump()["search"]) == set(SearchSettings.model_fields)


def test_both_names_of_one_setting_are_refused():
    both = {"several": True, "multi_label": False}
    says = "here: several and multi_label are two names of one setting. Remove several."
    with pytest.raises(SettingsError) as error:
        validate(ClassifySettings, both, where="here")
    assert str(error.value) == says


def test_a_bad_value_under_a_former_name_is_refused_by_the_present_one():
    with pytest.raises(SettingsError, match="here: 'mask_rate' is 2.0; "):
        validate(MaskSettings, {"rate": 2.0}, where="here")


def test_settings_of_anybody_may_have_former_names():
    class Mine(Settings):
        width: int = 1
        old_names: ClassVar[Mapping[str, str]] = {"wide": "width"}

    class Outer(Settings):
        mine: Mine = Mine()

    assert old_names_within(Outer) == {"mine.wide": "mine.width"}
    assert validate(Outer, {"mine": {"wide": 5}}, where="here").mine.width == 5
    with pytest.raises(SettingsError, match="unknown key 'wid'"):
        validate(Mine, {"wid": 5}, where="here")
