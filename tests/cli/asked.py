"""What a command line asks for, without carrying it out."""

import pytest
from typer.testing import CliRunner

from unmask.cli import app
from unmask.train.recipe import Recipe
from unmask.train.run import Outcome, Run, RunOptions


def run_of(*words: object) -> Run:
    """The run that `unmask WORDS...` would start."""
    runs: list[Run] = []

    def go(run: Run) -> Outcome:
        runs.append(run)
        return Outcome(run.out, {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "go", go)
        patch.setattr("unmask.jobs.summary.say_summary", lambda *of_no_run: None)
        CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return runs[0]


def recipe_of(*words: object) -> Recipe | None:
    """The recipe of the run that `unmask WORDS...` would start."""
    return run_of(*words).recipe


def options_of(*words: object) -> RunOptions:
    """The options of the run that `unmask WORDS...` would start."""
    return run_of(*words).options
