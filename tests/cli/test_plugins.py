"""`--plugin` goes with every verb: the file runs before the verb is parsed, or is refused."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer

from tests.extension.conftest import PLUGINS
from unmask.cli import VERBS, app

# Each plugin with each verb, in one process that must not need torch. The option does not exist,
# so that no verb does anything.
SCRIPT = """
import json, sys
from unmask import cli
from unmask.system import plugins

verbs, files = json.loads(sys.argv[1])
sys.plugin_runs, said, found = 0, [], {}
cli.terminal.error = said.append
for verb in verbs:
    for name, file in files.items():
        for place in ("before", "after"):
            plugins._loaded.clear()
            sys.plugin_runs = 0
            said.clear()
            own, rest = ["--plugin", file], [*verb.split(), "--no-such-option"]
            code = cli._run(own + rest if place == "before" else rest + own, trace=False)
            found[f"{verb} {name} {place}"] = code, sys.plugin_runs, " ".join(said)
print(json.dumps({"found": found, "torch": "torch" in sys.modules}))
"""
GOOD = "import sys\nsys.plugin_runs += 1\n"
BAD = "1 / 0\n"


def leaves(command, name: str = "") -> Iterator[str]:
    """All verbs, those inside another one with both names."""
    if not hasattr(command, "commands"):
        yield name
        return
    for own, inner in command.commands.items():
        yield from leaves(inner, f"{name} {own}".strip())


ALL = list(leaves(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A plugin, one that fails, and one that is not there."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "good.py").write_text(GOOD)
    (folder / "bad.py").write_text(BAD)
    return {name: str(folder / f"{name}.py") for name in ("good", "bad", "gone")}


@pytest.fixture(scope="module")
def runs(files):
    """Exit code, runs of the plugin and what was printed, for each verb, file and place."""
    command = [sys.executable, "-c", SCRIPT, json.dumps([ALL, files])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_verb_is_among_them():
    assert set(VERBS) <= set(ALL)
    assert {"vocab learn", "translate train", "translate run"} <= set(ALL)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("verb", ALL)
def test_a_plugin_is_loaded_before_the_verb_is_parsed(runs, verb, place):
    code, times, said = runs["found"][f"{verb} good {place}"]
    assert (code, times) == (2, 1)
    assert "--no-such-option" in said, "the verb is parsed all the same"


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("verb", ALL)
def test_a_plugin_that_is_missing_or_fails_is_refused_before_anything_else(
    runs, files, verb, place
):
    for name, says in (
        ("bad", "running it failed: ZeroDivisionError: division by zero. --trace shows where."),
        ("gone", "need a Python file (.py) that exists."),
    ):
        code, times, said = runs["found"][f"{verb} {name} {place}"]
        assert (code, times) == (2, 0)
        assert said == f"error: --plugin {files[name]}: {says}"


def test_none_of_that_needs_torch(runs):
    assert not runs["torch"]


@pytest.mark.parametrize("verb", ["finetune", "check"])
def test_help_names_all_tasks(anew, verb):
    plain = " ".join(anew(verb, "--help").stdout.split())
    assert "classify, regress, qa, ner, translate" in plain
    assert "highlight" not in plain
    plugged = anew(verb, "--help", "--plugin", PLUGINS / "highlight.py")
    assert "classify, regress, qa, ner, translate, highlight" in " ".join(plugged.stdout.split())


@pytest.mark.parametrize("verb", ["finetune", "check", "predict"])
def test_help_does_not_need_torch(verb):
    command = [sys.executable, "-X", "importtime", "-m", "unmask", verb, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "unmask.cli.tasks" in modules
    assert "torch" not in modules
