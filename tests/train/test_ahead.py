"""Batches made ahead in a thread are the ones that would have been made in their turn."""

import threading

import pytest

from tests.train.conftest import STEPS, state
from tests.train.test_loop import stopped
from unmask.train.ahead import Ahead


class Counting:
    """A source that says what it was asked, and in which thread."""

    def __init__(self):
        self.asked = []

    def pieces(self, cursor, step, progress):
        self.asked.append((cursor["row"], step, progress, threading.current_thread().name))
        return [f"batch {step}"], {"row": cursor["row"] + 10}


def ahead(source):
    return Ahead(source, lambda step: step / 100)


def test_each_step_gets_its_own_batches_and_the_next_are_made_meanwhile():
    source = Counting()
    made = ahead(source)
    cursor = {"row": 0}
    for step in range(3):
        pieces, cursor = made.pieces(cursor, step, step / 100)
        assert pieces == [f"batch {step}"]
        assert cursor == {"row": 10 * step + 10}
    made.thread.shutdown()
    assert [asked[:3] for asked in source.asked] == [(10 * s, s, s / 100) for s in range(4)]
    threads = [asked[3].startswith("batches") for asked in source.asked]
    assert threads == [False, True, True, True]


def test_where_a_run_went_on_elsewhere_what_was_made_is_not_used():
    made = ahead(Counting())
    made.pieces({"row": 0}, 0, 0.0)
    pieces, cursor = made.pieces({"row": 70}, 7, 0.07)
    assert (pieces, cursor) == (["batch 7"], {"row": 80})


def test_an_error_in_the_thread_is_raised_in_its_turn():
    class Failing(Counting):
        def pieces(self, cursor, step, progress):
            if step == 1:
                raise ValueError("no more text")
            return super().pieces(cursor, step, progress)

    made = ahead(Failing())
    _, cursor = made.pieces({"row": 0}, 0, 0.0)
    with pytest.raises(ValueError, match="no more text"):
        made.pieces(cursor, 1, 0.01)


def test_a_run_with_batches_made_ahead_ends_with_the_same_bits(run, whole):
    how = {"train": {"ahead": "on"}, "objective": {"name": "mlm"}}
    assert state(run("ahead", **how), STEPS) == state(whole, STEPS)
    stopped(run, "again", 5, **how)
    assert state(run("again", resume=True, **how), STEPS) == state(whole, STEPS)
