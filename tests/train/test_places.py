"""Run folders in odd places: a name like a pattern, behind a link, the current folder, a mount."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.small import At, data, finetune, recipe, small_model
from tests.train.conftest import metrics, pretrain, state, steps_saved, table
from unmask.checkpoint.folder import load_folder
from unmask.data.corpus.prepare import PrepareSettings, prepare
from unmask.system.errors import FolderError, Stopped

PLACES = ["[a]*?{b}", "-é ' x", "link", "."]


@pytest.fixture(params=PLACES)
def place(request, tmp_path, monkeypatch):
    """A path to give as --out."""
    if request.param == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    if request.param == ".":
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        return Path(".")
    return tmp_path / request.param


def stopping_at(step):
    return At(step, lambda: os.kill(os.getpid(), signal.SIGTERM))


def test_a_run_trains_stops_resumes_and_publishes(corpus, whole, place):
    with pytest.raises(Stopped):
        pretrain(corpus.path, place, table(), console=stopping_at(3))
    assert steps_saved(place) == [3]
    with pytest.raises(FolderError, match="the folder already holds a run"):
        pretrain(corpus.path, place, table())
    pretrain(corpus.path, place, None, resume=True)
    assert state(place, 8) == state(whole, 8)
    assert load_folder(place / "model").manifest["provenance"]["step"] == 8
    assert f"<title>{place.absolute().name}" in unescaped(place / "report.html")


def unescaped(path):
    return path.read_text().replace("&#x27;", "'")


def test_a_run_is_overwritten_there(corpus, place):
    for steps in (2, 1):
        short = table(schedule={"steps": steps}, evaluate={"times": 0})
        pretrain(corpus.path, place, short, overwrite=steps == 1)
    assert steps_saved(place) == [1]
    assert [entry["step"] for entry in metrics(place)] == [1]


def test_fine_tuning_keeps_the_best_step_there(place, tmp_path_factory):
    model = small_model(tmp_path_factory.mktemp("model") / "small")
    with pytest.raises(Stopped):
        finetune(model, data(), place, recipe(), console=stopping_at(9))
    found = finetune(model, data(), place, recipe(), resume=True)
    assert load_folder(place / "best" / f"step-{found['step']}").manifest
    assert load_folder(place / "model").manifest["provenance"]["step"] == found["step"]


def test_a_link_to_a_run_is_the_run(corpus, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(FolderError, match="link: the folder already holds a run"):
        pretrain(corpus.path, tmp_path / "link", table())
    shutil.rmtree(run / "model")
    pretrain(corpus.path, tmp_path / "link", None, resume=True)
    assert load_folder(run / "model").manifest
    short = table(schedule={"steps": 1}, evaluate={"times": 0})
    pretrain(corpus.path, tmp_path / "link", short, overwrite=True)
    assert steps_saved(run) == [1]
    assert (tmp_path / "link").is_symlink()


def test_a_corpus_is_prepared_there(corpus, place):
    text = corpus.path.parent / "text.txt"
    settings = PrepareSettings(lines="sentences")
    for _ in range(2):  # the second finds it finished
        made = prepare([str(text)], corpus.tokenizer, place, settings)
    assert (made["statistics"]["tokens"], made["files"]) == (corpus.size, ["text.txt"])


MOUNTED = """
import json, sys
from pathlib import Path
from unmask.system.disk import check_output_folder
from unmask.system.errors import FolderError
from unmask.jobs.pretrain import Pretrain
from unmask.train.compose import compose
from unmask.train.run import Run
corpus, place, table = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
try:
    check_output_folder(place, renamed=True)
except FolderError as error:
    print(error)
Run(Pretrain(corpus), compose(Pretrain.scope, table), place).go()
print(sorted(path.name for path in place.iterdir()))
"""


def test_a_mount_point_may_be_a_run_and_no_finished_folder(corpus, tmp_path):
    place = tmp_path / "mounted"
    place.mkdir()
    mount = f'mount -t tmpfs none "{place}" && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", mount, "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], check=False).returncode
    ):
        pytest.skip("this system lets nobody mount anything")
    short = json.dumps(table(schedule={"steps": 1}, evaluate={"times": 0}))
    python = [sys.executable, "-c", MOUNTED, corpus.path, place, short]
    done = subprocess.run(
        [*command, *python], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    refused, written = done.stdout.splitlines()
    assert refused.startswith(f"{place}: a mount point cannot be replaced")
    assert "'checkpoints'" in written
    assert "'model'" in written
    assert not list(place.iterdir()), "only the mounted folder was written into"
