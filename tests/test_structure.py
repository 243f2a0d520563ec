"""How training is put together: one `Run`, which knows no job, no task and no objective."""

import ast
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from tests.train.assembled import finetuning, finetuning_several, pretraining, translating
from unmask.jobs import settings_read
from unmask.objectives import OBJECTIVES
from unmask.objectives.base import Objective
from unmask.system.plugins import find_class
from unmask.tasks import TASKS
from unmask.tasks.base import Task
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.compose import Scope
from unmask.train.ingredients import Ingredients
from unmask.train.loop import Loop

SOURCE = Path(__file__).parents[1] / "src"
FILES = sorted((SOURCE / "unmask").rglob("*.py"))
TRAIN = sorted((SOURCE / "unmask" / "train").rglob("*.py"))
REGISTRIES = {"unmask.objectives.OBJECTIVES", "unmask.tasks.TASKS"}
SHARED = {"base", "engine", "results"}  # modules of objectives and tasks that know no concrete one
FUNCTIONS = types.FunctionType | types.MethodType | types.BuiltinFunctionType | functools.partial


def name(path: Path) -> str:
    return path.relative_to(SOURCE / "unmask").as_posix()


def test_the_run_is_short():
    text = (SOURCE / "unmask" / "train" / "run.py").read_text()
    assert len(text.splitlines()) <= 250


# Ingredients: data only


def callables(hint: object) -> Iterator[object]:
    """Parts of an annotation that are functions."""
    if hint in (Callable, typing.Callable) or typing.get_origin(hint) is Callable:
        yield hint
    for part in typing.get_args(hint):
        yield from callables(part)


def held(value: object) -> Iterator[object]:
    """Functions that are a value, or in it."""
    if isinstance(value, FUNCTIONS):
        yield value
    parts = value.values() if isinstance(value, Mapping) else value
    for part in parts if isinstance(value, Mapping | list | tuple | set) else ():
        yield from held(part)


def test_ingredients_are_few_and_none_is_annotated_as_a_function():
    assert 0 < len(fields(Ingredients)) <= 8
    hints = typing.get_type_hints(Ingredients)
    assert not {name: hint for name, hint in hints.items() if any(callables(hint))}


@pytest.mark.parametrize(
    "start",
    [
        functools.partial(pretraining, "bert"),
        functools.partial(finetuning, "classify"),
        finetuning_several,
        functools.partial(translating, "transformer"),
    ],
    ids=["pretrain", "finetune", "several", "translate"],
)
def test_no_ingredient_of_a_job_is_a_function(start, tmp_path, monkeypatch):
    seen, plain = [], Loop.__init__

    def begin(self, given, *others, **how):
        seen.append(given)
        plain(self, given, *others, **how)

    monkeypatch.setattr(Loop, "__init__", begin)
    start(tmp_path)
    (given,) = seen
    assert not {f.name for f in fields(given) if any(held(getattr(given, f.name)))}


@pytest.mark.parametrize(
    "hint",
    [Callable, Callable[[int], str], Callable[..., None] | None, dict[str, Callable[[], int]]],
    ids=str,
)
def test_annotations_of_functions_are_found_wherever_they_stand(hint):
    assert any(callables(hint))
    assert not any(callables(Mapping[str, int] | None))


def test_functions_are_found_wherever_they_are_held():
    for value in (len, lambda: 0, "a".join, functools.partial(len), {"a": [name]}):
        assert any(held(value))
    assert not any(held({"model": "", "path": SOURCE}))


# The only places that compute gradients of training


def calls(text: str, attribute: str) -> list[int]:
    """The lines in which a method of this name is called."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == attribute
    ]


def test_gradients_of_training_are_computed_by_steps_alone():
    found = [name(path) for path in FILES if calls(path.read_text(), "backward")]
    assert found == ["train/steps/coupled.py", "train/steps/summed.py"]


def test_calls_are_found_and_definitions_are_not():
    text = "loss.sum().backward()\ndef backward(ctx): ...\nctx.save_for_backward(x)\n"
    assert calls(text, "backward") == [1]


# What training may know of jobs, tasks and objectives


def imported(text: str) -> Iterator[str]:
    """All that a file imports, wherever in it, by dotted names; of a module also its names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def concrete(dotted: str) -> bool:
    """Is this a job, or one of the tasks and objectives?"""
    if dotted in REGISTRIES:
        return False
    package, _, rest = dotted.removeprefix("unmask.").partition(".")
    if package in ("objectives", "tasks") and dotted.startswith("unmask."):
        return rest.partition(".")[0] not in SHARED
    return dotted == "unmask" or (dotted.startswith("unmask.") and package == "jobs")


def known_names() -> set[str]:
    """The names and terms of all objectives, tasks and jobs."""
    kinds, words = (
        [find_class("objective", OBJECTIVES, n) for n in OBJECTIVES],
        Vocabulary(SPECIALS),
    )
    terms = {term for kind in kinds for term in kind(kind.Config(), words).terms}
    objectives = {*OBJECTIVES, *terms}
    tasks = {*TASKS, *(find_class("task", TASKS, n).name for n in TASKS)}
    jobs = {scope.job for scope in vars(settings_read).values() if isinstance(scope, Scope)}
    return objectives | tasks | jobs


def spoken(text: str) -> dict[int, str]:
    """Strings, by their lines, that are such a name, or begin with one and an underscore."""
    names = known_names()
    return {
        node.lineno: node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if any(node.value == known or node.value.startswith(f"{known}_") for known in names)
    }


@pytest.mark.parametrize("path", TRAIN, ids=name)
def test_training_imports_no_job_no_task_and_no_objective(path):
    assert not [dotted for dotted in imported(path.read_text()) if concrete(dotted)]


@pytest.mark.parametrize("path", TRAIN, ids=name)
def test_training_names_no_job_no_task_and_no_objective(path):
    assert not spoken(path.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "import unmask.jobs.pretrain",
        "from unmask import jobs",
        "import unmask",
        "from unmask.jobs.inputs.corpus import CorpusSource",
        "def later():\n    from unmask.jobs import scopes",
        "from unmask.tasks.ner import Ner",
        "from unmask.tasks import ner",
        "from unmask.tasks import Classify",
        "from unmask.objectives import mlm",
        "import unmask.objectives.mlm",
        "import unmask.tasks",
    ],
)
def test_an_import_of_something_concrete_is_found(text):
    assert any(map(concrete, imported(text)))


@pytest.mark.parametrize(
    "text",
    [
        "import torch",
        "from unmask.tasks import TASKS",
        "from unmask.objectives import OBJECTIVES",
        "from unmask.objectives.base import Objective",
        "from unmask.tasks import engine",
        "from unmask.tasks.base import Task",
        "from unmask.tasks.results import Detail",
        "from unmask.train.run import Job",
    ],
)
def test_interfaces_and_registries_may_be_imported(text):
    assert not any(map(concrete, imported(text)))


def test_a_name_is_found_also_at_the_beginning_of_another():
    text = 'a = "mlm"\nb = f"pair_{a}"\nc = "ner_places"\nd = "translate"\ne = "pretrain"\n'
    assert sorted(spoken(text)) == [1, 2, 3, 4, 5]
    assert not spoken('"""The mlm loss of a pair."""\na = "pairing"\nb = "pre_mlm"\n')


# What the rest of the package may know of single tasks and objectives


OWN = ("tasks", "objectives")
OTHERS = [path for path in FILES if path.relative_to(SOURCE / "unmask").parts[0] not in OWN]
NAMED = {"qa", "ner"}


def classes() -> dict[str, Path]:
    """The classes of tasks and objectives, and the files that they are in."""
    found = {}
    for path in FILES:
        if path in OTHERS:
            continue
        module = import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts))
        for kind in vars(module).values():
            own = isinstance(kind, type) and kind.__module__ == module.__name__
            if own and issubclass(kind, Task | Objective):
                found[kind.__name__] = path
    return found


def asked_for(text: str) -> set[str]:
    """The names of all classes that `isinstance` is asked about."""
    return {
        part.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
        for part in ast.walk(node.args[1])
        if isinstance(part, ast.Name)
    }


def test_no_file_but_its_own_asks_what_a_task_or_an_objective_is():
    kinds = classes()
    assert {"Task", "LabelTask", "Classify", "Translate", "Objective", "MaskedLM"} <= kinds.keys()
    for path in FILES:
        asked = asked_for(path.read_text()) & kinds.keys()
        assert not {kind for kind in asked if kinds[kind] != path}, name(path)


@pytest.mark.parametrize("path", OTHERS, ids=name)
def test_no_other_package_names_a_task_or_the_labels_of_an_objective(path):
    texts = {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not texts & NAMED
    assert not {text for text in texts if text.startswith("mlm_")}


def test_questions_about_classes_are_found():
    text = "isinstance(a, B)\nisinstance(a, C | D)\nisinstance(a, (E, F))\nG(a)\n"
    assert asked_for(text) == {"B", "C", "D", "E", "F"}
