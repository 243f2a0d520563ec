"""Which optimizer moves each parameter, and how: as recorded in optimizer_groups.json.

A parameter's weight decay, learning-rate scale and optimizer are chosen by its shape and its name.
Renaming a module could therefore change how it is trained without any error. These tests compare
every trainable parameter of several recipes with a recorded table.

After a deliberate change, record the table again and review its diff:

    python -m tests.train.test_optimizer_groups
"""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.train.assembled import (
    Assembled,
    finetuning,
    finetuning_several,
    pretraining,
    translating,
)

RECORD = Path(__file__).with_name("optimizer_groups.json")
RENAMED: dict[str, str] = {}  # prefix of recorded parameter names -> the prefix they have now

Rule = dict[str, Any]  # {"optimizer": "muon", "decay": 0.01, "scale": 1.0, "parts": 3}

# The rates of layers and heads differ wherever a recipe allows it, so that a parameter in the wrong
# group shows.
CASES: dict[str, Callable[[Path], Assembled]] = {
    "bert": lambda place: pretraining("bert", place),
    "budget": lambda place: pretraining("budget", place),
    "classify": lambda place: finetuning(
        "classify", place, **{"optimizer.layer_decay": 0.9, "optimizer.head_factor": 10.0}
    ),
    "multi": lambda place: finetuning_several(place, layer_decay=0.9, head_factor=10.0),
    "transformer": lambda place: translating(
        "transformer", place, "tune.layer_decay=0.9", "tune.head_factor=10.0"
    ),
    "transformer with muon": lambda place: translating(
        "transformer", place, 'optimizer.kind="muon"'
    ),
    "attention with muon": lambda place: translating("attention", place, 'optimizer.kind="muon"'),
}


def rules_of(run: Assembled) -> dict[str, Rule]:
    """Read from an optimizer how it treats each parameter, by the parameter's name."""
    run.set_learning_rate(1.0)
    names = {id(p): name for name, p in run.network.named_parameters()}
    rules: dict[str, Rule] = {}
    for group in run.optimizer.param_groups:
        muon = "parts" in group
        for number, parameter in enumerate(group["params"]):
            name = names[id(parameter)]
            assert name not in rules, f"{name} is in two groups"
            rules[name] = {
                "optimizer": "muon" if muon else "adamw",
                "decay": group["weight_decay"],
                "scale": group["lr"],
            }
            if muon:
                rules[name]["parts"] = group["parts"][number]
    return {name: rules[name] for name in names.values() if name in rules}


def renamed(rules: dict[str, Rule], prefixes: dict[str, str]) -> dict[str, Rule]:
    """Give recorded parameters the names they have now; the longest prefix that fits counts."""
    found = {}
    for name, rule in rules.items():
        fits = [old for old in prefixes if name.startswith(old)]
        old = max(fits, key=len, default="")
        found[prefixes.get(old, "") + name[len(old) :]] = rule
    return found


def differences(recorded: dict[str, Rule], found: dict[str, Rule]) -> list[str]:
    """Describe every parameter that is new, is gone or is trained in another way."""
    lines = []
    for name in sorted(recorded.keys() | found.keys()):
        if name not in found:
            lines.append(f"{name}: recorded, but not trained now; if it was renamed, see RENAMED")
        elif name not in recorded:
            lines.append(f"{name}: trained now, but not recorded; {found[name]}")
        elif recorded[name] != found[name]:
            lines.append(f"{name}: recorded {recorded[name]}, now {found[name]}")
    return lines


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Rule]]:
    return json.loads(RECORD.read_text())


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory) -> tuple[str, Assembled]:
    return request.param, CASES[request.param](tmp_path_factory.mktemp("groups"))


def test_every_parameter_is_trained_as_recorded(case, recorded):
    name, run = case
    found = differences(renamed(recorded[name], RENAMED), rules_of(run))
    advice = "If that is intended, record it: python -m tests.train.test_optimizer_groups"
    assert not found, "\n".join([f"recipe {name}: {len(found)} differences. {advice}", *found])


def test_every_trainable_parameter_is_in_a_group(case):
    _, run = case
    trainable = {name for name, p in run.network.named_parameters() if p.requires_grad}
    assert rules_of(run).keys() == trainable


def test_the_record_has_the_cases_and_no_others(recorded):
    assert recorded.keys() == CASES.keys()


def test_every_renaming_renames_something(recorded):
    names = {name for rules in recorded.values() for name in rules}
    assert not [old for old in RENAMED if not any(name.startswith(old) for name in names)]


def test_the_record_tells_groups_apart(recorded):
    """A record with one group per recipe would not notice a parameter that changes its group."""
    scales = {rule["scale"] for rule in recorded["classify"].values()}
    assert scales == {0.9**2, 0.9, 1.0, 10.0}
    assert {rule["decay"] for rule in recorded["bert"].values()} == {0.0, 0.01}
    parts = {rule.get("parts") for rule in recorded["budget"].values()}
    assert parts == {None, 1, 3}


def test_renaming_a_prefix_keeps_the_rest_of_the_name():
    rule = {"optimizer": "adamw"}
    names = {"encoder.blocks.0.weight": rule, "encoder.norm.weight": rule, "pooler.weight": rule}
    prefixes = {"encoder.": "encoders.main.", "encoder.blocks.": "stack."}
    assert list(renamed(names, prefixes)) == [
        "stack.0.weight",
        "encoders.main.norm.weight",
        "pooler.weight",
    ]


def test_differences_name_what_moved_what_is_gone_and_what_is_new():
    still, moved = {"optimizer": "adamw", "scale": 1.0}, {"optimizer": "muon", "scale": 1.0}
    lines = differences({"a": still, "b": still, "c": still}, {"a": still, "b": moved, "d": still})
    assert [line.partition(":")[0] for line in lines] == ["b", "c", "d"]
    assert "muon" in lines[0]


def record() -> None:
    """Write optimizer_groups.json, a line for each parameter."""
    cases = []
    for name, make in CASES.items():
        with TemporaryDirectory() as place:
            rules = rules_of(make(Path(place) / "case"))
        lines = [f"    {json.dumps(p)}: {json.dumps(rule)}" for p, rule in rules.items()]
        cases.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    RECORD.write_text("{\n" + ",\n".join(cases) + "\n}\n")


if __name__ == "__main__":
    record()
