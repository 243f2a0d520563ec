"""Files and pipes hold UTF-8 whatever the locale, here that of a system that uses Latin-1."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import TIMEOUT
from unmask.checkpoint.folder import load_folder

pytestmark = pytest.mark.slow
LOCALE = "en_US.ISO-8859-1"


@pytest.fixture(scope="module")
def latin(tmp_path_factory):
    """Run `unmask` under a locale whose encoding is Latin-1; bytes go in, bytes come out."""
    locales = tmp_path_factory.mktemp("locales")
    localedef = shutil.which("localedef")
    if localedef is None:
        pytest.skip("there is no localedef to make a Latin-1 locale with")
    made = [localedef, "-i", "en_US", "-f", "ISO-8859-1", str(locales / LOCALE)]
    if subprocess.run(made, capture_output=True, check=False).returncode:
        pytest.skip("localedef has no sources here (Debian's package locales)")
    settings = {"LOCPATH": str(locales), "LC_ALL": LOCALE, "PYTHONUTF8": "0"}
    environment = {**os.environ, **settings}
    environment.pop("PYTHONIOENCODING", None)

    def python(*arguments, stdin=b""):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, input=stdin, capture_output=True, check=False, timeout=TIMEOUT, env=environment
        )
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
        return done.stdout

    asked = "import locale; print(locale.getencoding())"
    assert python("-c", asked).strip() == b"ISO-8859-1"
    return lambda *arguments, stdin=b"": python("-m", "unmask", *arguments, stdin=stdin)


@pytest.fixture(scope="module")
def run(latin, tiny, tmp_path_factory):
    """A run whose labels are not ASCII, and the arguments that began it."""
    folder = tmp_path_factory.mktemp("latin")
    rows = [f"the {('cat', 'dog')[i % 2]} sat\t{('kühl', 'heiß')[i % 2]}" for i in range(40)]
    table = "\n".join(["text\tlabel", *rows]) + "\n"
    (folder / "rows.tsv").write_text(table, "utf-8")
    given = ["--train", folder / "rows.tsv", "--dev", folder / "rows.tsv", "--threads", 1]
    given += [
        "--epochs",
        4,
        "--batch-size",
        8,
        "--learning-rate",
        "5e-3",
        "--set",
        "train.precision=fp32",
    ]
    arguments = ["finetune", "classify", tiny, *given, "--out", folder / "run"]
    latin(*arguments)
    return folder / "run", arguments


def test_labels_that_are_not_ascii_stay_readable_in_every_checkpoint(run):
    out, _ = run
    folders = [out / "model", *(out / "checkpoints").iterdir()]
    assert len(folders) > 1
    for folder in folders:
        assert load_folder(folder).network.shape.labels.names == ("heiß", "kühl")
    files = [path for path in out.rglob("*") if path.suffix in (".json", ".jsonl", ".html", ".md")]
    assert any("kühl" in path.read_text("utf-8") for path in files)
    for path in files:
        path.read_text("utf-8")


def test_a_finished_run_is_found_to_be_finished(latin, run):
    _, arguments = run
    assert json.loads(latin(*arguments, "--resume"))["accuracy"] > 0.8


def test_answers_in_a_pipe_are_utf_8(latin, run):
    out, _ = run
    said = latin("predict", out / "model", stdin="the cat sat über\n".encode())
    assert json.loads(said.decode("utf-8"))["labels"] == ["kühl"]


def test_tokens_that_latin_1_cannot_write_are_printed(latin, tiny):
    assert "爱" in latin("tokenize", tiny, stdin="我 爱 你\n".encode()).decode("utf-8")
