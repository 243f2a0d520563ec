"""`--overwrite` deletes what a run wrote, and nothing that the user put beside it."""

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import tiny_network
from tests.jobs.small import data, finetune, recipe, small_model
from tests.jobs.test_multi_task import finetune_several, several
from tests.train.conftest import Heard, metrics, runner, single_threaded, steps_saved
from unmask.checkpoint.folder import Folder, load_folder, save_folder
from unmask.checkpoint.integrity import publish
from unmask.jobs.finetune import Finetune
from unmask.jobs.search import search
from unmask.jobs.seeds import run_seeds
from unmask.system.errors import FolderError, SettingsError
from unmask.system.manifest import MODEL_MANIFEST, with_digest
from unmask.system.written import files_of_folder
from unmask.train.run import RunOptions
from unmask.train.run_folder import RunFolder, open_run

LIST = ".written"
SHORT = {"schedule": {"steps": 2}, "loop": {"save_steps": 1}, "evaluate": {"times": 1}}


@pytest.fixture(scope="module")
def original(corpus, tmp_path_factory):
    """A run of two steps, with everything that pre-training can write."""
    with single_threaded():
        start = runner(corpus, tmp_path_factory.mktemp("original"))
        return start("run", tensorboard=True, **SHORT)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Folder:
    return small_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture
def finished(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


@pytest.fixture
def of_first_version(finished):
    """The same run as version 0.1 left it, without a list."""
    (finished / LIST).unlink(missing_ok=True)
    return finished


def opened(path, **how):
    told = {"resume": False, "overwrite": False, "writes": True, "console": Heard()}
    return open_run(path, **{**told, **how})


def overwrite(path):
    """Start the run in a folder over, and stop before anything is written."""
    with opened(path, overwrite=True) as folder:
        folder.start_over()


def contents(folder):
    """Every name below a folder, with the bytes of files and the targets of links."""
    found = {}
    for path in folder.rglob("*"):
        if path.name == ".lock":
            continue
        name = path.relative_to(folder).as_posix()
        linked = os.readlink(path) if path.is_symlink() else None
        found[name] = linked or (path.read_bytes() if path.is_file() else None)
    return found


def put(path, text="mine"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(path, *names):
    """Overwriting is refused, these names are given, and everything is as it was."""
    before = contents(path)
    with pytest.raises(FolderError) as error:
        overwrite(path)
    listed = ", ".join(names)
    said = f"{path}: contains files that unmask did not write: {listed}. Nothing was deleted. Move"
    assert str(error.value).startswith(said)
    assert contents(path) == before


MINE = (
    "notes.txt",
    ".notes",
    "log.txt.bak",
    "checkpoints/notes.txt",
    "checkpoints/step-2/notes.txt",
    "checkpoints/step-2/target/vocab.txt",
    "checkpoints/.notes.tmp-1",
    "model/my-notes.md",
    "tensorboard/my-notes.md",
    "damaged-model-abcdef",
)


@pytest.mark.parametrize("name", MINE)
def test_a_file_of_the_user_is_refused_by_name_and_nothing_is_deleted(finished, name):
    put(finished / name)
    shown = "checkpoints/step-2/target/" if "target" in name else name  # a folder that is not ours
    refused(finished, shown)


@pytest.mark.parametrize("name", MINE)
def test_so_it_is_in_a_run_of_the_first_version(of_first_version, name):
    put(of_first_version / name)
    shown = "checkpoints/step-2/target/" if "target" in name else name
    refused(of_first_version, shown)


@pytest.mark.parametrize("name", ["mine/", "model/mine/", "best/", "models/", "int8/"])
def test_a_folder_of_the_user_is_refused_by_name(finished, name):
    (finished / name).mkdir()
    refused(finished, name)


def test_another_model_in_the_folder_of_a_run_is_the_users(finished, tokenizer):
    save_folder(finished / "int8", tiny_network(), tokenizer)
    save_folder(finished / "models" / "other", tiny_network(), tokenizer)
    refused(finished, "int8/", "models/")


def test_at_most_five_names_are_shown(finished):
    for number in range(7):
        put(finished / f"note-{number}")
    with pytest.raises(FolderError, match="write: note-0, .*, note-4 and 2 more. Nothing was del"):
        overwrite(finished)


def test_a_run_without_foreign_files_is_deleted_whole(finished):
    overwrite(finished)
    assert contents(finished) == {"checkpoints": None}


def test_so_is_one_of_the_first_version(of_first_version):
    overwrite(of_first_version)
    assert contents(of_first_version) == {"checkpoints": None}


def test_a_run_of_the_first_version_that_was_resumed_can_be_overwritten(run, of_first_version):
    shutil.rmtree(of_first_version / "checkpoints" / "step-2")
    shutil.rmtree(of_first_version / "model")
    run(recipe=None, resume=True)
    assert (of_first_version / "model").is_dir()
    overwrite(of_first_version)
    assert contents(of_first_version) == {"checkpoints": None}


def test_an_old_run_stays_until_the_new_one_can_start(run, finished):
    before = contents(finished)
    with pytest.raises(SettingsError):
        run(overwrite=True, schedule={"phases": [{"length": 4096, "batch_tokens": 8192}]})
    assert contents(finished) == before


def test_an_overwritten_run_trains_like_a_new_one(run, finished):
    run(overwrite=True, schedule={"steps": 1}, evaluate={"times": 0}, seed=3)
    assert steps_saved(finished) == [1]
    assert [entry["step"] for entry in metrics(finished)] == [1]
    assert load_folder(finished / "model").manifest["recipe"]["seed"] == 3


def test_links_are_refused_and_never_followed(finished, tmp_path):
    precious = put(tmp_path / "elsewhere" / "precious").parent
    (finished / "link").symlink_to(precious)
    (finished / "model" / "link").symlink_to(precious / "precious")
    refused(finished, "link", "model/link")
    assert contents(precious) == {"precious": b"mine"}


@pytest.mark.parametrize("name", ["checkpoints", "model", "log.txt"])
def test_a_link_in_the_place_of_something_the_run_wrote_is_the_users(finished, tmp_path, name):
    shutil.move(finished / name, tmp_path / "moved")
    (finished / name).symlink_to(tmp_path / "moved")
    before = contents(tmp_path)
    refused(finished, name)
    assert contents(tmp_path) == before


def test_what_killed_writers_left_and_damaged_checkpoints_are_the_runs(finished):
    for name in (".report.html.tmp-12-ab", "checkpoints/.step-2.tmp-xy/half", "..written.tmp-1-a"):
        put(finished / name)
    shutil.copytree(finished / "checkpoints/step-2", finished / "checkpoints/damaged-step-2-ab12ef")
    put(finished / "checkpoints" / "damaged-step-2-ab12ef" / "notes.txt")
    refused(finished, "checkpoints/damaged-step-2-ab12ef/notes.txt")
    (finished / "checkpoints" / "damaged-step-2-ab12ef" / "notes.txt").unlink()
    overwrite(finished)
    assert contents(finished) == {"checkpoints": None}


def test_in_a_run_of_the_first_version_too(of_first_version):
    inside = of_first_version / "checkpoints"
    put(inside / ".step-3.tmp-xy" / "half")
    (inside / "step-1").rename(inside / "damaged-step-1-ab12ef")
    overwrite(of_first_version)
    assert contents(of_first_version) == {"checkpoints": None}


def test_resuming_sweeps_what_killed_writers_left_but_no_file_of_the_user(finished):
    put(finished / ".report.html.tmp-12-ab")
    put(finished / ".notes.tmp-1")
    with opened(finished, resume=True):
        pass
    assert not (finished / ".report.html.tmp-12-ab").exists()
    assert (finished / ".notes.tmp-1").read_text() == "mine"


@pytest.mark.parametrize("spoil", ["missing", "changed"])
def test_without_a_manifest_the_usual_files_are_the_runs_and_others_are_not(finished, spoil):
    manifest = finished / "model" / MODEL_MANIFEST
    put(finished / "model" / "mine.bin")
    text = manifest.read_text().replace('"files": {', '"files": {"mine.bin": {},')
    manifest.unlink() if spoil == "missing" else manifest.write_text(text)
    refused(finished, "model/mine.bin")
    (finished / "model" / "mine.bin").unlink()
    overwrite(finished)
    assert contents(finished) == {"checkpoints": None}


@pytest.mark.parametrize("name", ["/etc/passwd", "../precious", "checkpoints/../../precious"])
def test_a_list_that_leads_out_of_the_folder_deletes_nothing_there(finished, name):
    precious = put(finished.parent / "precious")
    with (finished / LIST).open("a") as file:
        file.write(f"{name}\n")
    overwrite(finished)
    assert precious.read_text() == "mine"
    assert Path("/etc/passwd").exists()


def test_a_manifest_that_leads_out_of_the_folder_names_nothing_there(tmp_path):
    about = {"format": 1, "files": {"a": {}, "../precious": {}, "/etc/passwd": {}, "b/../../c": {}}}
    put(tmp_path / "model" / MODEL_MANIFEST, with_digest(about).decode())
    assert files_of_folder(tmp_path / "model") == {"a", MODEL_MANIFEST}


def test_a_process_that_is_killed_while_it_deletes_can_do_it_again(finished, tmp_path, monkeypatch):
    """Whatever is gone by then: nothing of the old run may be taken for the new one's."""
    remove, done = Path.unlink, False
    shutil.rmtree(finished / "model")
    with publish(finished / "model", {}) as folder:  # as a later version might write it
        put(folder / "other.bin")
        put(folder / "vectors.bin")
    for number in range(200):
        place = shutil.copytree(finished, tmp_path / "killed" / str(number))
        left = iter(range(number))

        def unlink(path, missing_ok=False, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            remove(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", unlink)
        try:
            overwrite(place)
            done = True
        except KeyboardInterrupt:
            pass
        monkeypatch.setattr(Path, "unlink", remove)
        overwrite(place)
        left_behind = set(contents(place)) - {"checkpoints", LIST}
        assert not left_behind, f"after {number} files"
        if done:
            break
    assert number > 10, "otherwise nothing was tried"


def test_a_thing_is_listed_before_it_is_written(run, tmp_path, monkeypatch):
    def killed(path, *given, **how):
        if path.name == "model":
            raise KeyboardInterrupt
        save_folder(path, *given, **how)

    monkeypatch.setattr("unmask.train.checkpoints.save_folder", killed)
    with pytest.raises(KeyboardInterrupt):
        run(**SHORT)
    listed = (tmp_path / "run" / LIST).read_text().splitlines()
    assert {"model", "checkpoints/step-1", "checkpoints/step-2", "recipe.toml"} <= {*listed}
    assert not (tmp_path / "run" / "model").exists()


def test_what_was_there_before_the_run_wanted_to_write_it_is_not_listed(tmp_path, tokenizer):
    save_folder(tmp_path / "model", tiny_network(), tokenizer)
    folder = RunFolder(tmp_path, Heard())
    folder.claim("model")
    folder.claim("other")
    assert (tmp_path / LIST).read_text() == "other\n"


def test_processes_other_than_the_first_list_nothing(tmp_path):
    RunFolder(tmp_path, Heard(), writes=False).claim("model")
    assert not list(tmp_path.iterdir())


def test_a_fine_tuning_run_is_deleted_whole(model, tmp_path):
    finetune(model, data(), tmp_path / "run", recipe())
    assert (tmp_path / "run" / "best").is_dir()
    best = next((tmp_path / "run" / "best").iterdir())
    mine = put(best / "mine")
    refused(tmp_path / "run", f"best/{best.name}/mine")
    mine.unlink()
    overwrite(tmp_path / "run")
    assert contents(tmp_path / "run") == {"checkpoints": None}


@pytest.mark.parametrize("listed", [True, False])
def test_a_run_of_several_tasks_is_deleted_whole(model, tmp_path, listed):
    run = tmp_path / "run"
    finetune_several(model, several(tmp_path, steps=4), run)
    if not listed:
        (run / LIST).unlink()
    mine = put(run / "models" / "mine" / "config.json")
    refused(run, "models/mine/")
    shutil.rmtree(mine.parent)
    overwrite(run)
    assert contents(run) == {"checkpoints": None}


def short():
    return recipe(schedule={"steps": 2}, evaluate={"times": 1})


def seeds(model, out, **options):
    return run_seeds(Finetune(model, data()), short(), out, 2, Heard(), RunOptions(**options))


def never(*given, **how):
    raise AssertionError("the work was begun")


def test_several_seeds_replace_their_model_and_no_other(model, tmp_path, monkeypatch):
    out = tmp_path / "runs"
    seeds(model, out)
    put(out / "notes.txt")
    found = seeds(model, out, overwrite=True)
    assert contents(out / "model") == contents(out / found["best"] / "model")
    assert (out / "notes.txt").read_text() == "mine", "what is not in the way stays"
    mine = put(out / "model" / "my-notes.md")
    monkeypatch.setattr("unmask.jobs.seeds.Run", never)
    before = contents(out)
    with pytest.raises(FolderError, match="unmask did not write: model/my-notes.md. Nothing was"):
        seeds(model, out, overwrite=True)
    mine.rename(out / "seed-1" / "mine")
    with pytest.raises(
        FolderError, match="seed-1: contains files that unmask did not write: mine. Noth"
    ):
        seeds(model, out, overwrite=True)
    (out / "seed-1" / "mine").rename(mine)
    assert contents(out) == before


def test_a_model_that_the_user_put_beside_seeds_is_refused(model, tmp_path, tokenizer):
    out = tmp_path / "runs"
    put(out / "seed-0" / "notes.txt")
    with publish(out / "model", {}) as folder:
        put(folder / "config.json")
    before = contents(out)
    with pytest.raises(
        FolderError, match="runs: contains files that unmask did not write: model/. Nothing"
    ):
        seeds(model, out)
    assert contents(out) == before


def test_seeds_of_the_first_version_replace_their_model(model, tmp_path):
    out = tmp_path / "runs"
    seeds(model, out)
    for path in out.rglob(LIST):
        path.unlink()
    put(out / ".model.tmp-killed" / "half")
    found = seeds(model, out, overwrite=True)
    assert contents(out / "model") == contents(out / found["best"] / "model")
    assert not (out / ".model.tmp-killed").exists()


def test_a_file_of_the_user_beside_the_best_model_is_not_copied(model, tmp_path):
    out = tmp_path / "runs"
    found = seeds(model, out)
    put(out / found["best"] / "model" / "mine")
    seeds(model, out, resume=True)
    assert not (out / "model" / "mine").exists()
    assert load_folder(out / "model").manifest


def test_a_search_is_overwritten_unless_a_trial_holds_files_of_the_user(
    model,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr("unmask.jobs.search.EPOCHS", (1,))
    out = tmp_path / "runs"

    def trials():
        search(Finetune(model, data()), short(), out, 2, Heard(), RunOptions(overwrite=True))

    trials()
    trials()
    assert (out / "trial-1" / "result.json").is_file()
    (out / "trial-1" / LIST).unlink()  # as the first version left it
    trials()
    put(out / "trial-1" / "mine")
    before = contents(out)
    with pytest.raises(
        FolderError, match="trial-1: contains files that unmask did not write: mine. Noth"
    ):
        trials()
    assert contents(out) == before
