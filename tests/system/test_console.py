"""The console of jobs that are called from Python: silent, unless logging is configured."""

import logging
import subprocess
import sys

import pytest

from unmask.checkpoint.fetch import get
from unmask.data.corpus.prepare import PrepareSettings, prepare
from unmask.system.console import Console


def test_nothing_is_printed_by_default_not_even_warnings():
    """In a process of its own: pytest configures logging."""
    program = "from unmask.system.console import Console as C\nconsole = C()\n"
    program += "console.say('a line')\nconsole.say('warning: a fault')\n"
    program += "console.progress('counting', 'words', 1, 2)\nconsole.finish()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_lines_go_to_logging_and_warnings_with_their_level(caplog):
    caplog.set_level(logging.INFO, "unmask")
    Console().say("100 % of a line")
    Console().say("warning: a fault")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "100 % of a line"),
        ("WARNING", "warning: a fault"),
    ]


def test_preparing_a_corpus_from_python_prints_nothing(tokenizer, tmp_path, capfd):
    (tmp_path / "text.txt").write_text("the cat sat .\nthe dog .\n")
    prepare([str(tmp_path / "text.txt")], tokenizer, tmp_path / "corpus", PrepareSettings())
    prepare([str(tmp_path / "text.txt")], tokenizer, tmp_path / "corpus", PrepareSettings())
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("minilm")
def test_getting_a_model_from_python_prints_nothing(capfd):
    get("minilm")
    assert capfd.readouterr() == ("", "")
