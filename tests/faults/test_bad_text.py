"""Bad text given to `unmask prepare`: errors name its place and what to do, and nothing is lost.

Every case is prepared twice, beside a good file. By default it is refused in one line. With
`--on-bad skip` all that is good is used, what is not is written down, and the counts add up.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults.cases_text import BAD, LONG_LINES, ODD, PATHS
from unmask.cli import main
from unmask.data.corpus.corpus import open_corpus
from unmask.data.corpus.layout import MANIFEST, SIDE_FILE
from unmask.text.tokenizer_files import tokenizer_files

GOOD = ["the cat sat on the mat .", "a dog"]  # of the file beside the bad one
WHAT_TO_DO = "Check|Choose|Convert|Download|Fix|Name|Rename|Put|; need|Is it|List|Give|did you"
SKIP = "Or skip such records with --on-bad skip."


@pytest.fixture(scope="module")
def vocabulary_folder(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("vocabulary")
    for name, contents in tokenizer_files(tokenizer).items():
        (folder / name).write_text(contents)
    return folder


@pytest.fixture
def run(vocabulary_folder, tmp_path, monkeypatch, capsys):
    """Run `unmask prepare` in this process: its exit code, and what it says on standard error."""

    def prepare(*arguments: object, tokenizer=vocabulary_folder, out=tmp_path / "corpus"):
        command = ["unmask", "prepare", *arguments, "--workers", 1]
        command += ["--tokenizer", tokenizer, "--out", out]
        monkeypatch.setattr(sys, "argv", [str(part) for part in command])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().err

    return prepare


@pytest.fixture
def good(tmp_path):
    """A file beside the bad one that has nothing wrong."""
    path = tmp_path / "good.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in GOOD))
    return path


def refused(code: int, said: str) -> str:
    """The one line of a refusal."""
    assert code == 2, said
    (line,) = said.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def sentences(corpus) -> list[list[int]]:
    starts = corpus.sentences
    pairs = zip(starts[:-1], starts[1:], strict=True)
    return [corpus.tokens(start, end - start).tolist() for start, end in pairs]


def test_there_are_cases_enough():
    assert len(BAD) + len(ODD) + len(PATHS) >= 80


@pytest.mark.parametrize("name", BAD)
def test_bad_text_is_refused_with_its_place_the_reason_and_what_to_do(run, good, tmp_path, name):
    case = BAD[name]
    path = tmp_path / case.name
    path.write_bytes(case.raw)
    message = refused(*run(good, path))
    assert re.match(f"{re.escape(str(path))}{case.place}: ", message), message
    assert re.search(case.says, message), message
    assert re.search(WHAT_TO_DO, message), message
    assert message.endswith(SKIP)
    assert len(message.removeprefix(str(path))) < 400
    assert not (tmp_path / "corpus" / MANIFEST).exists()


@pytest.mark.parametrize("name", BAD)
def test_bad_text_may_be_skipped_and_nothing_else_is_lost(run, good, tmp_path, tokenizer, name):
    case = BAD[name]
    path = tmp_path / case.name
    path.write_bytes(case.raw)
    code, said = run(path, good, "--on-bad", "skip")
    assert code == 0, said
    folder = tmp_path / "corpus"
    corpus = open_corpus(folder)
    records = corpus.manifest["records"]
    entries = [json.loads(line) for line in (folder / SIDE_FILE).read_text().splitlines()]

    assert re.match(f"{re.escape(str(path))}{case.place}: ", entries[0]["why"])
    assert re.search(case.says, entries[0]["why"])
    assert len(entries) == records["skipped"]
    assert records["read"] == records["used"] + records["skipped"] + records["blank"]
    assert records["blank"] == case.blank
    if case.bad is not None:
        assert records["skipped"] == case.bad
    used = case.used
    if used is None:
        used = LONG_LINES[: records["used"] - len(GOOD)]
        assert len(used) > 1000
    assert records["used"] == len(used) + len(GOOD)
    assert sentences(corpus) == tokenizer.ids([*used, *GOOD])


@pytest.mark.parametrize("name", ODD)
def test_text_that_only_looks_odd_is_read_whole(run, tmp_path, tokenizer, name):
    file, raw, expected = ODD[name]
    (tmp_path / file).write_bytes(raw)
    code, said = run(tmp_path / file)
    assert code == 0, said
    corpus = open_corpus(tmp_path / "corpus")
    assert sentences(corpus) == tokenizer.ids(expected)
    assert corpus.manifest["records"]["skipped"] == 0


@pytest.mark.parametrize("skip", [(), ("--on-bad", "skip")], ids=["stop", "skip"])
@pytest.mark.parametrize("name", PATHS)
def test_a_wrong_path_or_column_is_refused_even_if_bad_records_are_skipped(
    run, good, tmp_path, name, skip
):
    file, make, says = PATHS[name]
    make(tmp_path / file)
    message = refused(*run(good, tmp_path / file, *skip))
    assert re.match(rf"{re.escape(str(tmp_path / file))}(:1)?: ", message), message
    assert says in message


def test_an_empty_table_is_refused(run, good, tmp_path):
    (tmp_path / "bad.csv").touch()
    assert refused(*run(good, tmp_path / "bad.csv")).startswith(
        f"{tmp_path}/bad.csv: the file is empty; need"
    )


def test_an_empty_table_may_be_skipped(run, good, tmp_path):
    (tmp_path / "bad.csv").touch()
    code, said = run(good, tmp_path / "bad.csv", "--on-bad", "skip")
    assert code == 0, said


def test_a_file_whose_only_record_is_bad_has_one_bad_record(run, good, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"\xff\n")
    run(good, tmp_path / "bad.txt", "--on-bad", "skip")
    assert open_corpus(tmp_path / "corpus").manifest["records"]["read"] == len(GOOD) + 1


def test_a_file_that_may_not_be_read_is_refused(run, good, vocabulary_folder):
    run(good)  # all that is imported on the way is there
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path, vocabulary = Path(folder) / "a.txt", Path(folder) / "vocabulary"
        path.write_text("the cat\n")
        path.chmod(0)
        shutil.copytree(vocabulary_folder, vocabulary).chmod(0o755)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)  # root reads everything; nobody does not
        try:
            code, said = run(path, tokenizer=vocabulary, out=Path(folder) / "corpus")
        finally:
            os.seteuid(before)
    says = f"{path}: cannot be read (Permission denied). Check the permissions of the file."
    assert refused(code, said) == says


def test_plain_text_that_is_asked_for_a_column_is_refused(run, tmp_path):
    (tmp_path / "a.txt").write_text("the cat\n")
    message = refused(*run(tmp_path / "a.txt", "--column", "body"))
    assert message.startswith(f"{tmp_path / 'a.txt'}: plain text has no column 'body'. Omit")


def test_input_in_which_everything_is_bad_is_refused(run, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\n\xfe\n")
    code, said = run(tmp_path / "a.txt", "--on-bad", "skip")
    message = refused(code, said.splitlines()[-1])  # before it, how the file was understood
    assert message.endswith("the input contains no tokens. Is it the right file?")


def test_a_text_that_is_mended_where_it_was_bad_is_gone_on_with(run, good, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"the c\xff\n")
    refused(*run(good, path))
    path.write_bytes(b"the cat\n"[: path.stat().st_size])  # fixed in place: as long as before
    code, said = run(good, path)
    assert code == 0, said
    assert len(sentences(open_corpus(tmp_path / "corpus"))) == len(GOOD) + 1


@pytest.mark.parametrize(
    ("ending", "before", "after"),
    [(".txt", b"", b"\n"), (".jsonl", b'{"text": "', b'"}\n'), (".csv", b"text\n", b"\n")],
)
def test_a_line_of_a_hundred_megabytes_is_refused_in_less_than_one_gigabyte(
    vocabulary_folder, good, tmp_path, ending, before, after
):
    path = tmp_path / f"bad{ending}"
    path.write_bytes(before + b"the cat " * 12_500_000 + after + b'{"text": "a dog"}\n')
    line = before.count(b"\n") + 1
    program = "from unmask.cli import main\ntry: main()\nfinally:\n"
    # Not ru_maxrss, which a process inherits from the one that started it.
    program += " print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    command = [sys.executable, "-c", program, "prepare", good, path, "--workers", "1"]
    command += ["--tokenizer", vocabulary_folder, "--out", tmp_path / "corpus"]
    for skip in ([], ["--on-bad", "skip"]):
        out = [*command[:-1], tmp_path / f"corpus {len(skip)}"]
        done = subprocess.run([*out, *skip], capture_output=True, text=True, check=False)
        *_, kilobytes = done.stdout.splitlines()
        assert int(kilobytes) < 2**20
        if not skip:
            message = refused(done.returncode, done.stderr)
            assert re.match(rf"{path}:{line}: the line has 100,000,[\d,]+ bytes; need ", message)
            assert "Put line breaks between its documents or sentences." in message
    assert done.returncode == 0, done.stderr
    records = open_corpus(tmp_path / "corpus 2").manifest["records"]
    assert (records["used"], records["skipped"]) == (len(GOOD) + 1, 1)
    (entry,) = (tmp_path / "corpus 2" / SIDE_FILE).read_text().splitlines()
    assert len(entry) < 20_000


def test_a_pipe_is_refused_at_once_because_it_cannot_be_read_again(vocabulary_folder, tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    command = [sys.executable, "-m", "unmask", "prepare", tmp_path / "a.txt"]
    command += ["--tokenizer", vocabulary_folder, "--out", tmp_path / "corpus"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, said = process.communicate(timeout=5)
        assert refused(process.returncode, said).startswith(f"{tmp_path / 'a.txt'}: ")
    finally:
        process.kill()
        process.communicate()
