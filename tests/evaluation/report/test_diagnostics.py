"""Warnings: each known way to go wrong is recognised in a made-up history, a good one is silent."""

import pytest

from unmask.evaluation.held_out import HeldOutText
from unmask.evaluation.report import diagnostics as watching
from unmask.evaluation.report.diagnostics import PLATEAU, WINDOW, Diagnostics
from unmask.train.steps.base import StepResult

ASKS = {"mlm": "masked tokens", "pair": "sentence pairs"}
UNIGRAM = 6.0  # the loss of a guess by word frequency


def stepped(losses, *, norm=1.0) -> Diagnostics:
    said = []
    watch = Diagnostics(said.append, ASKS)
    for step, loss in enumerate(losses, start=1):
        watch.stepped(step, StepResult({"mlm": loss}, {}, norm, 100))
    assert said == watch.warnings
    return watch


def evaluated(losses, pairs=None) -> Diagnostics:
    """Evaluations every hundred steps with these losses, and these next-sentence accuracies."""
    said = []
    watch = Diagnostics(said.append, ASKS)
    for number, loss in enumerate(losses):
        scores = {"mlm": loss, "mlm_accuracy": 0.1}
        if pairs is not None:
            scores |= {"pair": 0.7, "pair_accuracy": pairs[number]}
        watch.evaluated(100 * number, scores, UNIGRAM)
    assert said == watch.warnings
    return watch


def kinds(watch) -> list[str]:
    return [line.partition("[")[2].partition("]")[0] for line in watch.warnings]


def test_a_good_run_is_silent():
    falling = [9.0 - 0.01 * step + 0.2 * (step % 7) for step in range(600)]
    assert stepped(falling).warnings == []
    losses = [9.0, 7.0, 6.2, 5.6, 5.1, 4.7, 4.4, 4.2, 4.05, 3.95, 3.9, 3.87, 3.86, 3.86, 3.86]
    pairs = [0.5, 0.5, 0.5, 0.52, 0.55, 0.6, 0.65, 0.7, 0.73, 0.75, 0.77, 0.78, 0.79, 0.79, 0.79]
    assert evaluated(losses, pairs).warnings == []
    assert evaluated(losses).warnings == []


def test_a_loss_that_rises_by_more_than_one_is_named_with_both_numbers():
    watch = stepped([5.0] * WINDOW + [7.0] * WINDOW)
    assert kinds(watch) == ["diverged"]
    (line,) = watch.warnings
    assert line.startswith("step 76: ")  # 26 of 50 above: a mean of 6.04
    assert "risen from 5.00 to 6.04: training diverges" in line
    assert "lower optimizer.learning_rate or a longer schedule.warmup" in line


@pytest.mark.parametrize(
    "losses",
    [
        [5.0] * WINDOW + [5.9] * WINDOW,  # less than one
        [5.0] * WINDOW + [30.0] + [5.0] * WINDOW,  # one bad step
        [*range(WINDOW - 1, 0, -1)],  # too short to tell
    ],
    ids=["a little", "once", "short"],
)
def test_a_loss_that_goes_up_a_little_or_once_is_no_divergence(losses):
    assert stepped(losses).warnings == []


def test_a_gradient_of_nothing_is_named():
    assert kinds(stepped([5.0] * WINDOW, norm=0.0)) == ["still"]
    assert stepped([5.0] * (WINDOW - 1), norm=0.0).warnings == []


def test_steps_that_were_left_out_are_not_looked_at():
    nan = float("nan")
    assert stepped([nan] * 200, norm=nan).warnings == []


def test_a_loss_that_stays_at_word_frequencies_is_named():
    watch = evaluated([9.0, 6.5, 6.02, 6.01, 6.0, 6.0, 5.99])
    assert kinds(watch) == ["unigram"]
    (line,) = watch.warnings
    assert (
        "stays at 6.00, while a unigram model, which knows only token frequencies, has 6.00" in line
    )
    assert "batches too small" in line


@pytest.mark.parametrize(
    "losses",
    [
        [9.0, 6.0, 5.0, 4.5, 4.5, 4.5, 4.5],  # a plateau, but far below
        [9.0, 8.0, 7.0, 6.5, 6.3, 6.1],  # near it, but moving
        [6.0] * PLATEAU,  # too early to tell
    ],
    ids=["below", "moving", "early"],
)
def test_a_plateau_elsewhere_and_a_passage_there_are_not(losses):
    assert evaluated(losses).warnings == []


def test_a_held_out_loss_that_rises_is_named_with_its_best():
    watch = evaluated([9.0, 5.0, 4.0, 3.5, 3.6, 3.8, 4.0, 4.2])
    assert kinds(watch) == ["overfit"]
    assert "held-out loss was 3.50 and is 4.20" in watch.warnings[0]
    assert "the model is overfitting. Use more text" in watch.warnings[0]


def test_pairs_at_chance_while_tokens_are_learned_are_named():
    losses = [9.0, 7.0, 6.0, 5.5, 5.0, 4.6, 4.3, 4.1, 4.0, 3.9]
    watch = evaluated(losses, [0.5, 0.51, 0.49, 0.5, 0.52, 0.5, 0.5, 0.51, 0.5, 0.5])
    assert kinds(watch) == ["sentence pairs"]
    assert (
        "accuracy on sentence pairs stays at chance. Are documents separated by blank"
        in watch.warnings[0]
    )


def test_pairs_at_chance_while_nothing_is_learned_yet_are_not():
    losses = [9.0, 8.5, 8.0, 7.5, 7.2, 7.0, 6.8, 6.6, 6.4, 6.3]
    assert evaluated(losses, [0.5] * 10).warnings == []


def test_pairs_that_something_gives_away_are_named():
    losses = [9.0, 8.5, 8.0, 7.5, 7.2, 7.0, 6.8, 6.6, 6.4, 6.2]
    watch = evaluated(losses, [0.5, 0.7, *[0.95] * 8])
    assert kinds(watch) == ["cue"]
    assert (
        "the accuracy on sentence pairs is 95%, while tokens are not learned" in watch.warnings[0]
    )


def test_each_warning_is_said_once():
    watch = stepped([5.0] * WINDOW + [9.0] * 300)
    assert kinds(watch) == ["diverged"]
    watch = evaluated([6.0] * 30)
    assert kinds(watch) == ["unigram"]


def test_a_run_that_is_resumed_has_the_warnings_of_its_log_and_gives_none_twice():
    before = stepped([5.0] * WINDOW + [7.0] * WINDOW)
    log = ["2026-01-01 10:00:00  step 70: held-out loss 5.0", "2026-01-01 10:00:01  resuming"]
    log += [f"2026-01-01 10:00:02  {line}" for line in before.warnings]
    said = []
    watch = Diagnostics(said.append, ASKS)
    watch.restore([], [*log, log[-1]])
    assert watch.warnings == before.warnings
    for step, loss in enumerate([5.0] * WINDOW + [7.0] * WINDOW, start=1):
        watch.stepped(step, StepResult({"mlm": loss}, {}, 1.0, 100))
    assert (said, watch.warnings) == ([], before.warnings)


def test_the_report_of_a_run_that_is_resumed_has_its_warnings(run, monkeypatch):
    monkeypatch.setattr(watching, "WINDOW", 1)
    monkeypatch.setattr(watching, "RISE", -1.0)  # every loss has risen

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(HeldOutText, "saved", stop)
        run(loop={"save_steps": 4})
    said = []
    folder = run(loop={"save_steps": 4}, resume=True, said=said)
    assert not [line for line in said if "[diverged]" in line]
    assert (folder / "log.txt").read_text().count("[diverged]") == 1
    assert "step 1: warning [diverged]" in (folder / "report.html").read_text()
