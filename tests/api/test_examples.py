"""The examples in the docstrings of the API work, and print nothing."""

import inspect
import pathlib
import textwrap

import pytest

import unmask
from tests.api.test_names import FUNCTIONS
from unmask.system import plugins

# What an example of a function needs from those before it; "translate" has a test of its own.
BEFORE = {
    "prepare": ["learn_vocabulary"],
    "pretrain": ["learn_vocabulary", "prepare"],
    "evaluate": ["finetune"],
    "predict": ["finetune"],
}
ALONE = {"get", "translate", "serve", "compile", "export"}  # need a network, a server, ONNX


def example(name):
    doc = inspect.getdoc(getattr(unmask, name))
    _, found, code = doc.partition("\nExample:\n")
    assert found, f"unmask.{name} has no example"
    return textwrap.dedent(code)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example_that_is_python(name):
    code = compile(example(name), name, "exec")
    assert "unmask" in code.co_names


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ALONE])
def test_examples_run_and_print_nothing(name, workplace, capfd, monkeypatch):
    (workplace / "dev.tsv").write_text("text\tlabel\n" + "the cat sat\tcat\nthe dog sat\tdog\n" * 4)
    monkeypatch.setattr(plugins, "_registered", {kind: {} for kind in plugins.KINDS})
    for step in [*BEFORE.get(name, []), name]:
        exec(example(step), {"unmask": unmask, "pathlib": pathlib})
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compile", "export"])
def test_examples_with_onnx_run_and_print_nothing(name, workplace, capfd):
    exec(example(name), {"unmask": unmask})
    assert capfd.readouterr() == ("", "")
