"""The size that is chosen: the largest that can see enough tokens in the time there is."""

import pytest
import torch

from tests.cli.asked import recipe_of
from tests.train.conftest import LENGTH, Heard, recipe, table
from unmask.jobs import budget
from unmask.jobs.budget import (
    MAX_BATCH_TOKENS,
    MIN_BATCH_TOKENS,
    MIN_TOKENS_PER_WEIGHT,
    StepTiming,
    choose_size,
)
from unmask.jobs.pretrain import Pretrain
from unmask.system.distributed import Processes
from unmask.system.errors import SettingsError
from unmask.system.settings import read_toml
from unmask.system.signals import StopRequest
from unmask.train.compose import compose
from unmask.train.run_folder import RunFolder
from unmask.train.site import Site

BY_CLOCK = {"minutes": 10.0, "warmup": 0.1}


def auto_table(schedule=None, phases=None, **changes):
    """A run by the clock whose size is open, and whose phases are too unless they are given."""
    made = table(**{"model": {"size": "auto"}, **changes})
    del made["schedule"]["steps"]
    made["schedule"] |= {**(schedule or BY_CLOCK), "phases": phases or [{"length": LENGTH}]}
    return made


def auto(**changes):
    return compose(Pretrain.scope, auto_table(**changes))


@pytest.fixture
def site(tmp_path):
    """Where a run would be."""

    def make(said=None, processes=Processes(), stored=None):
        console = Heard(said)
        folder = RunFolder(tmp_path, console, writes=processes.first)
        return Site(processes, folder, console, StopRequest(), 0.0, stored)

    return make


@pytest.fixture
def machine(monkeypatch):
    """A machine of known speed: tokens a second by size; each size has ten times the weights."""

    def of(rest=0.0, **speeds):
        monkeypatch.setattr(budget, "CANDIDATES", {size: {"size": size} for size in budget.SIZES})
        weights = {size: 10**4 * 10**i for i, size in enumerate(budget.SIZES)}

        def timed(recipe, *_):
            size = recipe.model.size
            return StepTiming(
                MIN_BATCH_TOKENS / speeds[size], rest, MIN_BATCH_TOKENS, weights[size]
            )

        monkeypatch.setattr(budget, "_time_step", timed)
        monkeypatch.setattr(budget, "MAX_USEFUL_PASSES", 10**9)  # the text is no limit

    return of


@pytest.fixture
def chosen(corpus, site):
    """The size and the tokens of a step that are chosen."""

    def of(made, said=None):
        found = choose_size(made, corpus, site(said))
        return found.model.size, found.schedule.phases[0].batch_tokens

    return of


def test_a_size_that_is_given_stays(corpus, site):
    made = recipe()
    assert choose_size(made, corpus, site()) is made


def test_without_a_clock_nothing_can_be_chosen():
    with pytest.raises(SettingsError, match=r'size is "auto".*Set it \(--minutes\), or'):
        recipe(model={"size": "auto"})


def test_the_largest_that_sees_enough_tokens_for_its_weights(chosen, machine):
    """Ten minutes are 600 s; the sizes have 10,000, 100,000 and 1,000,000 weights."""
    enough = MIN_TOKENS_PER_WEIGHT * 100_000 / 600
    machine(tiny=10_000, mini=1.01 * enough, small=100)
    assert chosen(auto())[0] == "mini"
    machine(tiny=10_000, mini=0.99 * enough)
    assert chosen(auto())[0] == "tiny"


def test_with_almost_no_time_it_is_the_smallest(chosen, machine):
    machine(tiny=0.001, mini=0.001)
    assert chosen(auto()) == ("tiny", MIN_BATCH_TOKENS)


def test_a_longer_run_has_larger_steps(chosen, machine):
    """600 s at 40,000 tokens a second are 24 million, 4,800 for each of 5,000 steps."""
    machine(tiny=40_000, mini=0.1)
    assert chosen(auto()) == ("tiny", 4096)
    machine(tiny=10**6, mini=0.1)
    assert chosen(auto()) == ("tiny", MAX_BATCH_TOKENS)


def test_what_a_step_costs_besides_its_pieces_counts_less_in_larger_steps():
    """A piece of 1,000 tokens takes a second, the optimizer another one."""
    timed = StepTiming(micro_batch_seconds=1.0, optimizer_seconds=1.0, tokens=1000, weights=1)
    assert timed.speed(1000) == 500
    assert timed.speed(4000) == 800
    assert timed.speed(4000, world=2) == pytest.approx(4000 / 3)


def test_a_size_is_judged_by_the_steps_it_would_take(chosen, machine):
    """Pieces alone at 40,000 tokens a second, and a twentieth of a second each step besides."""
    machine(rest=0.0512, tiny=40_000, mini=0.1)
    said = []
    assert chosen(auto(), said) == ("tiny", 4096)
    assert said[0].startswith("tiny: about 26,667 tokens per second")  # 4,096 in 0.1024 + 0.0512 s


def test_tokens_a_step_that_are_given_stay(chosen, machine):
    machine(tiny=10**6, mini=0.1)
    given = auto(phases=[{"length": LENGTH, "batch_tokens": 96}])
    assert chosen(given) == ("tiny", 96)


def test_a_step_can_be_shared_by_the_processes(corpus, site, machine, monkeypatch):
    machine(tiny=40_000, mini=0.1)
    monkeypatch.setattr(Processes, "total", lambda self, values: [3 * v for v in values])
    phases = [{"share": 0.5, "length": 32}, {"share": 0.5, "length": 64}]
    found = choose_size(auto(phases=phases), corpus, site(processes=Processes(1, 3)))
    assert [phase.batch_tokens % (3 * 64) for phase in found.schedule.phases] == [0, 0]


def test_between_the_smallest_sizes_there_is_one_more(corpus, site, monkeypatch):
    """Six hundred seconds at 1,000 tokens: 12 for a weight, 6 with twice as many weights, 0.6."""
    seen = []

    def timed(recipe, *_):
        network = recipe.model.config(100)
        seen.append((network.layers, network.width))
        return StepTiming(1.0, 0.0, 1000, [50_000, 100_000, 1_000_000][len(seen) - 1])

    monkeypatch.setattr(budget, "_time_step", timed)
    monkeypatch.setattr(budget, "MAX_USEFUL_PASSES", 10**9)
    made = compose(Pretrain.scope, {**auto_table(), "model": {"size": "auto"}})
    found = choose_size(made, corpus, site())
    assert seen == [(2, 128), (4, 128), (4, 256)]
    assert (found.model.size, found.model.layers) == ("tiny", 4)
    assert choose_size(made, corpus, site(stored=found)) == found
    assert len(seen) == 3, "what was chosen is not measured again"


def test_it_says_what_it_measured(chosen, machine):
    machine(tiny=40_000, mini=0.1)
    said = []
    chosen(auto(), said)
    says = "tiny: about 40,000 tokens per second, which is 2.4e+03 in 10 minutes for each"
    assert said[0].startswith(says)
    assert said[-1].startswith("chosen: tiny, batch size 4,096 tokens; training makes ")


def test_with_little_text_a_large_network_does_not_pay(corpus, chosen, machine, monkeypatch):
    """Of six million tokens in ten minutes those count that the text has, so many times over."""
    machine(tiny=10_000, mini=10_000, small=10_000, medium=1)
    assert chosen(auto())[0] == "small"
    monkeypatch.setattr(
        budget, "MAX_USEFUL_PASSES", MIN_TOKENS_PER_WEIGHT * 100_000 / corpus.size + 1
    )
    said = []
    assert chosen(auto(), said)[0] == "mini"
    assert said[-1].endswith("passes over a corpus have not been tested. More text would help.")


@pytest.mark.parametrize("init_output_bias", [False, True])
def test_a_machine_is_really_timed(corpus, init_output_bias):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    objective = {"name": "mlm", "init_output_bias": init_output_bias}
    timed = budget._time_step(recipe(objective=objective), corpus.tokenizer.vocabulary, Processes())
    assert torch.equal(torch.get_rng_state(), before)
    assert timed.speed(MIN_BATCH_TOKENS) > 100
    assert 0 < timed.optimizer_seconds < timed.micro_batch_seconds
    assert timed.weights == sum(
        [3 * 32 * 32 + 3 * 32, 32 * 32 + 32, 2 * 32 * 64 + 64 + 32, 4 * 32]
    )  # qkv, output, feed-forward, two norms of one block of width 32


def test_a_run_that_is_resumed_keeps_what_it_chose(run, machine):
    how = {"recipe": auto_table({"minutes": 0.01}, evaluate={"times": 1})}
    machine(tiny=10**9, mini=0.1)
    folder = run("auto", **how)
    first = read_toml(folder / "recipe.toml")
    assert first["model"]["size"] == "tiny"
    assert first["schedule"]["phases"][0]["batch_tokens"] == MAX_BATCH_TOKENS
    machine(tiny=10**9, mini=10**9, small=0.1)
    run("auto", resume=True, **how)
    assert read_toml(folder / "recipe.toml") == first


def test_a_resumed_run_keeps_what_it_chose_for_each_phase(corpus, site, machine):
    machine(tiny=40_000, mini=0.1)
    phases = [{"share": 0.5, "length": 32, "batch_tokens": 96}, {"share": 0.5, "length": 64}]
    made = auto(phases=phases)
    found = choose_size(made, corpus, site())
    assert [phase.batch_tokens for phase in found.schedule.phases] == [96, 4096]
    assert choose_size(made, corpus, site(stored=found)) == found


@pytest.fixture
def asked(corpus, tmp_path):
    """The recipe that `unmask pretrain CORPUS` and flags would train by."""
    return lambda *flags: recipe_of("pretrain", corpus.path, "--out", tmp_path / "run", *flags)


SPEEDS = {"tiny": 40_000, "mini": 10_000, "small": 1.0}  # of these, mini is chosen


def test_the_size_and_the_batch_are_chosen_unless_they_are_given(asked, chosen, machine):
    """Ten minutes of 40,000 tokens a second are 24 million: about 5,000 steps of 4,096."""
    machine(**SPEEDS)
    assert chosen(asked("--minutes", 10)) == ("mini", MIN_BATCH_TOKENS)
    assert chosen(asked("--minutes", 10, "--size", "auto")) == ("mini", MIN_BATCH_TOKENS)
    assert chosen(asked("--minutes", 10, "--size", "mini")) == ("mini", MIN_BATCH_TOKENS)
    assert chosen(asked("--minutes", 10, "--size", "tiny")) == ("tiny", 4096)
    assert chosen(asked("--minutes", 10, "--batch-tokens", 2560)) == ("mini", 2560)
    both = asked("--minutes", 10, "--size", "tiny", "--batch-tokens", 2560)
    assert chosen(both) == ("tiny", 2560)
    assert chosen(asked("--minutes", 10, "--max-length", 64, "--size", "tiny")) == ("tiny", 4096)
    assert chosen(asked("--set", "schedule.minutes=10", "--size", "tiny")) == ("tiny", 4096)


@pytest.mark.parametrize("size", ["tiny", "mini"])
@pytest.mark.parametrize("minutes", [1, 10, 100])
def test_a_given_size_has_the_batch_that_it_would_have_been_chosen_with(
    asked, chosen, machine, monkeypatch, size, minutes
):
    machine(**{**SPEEDS, "tiny": 10**6, "mini": 10**6})
    monkeypatch.setattr(budget, "MIN_TOKENS_PER_WEIGHT", 0.0 if size == "mini" else 1e12)
    monkeypatch.setattr(budget, "CANDIDATES", {name: {"size": name} for name in ("tiny", "mini")})
    alone = chosen(asked("--minutes", minutes))
    assert alone[0] == size
    assert chosen(asked("--minutes", minutes, "--size", size)) == alone


def test_every_phase_of_a_given_size_has_a_batch(asked, corpus, site, machine):
    machine(**SPEEDS)
    found = choose_size(asked("--minutes", 10, "--size", "tiny"), corpus, site())
    assert [phase.length for phase in found.schedule.phases] == [64, 128]
    assert [phase.batch_tokens for phase in found.schedule.phases] == [4096, 4096]


def test_a_run_by_steps_is_not_timed(asked, corpus, site, monkeypatch):
    def timed(*_):
        raise AssertionError("timed")

    monkeypatch.setattr(budget, "_time_step", timed)
    made = asked("--steps", 10, "--size", "tiny")
    assert choose_size(made, corpus, site()) is made
    assert [phase.batch_tokens for phase in made.schedule.phases] == [32_768, 131_072]


def test_what_is_chosen_for_a_given_size_is_what_the_run_has(run, machine):
    machine(tiny=10**9)
    made = auto_table({"minutes": 0.01}, model={"size": "tiny"}, evaluate={"times": 0})
    folder = run("given", recipe=made)
    stored = read_toml(folder / "recipe.toml")
    assert stored["schedule"]["phases"][0]["batch_tokens"] == MAX_BATCH_TOKENS
    run("given", recipe=made, resume=True)
    assert read_toml(folder / "recipe.toml") == stored
