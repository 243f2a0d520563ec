"""What users register: refused where it cannot be, found beside the built-in names."""

import sys

import pytest

import unmask
from unmask.objectives import OBJECTIVES
from unmask.objectives.base import Objective
from unmask.system import plugins
from unmask.system.errors import DataError, SettingsError
from unmask.system.plugins import find_class, known_names, load_plugin, loaded_plugins, registered
from unmask.tasks import TASKS
from unmask.tasks.base import Task, all_scores
from unmask.tasks.classify import Classify, ClassifySettings, Labels


class Mine(Objective):
    """An objective of somebody's own."""


class Another(Objective):
    """And one more."""


class MyTask(Task):
    """A task of somebody's own."""


class AnotherTask(Task):
    """And one more."""


CLASS = ["from unmask.tasks.base import Task", "class T(Task): ..."]
OWN = {"objective": Mine, "task": MyTask, "metric": len, "callback": print}
OTHERS = {"objective": Another, "task": AnotherTask, "metric": max, "callback": min}
KINDS = ("objective", "task", "metric", "callback")


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    """Whatever a test registers is forgotten after it."""
    modules = dict(sys.modules)
    monkeypatch.setattr(plugins, "_registered", {kind: {} for kind in KINDS})
    monkeypatch.setattr(plugins, "_loaded", {})
    yield
    for name in sys.modules.keys() - modules.keys():
        if name.startswith("unmask_plugin_"):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    """Write a plugin of these lines."""

    def make(name, *lines):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["import unmask", *lines]) + "\n")
        return path

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_registered_is_found_by_its_name(kind):
    thing = OWN[kind]
    unmask.register(kind, "mine", thing)
    assert registered(kind) == {"mine": thing}
    assert find_class(kind, {}, "mine") is thing
    assert known_names(kind, {"built_in": "somewhere:Thing"}) == ["built_in", "mine"]
    assert not any(registered(other) for other in KINDS if other != kind)


def test_what_is_registered_cannot_be_changed_from_outside():
    unmask.register("metric", "mine", len)
    registered("metric").clear()
    assert registered("metric") == {"mine": len}


def test_a_kind_that_is_none_is_refused():
    with pytest.raises(SettingsError, match="register: unknown kind 'objektive'; did you mean 'ob"):
        unmask.register("objektive", "mine", object)
    with pytest.raises(SettingsError, match="The kinds are callback, metric, objective, task"):
        unmask.register("page", "mine", object)


@pytest.mark.parametrize("name", ["", "two words", "3d", "a-b", "a.b", "../a", "a\nb"])
def test_a_name_that_is_no_word_is_refused(name):
    with pytest.raises(
        SettingsError, match="register: the name .* is not an identifier; need letters"
    ):
        unmask.register("task", name, object)
    assert not registered("task")


@pytest.mark.parametrize(
    ("kind", "name"), [*(("objective", n) for n in OBJECTIVES), *(("task", n) for n in TASKS)]
)
def test_a_built_in_name_is_not_replaced(kind, name):
    with pytest.raises(
        SettingsError, match=f"the {kind} '{name}' already exists and cannot be rep"
    ):
        unmask.register(kind, name, object)
    assert not registered(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_is_one_that_was_registered_before(kind):
    unmask.register(kind, "mine", OWN[kind])
    with pytest.raises(SettingsError, match=f"the {kind} 'mine' already exists"):
        unmask.register(kind, "mine", OTHERS[kind])
    assert registered(kind) == {"mine": OWN[kind]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("thing", [object(), "a text", None])
def test_what_is_of_another_kind_is_refused(kind, thing):
    with pytest.raises(
        SettingsError, match=f"register: {kind} 'mine' is .*(not a subclass|a function)"
    ):
        unmask.register(kind, "mine", thing)
    assert not registered(kind)


@pytest.mark.parametrize(("kind", "thing"), [("task", Mine), ("objective", MyTask), ("task", str)])
def test_a_class_must_be_derived_from_that_of_its_kind(kind, thing):
    with pytest.raises(SettingsError, match=r"not a subclass of unmask\."):
        unmask.register(kind, "mine", thing)


def test_names_of_different_kinds_do_not_meet():
    unmask.register("metric", "mlm", len)
    unmask.register("callback", "qa", print)
    unmask.register("task", "mlm", MyTask)
    assert find_class("task", TASKS, "mlm") is MyTask


@pytest.mark.parametrize(
    ("kind", "table"), [("objective", OBJECTIVES), ("task", TASKS)], ids=["objectives", "tasks"]
)
def test_built_in_names_are_found_where_their_table_says(kind, table):
    for name, place in table.items():
        found = find_class(kind, table, name)
        assert f"{found.__module__}:{found.__qualname__}" == place


def test_a_near_miss_is_offered_and_a_plugin_thought_of():
    with pytest.raises(SettingsError) as error:
        find_class("task", TASKS, "clasify")
    assert str(error.value) == (
        "unknown task 'clasify'; did you mean 'classify'? The tasks are classify, ner, qa, "
        "regress, translate. To use your own, load it with --plugin FILE.py."
    )


def test_with_a_plugin_its_names_are_offered_too_and_no_other_one_is_asked_for(write):
    load_plugin(write("mine.py", *CLASS, "unmask.register('task', 'highlight', T)"))
    with pytest.raises(SettingsError) as error:
        find_class("task", TASKS, "highlite")
    assert "did you mean 'highlight'? The tasks are classify, highlight, ner" in str(error.value)
    assert "--plugin" not in str(error.value)


def test_a_file_is_run_once_and_told_by_its_name_and_digest(write):
    path = write("mine.py", "unmask.register('metric', 'mine', len)")
    load_plugin(path)
    load_plugin(str(path))
    assert registered("metric") == {"mine": len}
    ((name, digest),) = loaded_plugins().items()
    assert name == "mine.py"
    assert len(digest) == 64
    loaded_plugins().clear()
    assert loaded_plugins() == {name: digest}


def test_dataclasses_of_a_file_find_their_module(write):
    lines = ["from __future__ import annotations", "from dataclasses import dataclass"]
    lines += ["@dataclass", "class Line:", "    text: str"]
    lines += ["unmask.register('metric', 'm', Line)"]
    path = write("mine.py")
    path.write_text("\n".join([*lines[:2], "import unmask", *lines[2:]]))
    load_plugin(path)
    assert registered("metric")["m"]("x").text == "x"


def test_several_files_may_be_given(write):
    load_plugin(write("one.py", "unmask.register('metric', 'one', len)"))
    load_plugin(write("two.py", "unmask.register('metric', 'two', len)"))
    assert list(registered("metric")) == ["one", "two"]
    assert list(loaded_plugins()) == ["one.py", "two.py"]


def test_two_files_of_one_name_are_refused(write):
    load_plugin(write("a/mine.py", "x = 1"))
    load_plugin(write("b/mine.py", "x = 1"))  # the same text is the same plugin
    other = write("c/mine.py", "x = 2")
    with pytest.raises(SettingsError, match=r"another plugin is also called mine\.py\. Rename one"):
        load_plugin(other)


@pytest.mark.parametrize("name", ["gone.py", "mine.txt", "mine", "folder.py"])
def test_what_is_no_python_file_is_refused(write, tmp_path, name):
    write("mine.txt", "x = 1")
    write("mine", "x = 1")
    (tmp_path / "folder.py").mkdir()
    path = tmp_path / name
    with pytest.raises(SettingsError) as error:
        load_plugin(path)
    assert str(error.value) == f"--plugin {path}: need a Python file (.py) that exists."
    assert loaded_plugins() == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import not_installed_at_all", "ModuleNotFoundError: No module named 'not_installed_at"),
        ("def broken(:", "SyntaxError: invalid syntax (mine.py, line 2)"),
        ("raise ValueError('one\\ntwo')", "ValueError: one two."),
        ("raise KeyError", "KeyError."),
    ],
)
def test_an_error_in_a_file_is_told_in_one_line(write, line, says):
    path = write("mine.py", line)
    with pytest.raises(SettingsError) as error:
        load_plugin(path)
    assert str(error.value).startswith(f"--plugin {path}: running it failed: {says}")
    assert str(error.value).endswith("--trace shows where.")
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is not None, "--trace shows it"
    assert loaded_plugins() == {}


def test_what_a_file_refuses_itself_is_said_as_it_is(write):
    path = write("mine.py", "unmask.register('task', 'qa', object)")
    with pytest.raises(SettingsError, match="^register: the task 'qa' already exists"):
        load_plugin(path)
    data = "from unmask.system.errors import DataError\nraise DataError('words.txt: is empty.')"
    with pytest.raises(DataError, match=r"^words\.txt: is empty\.$"):
        load_plugin(write("other.py", data))


TASK = Classify(ClassifySettings(), ["bad", "good"])
SAID = [Labels(("good",), {"good": 0.9})]


def records():
    from unmask.data.labelled.columns import Sample

    return [Sample("a", None, ("good",), "here:1")]


def test_a_metric_is_given_records_and_answers_and_stands_beside_the_tasks_own():
    seen = []

    def count(some, answers):
        seen.append((some, answers))
        return len(answers)

    unmask.register("metric", "how_many", count)
    some = records()
    plain = TASK.score(some, SAID)
    assert all_scores(TASK, some, SAID, 0.5) == {**plain, "how_many": 1.0}
    assert seen == [(some, SAID)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.9", None])
def test_a_metric_that_is_no_finite_number_is_refused(value):
    unmask.register("metric", "odd", lambda some, answers: value)
    with pytest.raises(SettingsError, match="metric 'odd': returned .*; expected a finite number"):
        all_scores(TASK, records(), SAID, 0.5)
