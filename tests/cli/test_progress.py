"""Progress where there is no terminal: a plain line now and then."""

import pytest

from unmask.cli import progress as module
from unmask.cli.progress import Terminal, progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_short_job_says_nothing(clock, capsys):
    with progress("counting", "words") as job:
        job.advance(10)
        clock[0] += 1.9
        job.advance(10)
    assert capsys.readouterr().err == ""


def test_a_long_job_says_how_far_how_fast_and_how_long(clock, capsys):
    with progress("counting", "words", total=1000) as job:
        for _ in range(8):
            clock[0] += 1
            job.advance(50)
    assert capsys.readouterr().err.splitlines() == [
        "counting: 100 of 1,000 words, 50 a second, 18 s left",
        "counting: 350 of 1,000 words, 50 a second, 13 s left",
    ]


def test_a_new_stage_counts_from_where_it_began(clock, capsys):
    with progress("counting", "words") as job:
        job.advance(10)
        clock[0] += 10
        module.terminal.progress("learning", "tokens", 100, 1000)
        clock[0] += 2
        module.terminal.progress("learning", "tokens", 120, 1000)
    assert capsys.readouterr().err == "learning: 120 of 1,000 tokens, 10 a second, 88 s left\n"


def test_a_job_that_knows_its_end_is_not_estimated(clock, capsys):
    terminal = Terminal()
    terminal.progress("training", "steps", 0, 1000)
    clock[0] += 10
    terminal.progress("training", "steps", 10, 1000, note="loss 2.1", seconds_left=50.0)
    said = "training: 10 of 1,000 steps, 1.00 a second, 50 s left; loss 2.1\n"
    assert capsys.readouterr().err == said


def test_lines_and_progress_stand_on_standard_error_in_their_order(clock, capsys):
    terminal = Terminal()
    terminal.progress("counting", "words", 0)
    terminal.say("text.txt: each line is a sentence")
    clock[0] += 4
    terminal.progress("counting", "words", 8)
    terminal.finish()
    terminal.say("done")
    assert capsys.readouterr() == (
        "",
        "text.txt: each line is a sentence\ncounting: 8 words, 2.00 a second\ndone\n",
    )
