"""What `import unmask` brings: names that no module replaces, quickly, and without torch."""

import inspect
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

import unmask

SOURCE = Path(unmask.__file__).parent
FUNCTIONS = """compile evaluate export finetune get learn_vocabulary load predict prepare pretrain
register serve translate""".split()
BLOCKED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "pandas", "datasets"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Missing())
import unmask
"""


def run(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_module_replaces_a_name_of_the_api():
    for path in SOURCE.rglob("*.py"):
        if path.name != "__main__.py":
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            import_module(".".join(parts).removesuffix(".__init__"))
    for name in unmask.__all__:
        thing = getattr(unmask, name)
        assert not isinstance(thing, types.ModuleType), name
        if name in FUNCTIONS:
            assert inspect.isfunction(thing)
            assert thing.__module__.startswith("unmask.api."), name
        elif name != "__version__":
            assert inspect.isclass(thing), name


def test_the_functions_of_the_api_are_all_here():
    found = [n for n in unmask.__all__ if inspect.isfunction(getattr(unmask, n))]
    assert found == FUNCTIONS
    assert set(unmask.__all__) <= {*dir(unmask)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_of_a_function_is_a_keyword_of_its_own(name):
    kinds = {p.kind for p in inspect.signature(getattr(unmask, name)).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


@pytest.mark.parametrize(
    "name", [n for n, thing in vars(unmask.Model).items() if n[0] != "_" and callable(thing)]
)
def test_every_option_of_a_method_is_a_keyword_of_its_own(name):
    kinds = {p.kind for p in inspect.signature(getattr(unmask.Model, name)).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_documented(name):
    doc = inspect.getdoc(getattr(unmask, name))
    arguments = doc.partition("Args:")[2].partition("Example:")[0]
    for parameter in inspect.signature(getattr(unmask, name)).parameters:
        assert f"    {parameter}: " in arguments, parameter


def test_importing_needs_neither_torch_nor_numpy():
    done = run(BLOCKED + "print(unmask.finetune.__name__, unmask.UserError.__name__)")
    assert (done.stdout.split(), done.stderr) == (["finetune", "UserError"], "")


def test_a_wrong_model_is_refused_without_torch():
    done = run(BLOCKED + "unmask.load('minilmm')")
    assert "did you mean 'minilm'" in done.stderr.splitlines()[-1]


def test_importing_imports_nothing_large():
    done = run("import sys, unmask; print(*sys.modules)")
    assert not {"torch", "numpy", "pydantic", "typer", "pandas"} & {*done.stdout.split()}


def test_classes_are_imported_when_they_are_asked_for():
    done = run("import sys, unmask; a = 'torch' in sys.modules; unmask.Model; "
               "print(a, 'torch' in sys.modules, 'Model' in vars(unmask))")  # fmt: skip
    assert done.stdout.split() == ["False", "True", "True"]


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'unmask' has no attribute 'modle'"):
        unmask.modle  # noqa: B018
