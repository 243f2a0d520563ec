"""The size that is chosen: the largest that can see enough tokens in the time there is."""

import pytest

from tests.train.conftest import LENGTH, table
from unmask.errors import SettingsError
from unmask.settings import read_toml
from unmask.train import budget
from unmask.train.budget import LARGEST, NEEDED, SMALLEST, choose
from unmask.train.distributed import Processes
from unmask.train.pretrain import objective_for

BY_CLOCK = {"schedule": {"minutes": 10.0, "warmup": 0.1}}


def auto(**changes):
    made = table(model={"size": "auto"}, **changes)
    made["schedule"].pop("steps", None)
    return made


@pytest.fixture
def machine(monkeypatch):
    """A machine of known speed: tokens a second by size; each size has ten times the weights."""

    def of(**speeds):
        weights = {size: 10**4 * 10**i for i, size in enumerate(budget.SIZES)}
        monkeypatch.setattr(
            budget,
            "_measured",
            lambda recipe, *_: (speeds[recipe.model["size"]], weights[recipe.model["size"]]),
        )

    return of


def chosen(corpus, made, said=None):
    found = choose(made, None, corpus, objective_for, Processes(), (said or []).append)
    return found["model"]["size"], found["phases"][0]["batch_tokens"]


def test_a_size_that_is_given_stays(corpus):
    made = table()
    assert choose(made, None, corpus, objective_for, Processes(), print) is made


def test_without_a_clock_nothing_can_be_chosen(corpus):
    with pytest.raises(SettingsError, match=r'size is "auto".*Give --minutes, or a size'):
        choose(table(model={"size": "auto"}), None, corpus, objective_for, Processes(), print)


def test_the_largest_that_sees_enough_tokens_for_its_weights(corpus, machine):
    """Ten minutes are 600 s; the sizes have 10,000, 100,000 and 1,000,000 weights."""
    enough = NEEDED * 100_000 / 600
    machine(tiny=10_000, mini=1.01 * enough, small=100)
    assert chosen(corpus, auto(**BY_CLOCK))[0] == "mini"
    machine(tiny=10_000, mini=0.99 * enough)
    assert chosen(corpus, auto(**BY_CLOCK))[0] == "tiny"


def test_with_almost_no_time_it_is_the_smallest(corpus, machine):
    machine(tiny=0.001, mini=0.001)
    assert chosen(corpus, auto(**BY_CLOCK)) == ("tiny", SMALLEST)


def test_a_longer_run_has_larger_steps(corpus, machine):
    """600 s at 8,000 tokens a second are 4.8 million, 4,800 for each of a thousand steps."""
    machine(tiny=8000, mini=0.1)
    assert chosen(corpus, auto(**BY_CLOCK)) == ("tiny", 4096)
    machine(tiny=10**6, mini=0.1)
    assert chosen(corpus, auto(**BY_CLOCK)) == ("tiny", LARGEST)


def test_it_says_what_it_measured(corpus, machine):
    machine(tiny=8000, mini=0.1)
    said = [""]
    chosen(corpus, auto(**BY_CLOCK), said)
    assert said[1].startswith("tiny: about 8,000 tokens a second, 4.8e+02 for each of its 10,000")
    assert said[-1] == "chosen: tiny, 4,096 tokens a step"


def test_a_machine_is_really_timed(corpus):
    recipe = budget.build(budget.Recipe, table(phases=[{"length": LENGTH}]), where="recipe")
    speed, weights = budget._measured(recipe, corpus.tokenizer.vocabulary, objective_for)
    assert speed > 100
    assert weights == sum(
        [3 * 32 * 32 + 3 * 32, 32 * 32 + 32, 2 * 32 * 64 + 64 + 32, 4 * 32]
    )  # qkv, output, feed-forward, two norms of one block of width 32


def test_a_run_that_is_resumed_keeps_what_it_chose(run, machine, tmp_path):
    how = {"recipe": auto(schedule={"minutes": 0.01}, train={"evaluations": 1})}
    machine(tiny=10**9, mini=0.1)
    folder = run("auto", **how)
    first = read_toml(folder / "recipe.toml")
    assert first["model"]["size"] == "tiny"
    assert first["phases"][0]["batch_tokens"] == LARGEST
    machine(tiny=10**9, mini=10**9, small=0.1)
    run("auto", resume=True, **how)
    assert read_toml(folder / "recipe.toml") == first
