"""Preparation on Ray: the same bytes as without it."""

import os
import subprocess
import sys

import pytest

from tests.data.conftest import contents, prose
from unmask.data.corpus.prepare import PrepareSettings
from unmask.data.corpus.ray import prepare_on_ray
from unmask.system.errors import DataError, UserError
from unmask.text.tokenizer_files import tokenizer_files

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

TEXT = {"a.txt": prose(200), "b.jsonl": '{"text": "the cat sat. a dog !"}\n' * 60}


@pytest.fixture(scope="module")
def local_ray():
    """A Ray of two cores on this machine."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.parametrize("tasks", [1, 3], ids=["a task for each core", "three tasks"])
def test_ray_makes_the_same_bytes(local_ray, prepared, tokenizer, tmp_path, tasks):
    expected = contents(prepared(TEXT, "alone"))
    settings = PrepareSettings(shard_characters=1000)
    paths = [str(tmp_path / name) for name in TEXT]
    manifest = prepare_on_ray(paths, tokenizer, tmp_path / "ray", settings, tasks=tasks)
    assert manifest["records"]["used"] == 200 + 60
    assert contents(tmp_path / "ray") == expected


def test_a_bad_text_on_ray_is_refused_with_its_place(local_ray, tokenizer, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\nt\xffo\n")
    with pytest.raises(DataError, match=r"a\.txt:2: byte 5 of the file is not UTF-8"):
        prepare_on_ray(
            [str(tmp_path / "a.txt")], tokenizer, tmp_path / "ray", PrepareSettings(), tasks=2
        )


def test_the_command_line_takes_ray_as_its_engine(prepared, tokenizer, tmp_path):
    expected = contents(prepared(TEXT, "alone", shard_characters=2**22))
    (tmp_path / "vocabulary").mkdir()
    for name, text in tokenizer_files(tokenizer).items():
        (tmp_path / "vocabulary" / name).write_text(text)
    command = [sys.executable, "-m", "unmask", "prepare", "a.txt", "b.jsonl", "--engine", "ray"]
    command += ["--tokenizer", "vocabulary", "--out", "ray", "--num-tasks", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "ray") == expected


def test_without_ray_it_is_said_how_to_install_it(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not there
    with pytest.raises(UserError, match=r"ray, which is not installed\. Run: pip install '"):
        prepare_on_ray(["a.txt"], tokenizer, tmp_path / "ray", PrepareSettings())
    assert os.listdir(tmp_path) == []
