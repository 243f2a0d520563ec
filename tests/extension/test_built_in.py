"""Built-in objectives and tasks have no private paths: a copy of each works as a plugin."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.extension.conftest import command, environment, pretraining, settings
from tests.extension.test_objectives import same
from tests.plugged import AS_PLUGIN
from unmask.objectives import OBJECTIVES
from unmask.tasks import TASKS
from unmask.train.compose import recipes_folder

ROOT = Path(__file__).parents[2]
# The tests of each, by the module that it is in.
OWN_TESTS = {
    "unmask.objectives.mlm": ["tests/objectives/test_mlm.py"],
    "unmask.objectives.pairs": ["tests/objectives/test_pairs.py"],
    **{f"unmask.tasks.{task}": [f"tests/tasks/test_{task}.py"] for task in TASKS},
}
KINDS = {"objectives": ("objective", OBJECTIVES), "tasks": ("task", TASKS)}


def test_every_built_in_one_is_tried():
    modules = {spec.partition(":")[0] for spec in (OBJECTIVES | TASKS).values()}
    assert modules == OWN_TESTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("module", OWN_TESTS)
def test_a_copy_of_its_file_passes_its_tests_as_a_plugin(module):
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "not full"]
    done = subprocess.run(
        [*tests, *OWN_TESTS[module]],
        cwd=ROOT,
        env={**environment(), AS_PLUGIN: module},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"as a plugin: {module}" in done.stdout


def copied(place: Path, package: str, name: str) -> list[str]:
    """A copy of a built-in file with another name in it; the flags that load it."""
    kind, table = KINDS[package]
    module, _, kind_name = table[name].partition(":")
    source = (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").read_text()
    source, count = re.subn(
        rf'^    name = "{name}"$', f'    name = "my_{name}"', source, flags=re.M
    )
    assert count == (package == "tasks")
    path = place / f"my_{name}.py"
    path.write_text(
        f'{source}\n\nimport unmask\n\nunmask.register("{kind}", "my_{name}", {kind_name})\n'
    )
    return ["--plugin", str(path)]


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_copy_of_an_objective_trains_the_same_bits(world, tmp_path, name):
    flags = copied(tmp_path, "objectives", name)
    own = ["schedule.steps=6", "model.dropout=0.1"]
    own += ['data.pairs="nsp"'] if name == "pairs" else []
    for out, objective in ((f"usual-{name}", name), (f"copied-{name}", f"my_{name}")):
        command(world, *pretraining(out, objective, *own), *(flags if "copied" in out else []))
    usual, mine = (
        load_file(world / out / "checkpoints" / "step-6" / "model.safetensors")
        for out in (f"usual-{name}", f"copied-{name}")
    )
    assert same(usual, mine)


def write_data(world: Path, task: str) -> list[str]:
    """Files for a task, as flags."""
    lines = {
        "classify": "".join(f"the {c} dog\t{c}\n" for c in ("red", "old")) * 8,
        "regress": "".join(f"the {c} dog\t{i / 4}\n" for i, c in enumerate(("red", "old"))) * 8,
        "ner": "john B-PER\nlives O\nin O\nparis B-LOC\n\nthe O\ndog O\n\n" * 8,
        "qa": "".join(
            f'{{"id": "{i}", "question": "where is john", "context": "john lives in paris .", '
            '"answers": {"text": ["paris"], "answer_start": [14]}}\n'
            for i in range(12)
        ),
        "translate": "red dog\thund rot\nold cat\tkatze alt\n" * 10,
    }[task]
    header = {"classify": "text\tlabel\n", "regress": "text\tlabel\n"}.get(task, "")
    header = "source\ttarget\n" if task == "translate" else header
    ending = {"ner": "conll", "qa": "jsonl"}.get(task, "tsv")
    (world / f"{task}.{ending}").write_text(header + lines)
    return ["--train", f"{task}.{ending}", "--dev", f"{task}.{ending}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_copy_of_a_task_trains_scores_and_answers_the_same(world, tmp_path, name):
    flags, data = copied(tmp_path, "tasks", name), write_data(world, name)
    small = settings("loop.precision=fp32", "evaluate.times=1", "loop.batch_size=8")
    small += ["--max-length", "32"] if name == "qa" else []
    if name == "translate":
        small += settings("tokenizer.joint=false", "tokenizer.size=40")
    shape = ["--epochs", "2", "--threads", "1", "--no-preflight", *small]
    found = {}
    recipe = tmp_path / "mine.toml"
    usual = (recipes_folder() / "finetune" / f"{name}.toml").read_text()
    recipe.write_text(usual.replace(f'name = "{name}"', f'name = "my_{name}"'))
    for out, task in ((f"usual-{name}", name), (f"copied-{name}", str(recipe))):
        own = flags if "copied" in out else []
        printed = command(
            world, "finetune", task, "bert/model", *data, "--out", out, *shape, *own
        ).stdout
        asked = world / f"{name}.asked.jsonl"
        question = '"question": "where is john", "context": "john lives in oslo"'
        asked.write_text(f'{{"text": "the old dog", {question}}}\n')
        said = command(world, "predict", f"{out}/model", asked.name, *own).stdout
        scores = command(world, "evaluate", f"{out}/model", data[1], *own).stdout
        weights = load_file(world / out / "model" / "model.safetensors")
        found[out] = (printed, said, scores, weights)
    usual, mine = found.values()
    assert usual[:3] == mine[:3]
    assert same(usual[3], mine[3])
