"""The rate over a run, worked out by hand."""

import pytest

from unmask.system.errors import SettingsError
from unmask.system.settings import validate
from unmask.train.optim.schedules import OptimizerSettings, ScheduleSettings


def schedule(**settings) -> ScheduleSettings:
    return ScheduleSettings(**{"steps": 100, "warmup": 0.0, **settings})


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({}, {0.0: 1.0, 0.25: 0.75, 0.5: 0.5, 1.0: 0.0}),
        ({"warmup": 0.1}, {0.0: 0.0, 0.05: 0.5, 0.1: 1.0, 0.55: 0.5, 0.91: 0.1, 1.0: 0.0}),
        ({"warmup": 1.0}, {0.0: 0.0, 0.5: 0.5, 1.0: 1.0}),
        ({"floor": 0.2}, {0.0: 1.0, 0.5: 0.6, 1.0: 0.2}),
        ({"floor": 0.2, "warmup": 0.5}, {0.25: 0.5, 0.5: 1.0, 0.75: 0.6, 1.0: 0.2}),
        ({"kind": "cosine"}, {0.0: 1.0, 0.25: 0.8535534, 0.5: 0.5, 0.75: 0.1464466, 1.0: 0.0}),
        ({"kind": "cosine", "warmup": 0.2}, {0.1: 0.5, 0.2: 1.0, 0.6: 0.5, 1.0: 0.0}),
        ({"kind": "cosine", "floor": 0.1}, {0.0: 1.0, 0.5: 0.55, 1.0: 0.1}),
        ({"kind": "constant", "warmup": 0.1}, {0.05: 0.5, 0.1: 1.0, 0.9: 1.0, 1.0: 1.0}),
    ],
    ids=str,
)
def test_what_the_rate_is_multiplied_with_by_hand(settings, factors):
    found = {progress: schedule(**settings).factor(progress) for progress in factors}
    assert found == pytest.approx(factors, abs=1e-7)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_the_rate_rises_to_the_end_of_warm_up_and_never_after(kind):
    rates = [schedule(kind=kind, warmup=0.3).factor(i / 100) for i in range(101)]
    assert rates[:31] == sorted(rates[:31])
    assert rates[30:] == sorted(rates[30:], reverse=True)
    assert max(rates) == 1.0


def test_a_step_has_the_rate_of_its_middle_whatever_the_clock_says():
    ten = schedule(steps=10, warmup=0.2)
    found = [ten.factor_at(step, 99.0, 5.0) for step in (0, 1, 2, 9)]
    assert found == pytest.approx([0.25, 0.75, 0.9375, 0.0625])


def test_warm_up_by_the_clock_begins_after_the_set_up_and_above_zero():
    """Two minutes, of which the set-up takes 20 s: warm-up is the first 25 s of the other 100."""
    timed = ScheduleSettings(minutes=2.0, warmup=0.25)
    found = [
        timed.factor_at(step, seconds, 20.0) for step, seconds in enumerate((20, 32.5, 45, 120))
    ]
    assert found == pytest.approx([0.001, 0.5, 1.0, 0.0])


def test_progress_counts_steps_whatever_the_clock_says():
    half = schedule(steps=40)
    assert half.progress(0, 1e6) == 0.0
    assert half.progress(10, 0.0) == 0.25
    assert half.progress(50, 0.0) == 1.0


def test_progress_by_the_clock_counts_no_steps():
    timed = ScheduleSettings(minutes=2.0)
    assert timed.progress(10**6, 0.0) == 0.0
    assert timed.progress(0, 30.0) == 0.25
    assert timed.progress(0, 121.0) == 1.0


@pytest.mark.parametrize(
    ("lengths", "was"),
    [
        ({}, "none of them"),
        ({"steps": 10, "minutes": 1.0}, "steps and minutes"),
        ({"steps": 10, "epochs": 2.0}, "steps and epochs"),
    ],
)
def test_a_run_has_one_length(lengths, was):
    says = f"^x: a run has steps, minutes or epochs; need one of them, got {was}"
    with pytest.raises(SettingsError, match=says):
        validate(ScheduleSettings, lengths, where="x")


@pytest.mark.parametrize(("epochs", "steps"), [(2.0, 15), (0.5, 4), (0.01, 1)])
def test_epochs_are_counted_in_steps(epochs, steps):
    counted = ScheduleSettings(epochs=epochs, warmup=0.3).in_steps(7.5)
    assert counted == ScheduleSettings(steps=steps, warmup=0.3)
    assert counted.in_steps(100.0) == counted


@pytest.mark.parametrize(
    ("kind", "table", "says"),
    [
        (ScheduleSettings, {"steps": 0}, "'steps' is 0; "),
        (ScheduleSettings, {"minutes": 0.0}, "'minutes' is 0.0; "),
        (ScheduleSettings, {"steps": 9, "warmup": 1.1}, "'warmup' is 1.1; "),
        (ScheduleSettings, {"steps": 9, "floor": -0.1}, "'floor' is -0.1; "),
        (ScheduleSettings, {"steps": 9, "kind": "linar"}, "'kind' is 'linar'; "),
        (OptimizerSettings, {"learning_rate": 0.0}, "'learning_rate' is 0.0; "),
        (OptimizerSettings, {"learning_rate": float("nan")}, "'learning_rate' is nan; "),
        (OptimizerSettings, {"beta2": 1.0}, "'beta2' is 1.0; "),
        (OptimizerSettings, {"max_grad_norm": 0.0}, "'max_grad_norm' is 0.0; "),
    ],
)
def test_a_value_that_cannot_be_is_named(kind, table, says):
    with pytest.raises(SettingsError) as error:
        validate(kind, table, where="x")
    assert str(error.value).startswith(f"x: {says}")
