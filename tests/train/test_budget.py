"""The size that is chosen: the largest that can see enough tokens in the time there is."""

import pytest
import torch

from tests.train.conftest import LENGTH, table
from unmask.errors import SettingsError
from unmask.settings import read_toml
from unmask.train import budget
from unmask.train.budget import LARGEST, NEEDED, SMALLEST, Timed, choose
from unmask.train.distributed import Processes
from unmask.train.pretrain import objective_for

BY_CLOCK = {"schedule": {"minutes": 10.0, "warmup": 0.1}}


def auto(**changes):
    made = table(**{"model": {"size": "auto"}, "phases": [{"length": LENGTH}], **changes})
    made["schedule"].pop("steps", None)
    return made


@pytest.fixture
def machine(monkeypatch):
    """A machine of known speed: tokens a second by size; each size has ten times the weights."""

    def of(rest=0.0, **speeds):
        monkeypatch.setattr(budget, "LADDER", {size: {"size": size} for size in budget.SIZES})
        weights = {size: 10**4 * 10**i for i, size in enumerate(budget.SIZES)}

        def timed(recipe, *_):
            size = recipe.model["size"]
            return Timed(SMALLEST / speeds[size], rest, SMALLEST, weights[size])

        monkeypatch.setattr(budget, "_measured", timed)
        monkeypatch.setattr(budget, "REPEATS", 10**9)  # the text is no limit

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
    """600 s at 40,000 tokens a second are 24 million, 4,800 for each of 5,000 steps."""
    machine(tiny=40_000, mini=0.1)
    assert chosen(corpus, auto(**BY_CLOCK)) == ("tiny", 4096)
    machine(tiny=10**6, mini=0.1)
    assert chosen(corpus, auto(**BY_CLOCK)) == ("tiny", LARGEST)


def test_what_a_step_costs_besides_its_pieces_counts_less_in_larger_steps():
    """A piece of 1,000 tokens takes a second, the optimizer another one."""
    timed = Timed(piece=1.0, rest=1.0, tokens=1000, weights=1)
    assert timed.speed(1000) == 500
    assert timed.speed(4000) == 800
    assert timed.speed(4000, world=2) == pytest.approx(4000 / 3)


def test_a_size_is_judged_by_the_steps_it_would_take(corpus, machine):
    """Pieces alone at 40,000 tokens a second, and a twentieth of a second each step besides."""
    machine(rest=0.0512, tiny=40_000, mini=0.1)
    said = [""]
    assert chosen(corpus, auto(**BY_CLOCK), said) == ("tiny", 4096)
    assert said[1].startswith("tiny: about 26,667 tokens a second")  # 4,096 in 0.1024 + 0.0512 s


def test_tokens_a_step_that_are_given_stay(corpus, machine):
    machine(tiny=10**6, mini=0.1)
    given = auto(**BY_CLOCK, phases=[{"length": LENGTH, "batch_tokens": 96}])
    assert chosen(corpus, given) == ("tiny", 96)


def test_a_step_can_be_shared_by_the_processes(corpus, machine, monkeypatch):
    machine(tiny=40_000, mini=0.1)
    monkeypatch.setattr(Processes, "total", lambda self, values: [3 * v for v in values])
    phases = [{"share": 0.5, "length": 32}, {"share": 0.5, "length": 64}]
    made = auto(**BY_CLOCK, phases=phases)
    found = choose(made, None, corpus, objective_for, Processes(1, 3), print)
    assert [phase["batch_tokens"] % (3 * 64) for phase in found["phases"]] == [0, 0]


def test_between_the_smallest_sizes_there_is_one_more(corpus, monkeypatch):
    """Six hundred seconds at 1,000 tokens: 12 for a weight, 6 with twice as many weights, 0.6."""
    seen = []

    def timed(recipe, *_):
        network = recipe.network(100)
        seen.append((network.layers, network.width))
        return Timed(1.0, 0.0, 1000, [50_000, 100_000, 1_000_000][len(seen) - 1])

    monkeypatch.setattr(budget, "_measured", timed)
    monkeypatch.setattr(budget, "REPEATS", 10**9)
    made = {**auto(**BY_CLOCK), "model": {"size": "auto"}}
    found = choose(made, None, corpus, objective_for, Processes(), print)
    assert seen == [(2, 128), (4, 128), (4, 256)]
    assert (found["model"]["size"], found["model"]["layers"]) == ("tiny", 4)
    again = choose(made, found, corpus, objective_for, Processes(), print)
    assert again == found


def test_it_says_what_it_measured(corpus, machine):
    machine(tiny=40_000, mini=0.1)
    said = [""]
    chosen(corpus, auto(**BY_CLOCK), said)
    assert said[1].startswith("tiny: about 40,000 tokens a second, 2.4e+03 for each of its 10,000")
    assert said[-1].startswith("chosen: tiny, 4,096 tokens a step; the text is read ")


def test_with_little_text_a_large_network_does_not_pay(corpus, machine, monkeypatch):
    """Of six million tokens in ten minutes those count that the text has, so many times over."""
    machine(tiny=10_000, mini=10_000, small=10_000, medium=1)
    assert chosen(corpus, auto(**BY_CLOCK))[0] == "small"
    monkeypatch.setattr(budget, "REPEATS", NEEDED * 100_000 / corpus.size + 1)
    said = [""]
    assert chosen(corpus, auto(**BY_CLOCK), said)[0] == "mini"
    assert said[-1].endswith("times was never tried. More text would help.")


def test_a_machine_is_really_timed(corpus):
    recipe = budget.build(budget.Recipe, table(phases=[{"length": LENGTH}]), where="recipe")
    torch.manual_seed(7)
    before = torch.get_rng_state()
    timed = budget._measured(recipe, corpus.tokenizer.vocabulary, objective_for, Processes())
    assert torch.equal(torch.get_rng_state(), before)
    assert timed.speed(SMALLEST) > 100
    assert 0 < timed.rest < timed.piece
    assert timed.weights == sum(
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
