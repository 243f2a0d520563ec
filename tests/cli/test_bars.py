"""Progress on a terminal: one bar, below everything else, for as long as its stage lasts."""

import pytest

from tests.cli.screen import EAGER, UNMASK, frames, on_terminal

LEARN = ["vocab", "learn", "corpus.txt", "--size", "60", "--out", "vocabulary"]
BARS = ("counting words", "learning tokens")


def bars(frame):
    """The lines of a screen that are bars."""
    return [line for line in frame if line.startswith(BARS)]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("unread misread reread undo redo misdoing\n" * 5000)
    return path


@pytest.fixture
def learned(corpus, tmp_path):
    return on_terminal(UNMASK, *LEARN, cwd=tmp_path)


def test_every_stage_has_a_bar_while_it_lasts(learned):
    _, seen = learned
    assert {line.split("  ")[0].split(" ━")[0] for frame in seen for line in bars(frame)} == {*BARS}


def test_a_stage_that_has_ended_leaves_no_bar_beside_the_next(learned):
    _, seen = learned
    assert max(len(bars(frame)) for frame in seen) == 1


def test_a_job_that_has_ended_leaves_no_bar_below_its_answer(learned):
    code, seen = learned
    assert code == 0
    assert not bars(seen[-1])
    assert seen[-1][0] == "the text supports a vocabulary of only 34 tokens"
    assert seen[-1][-1] == "written to vocabulary"


def test_an_error_stands_alone_on_the_screen(corpus, tmp_path):
    corpus.write_bytes(corpus.read_bytes() + b"caf\xe9\n")
    code, seen = on_terminal(UNMASK, *LEARN, cwd=tmp_path)
    assert code == 2
    assert any(bars(frame) for frame in seen), "the job was under way"
    assert seen[-1][0].startswith("error: corpus.txt:5001: byte 205003 of the file is not UTF-8")
    assert not bars(seen[-1])


@pytest.mark.parametrize("fault", ["UserError('a fault')", "KeyboardInterrupt", "TypeError"])
def test_the_bar_is_gone_before_the_job_is_said_to_have_failed(tmp_path, fault):
    """Also where the job has not ended its stage."""
    program = f"""{EAGER}import unmask.cli as c
from unmask.system.errors import UserError
def fail(*given, **more):
    p.terminal.progress("counting", "words", 1)
    raise {fault}
c.app = fail
c.main()"""
    code, seen = on_terminal(program, cwd=tmp_path)
    assert code != 0
    assert any(line.startswith("counting") for frame in seen for line in frame)
    assert seen[-1]
    assert not [line for line in seen[-1] if line.startswith("counting")]


def test_lines_and_answers_stand_whole_above_the_bar(tmp_path):
    program = f"{EAGER}t = p.terminal\n"
    program += "t.progress('answering', 'texts', 1, 3)\nt.say('a notice')\nt.answer('an answer')\n"
    program += "t.progress('answering', 'texts', 2, 3, note='loss 1.5', seconds_left=3725)\n"
    program += "t.answer('another')\nt.progress('answering', 'texts', 3, 3)\n"
    _, seen = on_terminal(program, cwd=tmp_path)
    assert seen[-1][:3] == ["a notice", "an answer", "another"]
    assert seen[-1][3].startswith("answering ━━━")
    assert len(seen[-1]) == 4
    shown = [line for frame in seen for line in frame if "2/3" in line]
    assert "1:02:05 loss 1.5" in shown[0]


def test_a_name_is_shown_as_it_is_and_a_long_note_stays_on_the_line(tmp_path):
    program = f"{EAGER}p.terminal.progress('[red]x', 'texts', 1, 3, note='word ' * 60)"
    _, seen = on_terminal(program, cwd=tmp_path)
    (line,) = seen[-1]
    assert line.startswith("[red]x ")
    assert len(line) <= 120


def test_the_screen_of_these_tests_is_one():
    """What was erased or written over is no longer seen."""
    assert frames("one\r\nnext\r\x1b[2K\x1b[31mtwo\x1b[0m\r\n3")[-1] == ["one", "two", "3"]
    assert frames("one\r\nnext\x1b[1A\rO")[-1] == ["One", "next"]
