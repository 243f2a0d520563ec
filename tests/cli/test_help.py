"""`unmask --help` and the help of every verb: groups, whole summaries, examples, speed."""

import os
import re
import shlex
import statistics
import subprocess
import sys
import time

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from unmask.cli import GROUPS, app

ROOT = typer.main.get_command(app)
NARROW = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}


def leaves(command=ROOT, name=()):
    """Every verb that does something, with its full name."""
    if not isinstance(command, TyperGroup):
        yield pytest.param(command, name, id=" ".join(name))
        return
    for own, inner in command.commands.items():
        yield from leaves(inner, (*name, own))


LEAVES = list(leaves())


def help_of(*words):
    done = CliRunner().invoke(app, [*words, "--help"], env=NARROW, prog_name="unmask")
    assert done.exit_code == 0, done.output
    return done.output


def test_verbs_are_listed_in_groups():
    text = help_of()
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert headings == ["Options", "Data", "Train", "Use", "Inspect", "Serve"]
    for heading, verbs in GROUPS.items():
        section = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        listed = re.findall(r"^  (\w+) ", section, re.MULTILINE)
        assert sorted(listed) == sorted(verbs)


@pytest.mark.parametrize("words", [(), ("vocab",), ("translate",)])
def test_no_summary_is_cut_at_80_columns(words):
    lines = help_of(*words).splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage")]


@pytest.mark.parametrize(("command", "name"), LEAVES)
def test_every_verb_has_an_example_that_it_accepts(command, name):
    """The example stands on one line, so that it can be copied, and the verb can parse it."""
    examples = re.findall(r"^  Example: (.*)$", help_of(*name), re.MULTILINE)
    assert len(examples) == 1
    program, *words = shlex.split(examples[0])
    assert (program, *words[: len(name)]) == ("unmask", *name)
    command.make_context(name[-1], words[len(name) :])


@pytest.mark.parametrize(("command", "name"), LEAVES)
def test_the_help_of_a_verb_fits_on_80_columns_and_names_the_common_flags(command, name):
    text = help_of(*name)
    assert max(map(len, text.splitlines())) <= 80
    assert "--quiet, --verbose, --trace" in text


@pytest.mark.parametrize(("command", "name"), LEAVES)
def test_every_option_and_argument_is_explained(command, name):
    assert [param.name for param in command.params if not param.help] == []


def test_help_takes_less_than_three_tenths_of_a_second():
    """The median of ten; as user and system time, which other processes do not lengthen."""
    seconds = []
    for _ in range(10):
        started, before = time.perf_counter(), _cpu_of_children()
        subprocess.run([sys.executable, "-m", "unmask", "--help"], stdout=-3, check=True)
        seconds.append(min(time.perf_counter() - started, _cpu_of_children() - before))
    assert statistics.median(seconds) < 0.3


def _cpu_of_children() -> float:

    times = os.times()
    return times.children_user + times.children_system


def test_help_imports_neither_rich_nor_torch():
    command = [sys.executable, "-X", "importtime", "-m", "unmask", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in modules
    assert not {"rich", "torch", "numpy", "pydantic"} & modules
