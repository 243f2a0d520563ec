"""Standard streams that are closed, full or without a reader: jobs end as they would have."""

import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from tests.cli.screen import UNMASK
from unmask.checkpoint.integrity import verify

LEARN = ["vocab", "learn", "corpus.txt", "--size", "60", "--out", "vocabulary"]
LONG = "the cat sat on the mat\n" + "dog " * 40 + "\n"  # so that `embed` says what it has cut


REDIRECTED = {"closed": ">&-", "full": ">/dev/full"}


@pytest.fixture
def unread():
    """The end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def run(tmp_path, unread):
    """Run `unmask` in a process of its own, with standard streams of these kinds."""

    def run(*arguments, out="open", err="open", unbuffered=False):
        shell = f'exec "$@" 1{REDIRECTED.get(out, ">&1")} 2{REDIRECTED.get(err, ">&2")}'
        python = [sys.executable, *(["-u"] if unbuffered else []), "-c", UNMASK]
        return subprocess.run(
            ["sh", "-c", shell, "sh", *python, *map(str, arguments)],
            stdout=unread if out == "without a reader" else subprocess.PIPE,
            stderr=unread if err == "without a reader" else subprocess.PIPE,
            text=True,
            check=False,
            cwd=tmp_path,
        )

    return run


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("unread misread reread undo redo misdoing\n" * 5000)
    return path


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("kind", ["closed", "full", "without a reader"])
def test_a_job_outlives_its_standard_error(run, tmp_path, kind):
    done = run(*LEARN, err=kind)
    assert done.returncode == 0
    assert "written to vocabulary" in done.stdout
    assert verify(tmp_path / "vocabulary") is not None


@pytest.mark.parametrize("kind", ["closed", "full", "without a reader"])
def test_vectors_are_written_in_full_without_standard_error(run, tiny, tmp_path, kind):
    (tmp_path / "long.txt").write_text(LONG)
    done = run("embed", tiny, "long.txt", "--out", "vectors.npy", err=kind)
    assert done.returncode == 0
    assert np.load(tmp_path / "vectors.npy").shape == (2, 16)


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("kind", ["closed", "full", "without a reader"])
def test_work_that_is_in_files_is_done_whatever_becomes_of_standard_output(
    run, tmp_path, kind, unbuffered
):
    done = run(*LEARN, out=kind, unbuffered=unbuffered)
    assert done.returncode == 0
    assert "error" not in done.stderr
    assert verify(tmp_path / "vocabulary") is not None


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("kind", ["closed", "full"])
def test_with_no_stream_at_all_the_work_is_done(run, tmp_path, kind):
    done = run(*LEARN, out=kind, err=kind)
    assert done.returncode == 0
    assert verify(tmp_path / "vocabulary") is not None


@pytest.mark.parametrize("kind", ["closed", "full", "without a reader"])
def test_an_error_that_cannot_be_printed_still_sets_the_exit_code(run, kind):
    mistakes = [["embed", "nowhere", "-"], ["tokenize", "nowhere", "--trace", "a"], ["--poool"]]
    assert [run(*mistake, err=kind).returncode for mistake in mistakes] == [2, 2, 2]


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    ("kind", "code", "says"),
    [
        ("full", 1, "error: standard output: No space left on device.\n"),
        ("closed", 1, "error: standard output: Bad file descriptor.\n"),
        ("without a reader", 0, ""),
    ],
)
def test_an_answer_that_gets_lost_is_an_error_unless_its_reader_had_enough(
    run, tiny, kind, code, says, unbuffered
):
    done = run("tokenize", tiny, "the cat", out=kind, unbuffered=unbuffered)
    assert (done.returncode, done.stderr) == (code, says)


def test_a_long_answer_ends_when_its_reader_has_had_enough(tiny):
    """As with `| head -n 1`, in mid-job; `yes` alone would never end."""
    command = [sys.executable, "-m", "unmask", "tokenize", str(tiny)]
    with (
        subprocess.Popen(["yes", "the cat"], stdout=subprocess.PIPE) as endless,
        subprocess.Popen(
            command, stdin=endless.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        endless.stdout.close()
        assert process.stdout.readline().split() == [b"[CLS]", b"2", b"0"]
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_a_closed_standard_error_does_not_let_libraries_write_into_files(tmp_path):
    """The next file that is opened would get the free number, and all that is printed there."""
    program = "import os, sys\nfrom unmask.cli.streams import guard_streams\nguard_streams()\n"
    program += "numbers = [open('data', 'w').fileno() for _ in range(2)]\n"
    program += "open('numbers', 'w').write(str(min(numbers)))\n"
    command = ["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", sys.executable, "-c", program]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert int((tmp_path / "numbers").read_text()) > 2


def test_without_standard_input_there_is_no_text(tiny):
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "unmask"]
    done = subprocess.run([*command, "tokenize", str(tiny)], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"standard input: contains no text" in done.stderr


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("output", ["a file", "the terminal"])
def test_a_job_outlives_its_terminal(tmp_path, output):
    """As when a connection breaks: the bar is drawn, then every write fails."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", UNMASK, *LEARN],
        cwd=tmp_path,
        stdout=terminal if output == "the terminal" else subprocess.DEVNULL,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(terminal)
    assert b"counting words" in os.read(screen, 4096)
    os.close(screen)
    assert process.wait(60) == 0
    assert verify(tmp_path / "vocabulary") is not None


def test_answers_go_to_a_file_while_the_bar_is_on_a_terminal(tiny, tmp_path):
    """`unmask embed ... > vectors.jsonl`, as it is typed."""
    (tmp_path / "texts.txt").write_text("the cat\na dog\n")
    screen, terminal = pty.openpty()
    with (tmp_path / "vectors.jsonl").open("w") as file:
        command = [sys.executable, "-c", UNMASK, "embed", str(tiny), "texts.txt"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            stdout=file,
            stderr=terminal,
            check=False,
            env={**os.environ, "TERM": "xterm"},
        )
    os.close(terminal)
    os.close(screen)
    assert done.returncode == 0
    lines = (tmp_path / "vectors.jsonl").read_text().splitlines()
    assert [len(json.loads(line)) for line in lines] == [16, 16]
