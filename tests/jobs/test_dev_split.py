"""Fine-tuning without dev data: a share of the training data is held out, and stays the same."""

import json
import subprocess
import sys

import pytest

import unmask
from tests.conftest import tiny_network
from tests.shapes import bert_heads
from tests.train.conftest import Heard, state
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.data.labelled.columns import Columns
from unmask.evaluation.tasks import Labelled
from unmask.jobs.finetune import Finetune
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.multi_task import MultiTask
from unmask.jobs.settings_read import FINETUNE, MULTI_TASK, TRANSLATE
from unmask.jobs.start import finetune_files
from unmask.system.errors import DataError, FolderError, SettingsError
from unmask.system.settings import read_toml
from unmask.train.compose import compose
from unmask.train.run import Run, RunOptions

QUICK = {"schedule.steps": 6, "loop.batch_size": 8, "evaluate.times": 2, "loop.precision": '"fp32"'}
CHANGES = [f"{name}={value}" for name, value in QUICK.items()]
COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_folder(path, tiny_network(bert_heads(), max_length=16), tokenizer)
    return path


def rows(count=40):
    """Texts that all differ, with two labels."""
    return [
        {"text": f"the {('cat', 'dog')[i % 2]} sat {i}", "label": ("meow", "wuff")[i % 2]}
        for i in range(count)
    ]


def file_of(place, given=None):
    path = place / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in given or rows()))
    return path


def trained(tiny, data, out, changes=(), *, said=None, **how):
    files = LabelledFiles(data, None)
    return finetune_files("classify", tiny, files, out, [*CHANGES, *changes], Heard(said), **how)


def read(changes=(), data=None):
    """The records that a run with these settings would read."""
    recipe = compose(FINETUNE, "classify", changes)
    job = Finetune(None, LabelledFiles(data or rows(), None))
    return job.read(recipe)


def digest(run) -> str:
    """The digest of the records that a run learns from and is scored on."""
    return json.loads((run / "facts.json").read_text())["corpus"]


def texts(part: Labelled) -> tuple[list[str], list[str]]:
    return [record.text for record in part.train], [record.text for record in part.dev]


def test_a_tenth_is_held_out_and_the_run_says_and_records_it(tiny, tmp_path):
    said: list[str] = []
    path = file_of(tmp_path)
    trained(tiny, path, tmp_path / "run", said=said)
    line = (
        f"{path}: 40 examples: 36 for training, 4 held out (data.dev_share 0.1, "
        "data.dev_seed 0; stratified by label)"
    )
    assert line in said
    assert line in (tmp_path / "run" / "log.txt").read_text()
    assert not any("warning" in line for line in said), "no example is in both parts"
    stored = read_toml(tmp_path / "run" / "recipe.toml")
    assert stored["data"] == {"dev_share": 0.1, "dev_seed": 0}
    split = {"train": 36, "dev": 4, "share": 0.1, "seed": 0}
    manifest = load_folder(tmp_path / "run" / "model").manifest
    assert manifest["provenance"]["dev split"] == split
    assert "dev_share = 0.1" in (tmp_path / "run" / "report.html").read_text()


def test_share_and_seed_can_be_set():
    part = read(["data.dev_share=0.25", "seed=7"])
    assert (len(part.train), len(part.dev)) == (30, 10)
    assert part.split == {"train": 30, "dev": 10, "share": 0.25, "seed": 7}
    assert texts(part) == texts(read(["data.dev_share=0.25", "data.dev_seed=7"]))
    assert texts(part) != texts(read(["data.dev_share=0.25"]))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_of_nothing_or_of_all_is_refused(share):
    with pytest.raises(SettingsError, match="dev_share"):
        read([f"data.dev_share={share}"])


def test_rows_from_python_are_divided_as_those_of_a_file(tiny, tmp_path):
    settings = {name: json.loads(str(value)) for name, value in QUICK.items()}
    model = unmask.finetune("classify", tiny, train=rows(), out=tmp_path / "run", settings=settings)
    assert model.manifest["provenance"]["dev split"]["dev"] == 4
    assert texts(read()) == texts(read(data=file_of(tmp_path)))


class Interrupted(Heard):
    """Interrupts the run during its fourth step."""

    def progress(self, what, unit, done, total=None, *, note="", seconds_left=None) -> None:
        if what == "training" and done == 3:
            raise KeyboardInterrupt


def test_a_resumed_run_is_split_as_before(tiny, tmp_path):
    """The weights are those of a run that was never stopped."""
    changes = ["loop.save_steps=1"]
    trained(tiny, rows(), tmp_path / "whole", changes)
    given = LabelledFiles(rows(), None), tmp_path / "cut", [*CHANGES, *changes]
    with pytest.raises(KeyboardInterrupt):
        finetune_files("classify", tiny, *given, Interrupted())
    assert not (tmp_path / "cut" / "model").exists()
    trained(tiny, rows(), tmp_path / "cut", changes, options=RunOptions(resume=True))
    assert state(tmp_path / "cut", 6) == state(tmp_path / "whole", 6)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["data.dev_share=0.5"], "another data set"),
        (["data.dev_seed=1"], "another data set"),
        (["seed=1"], "another data set|other settings: data.dev_seed|other settings: seed"),
    ],
)
def test_a_run_is_not_resumed_with_another_split(tiny, tmp_path, changes, says):
    trained(tiny, rows(), tmp_path / "run")
    with pytest.raises(FolderError, match=says):
        trained(tiny, rows(), tmp_path / "run", changes, options=RunOptions(resume=True))


def test_several_seeds_are_scored_on_the_same_records(tiny, tmp_path):
    trained(tiny, rows(), tmp_path / "runs", ["seed=3"], seeds=2)
    stored = [read_toml(tmp_path / "runs" / f"seed-{s}" / "recipe.toml") for s in (3, 4)]
    assert [table["seed"] for table in stored] == [3, 4]
    assert [table["data"] for table in stored] == [{"dev_share": 0.1, "dev_seed": 3}] * 2
    facts = [
        json.loads((tmp_path / "runs" / f"seed-{s}" / "facts.json").read_text()) for s in (3, 4)
    ]
    assert facts[0]["corpus"] == facts[1]["corpus"], "the digest of the records"
    trained(tiny, rows(), tmp_path / "alone", ["seed=4", "data.dev_seed=3"])
    alone = json.loads((tmp_path / "alone" / "facts.json").read_text())
    assert alone["corpus"] == facts[0]["corpus"]


def test_the_trials_of_a_search_are_scored_on_the_same_records(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.jobs.search.EPOCHS", (1,))
    trained(tiny, rows(), tmp_path / "runs", trials=2)
    found = [read_toml(p) for p in sorted(tmp_path.glob("runs/trial-*/recipe.toml"))]
    assert [table["data"] for table in found] == [{"dev_share": 0.1, "dev_seed": 0}] * 2


@pytest.mark.parametrize("name", ["dev_share=0.2", "dev_seed=1"])
def test_settings_of_a_split_do_not_go_with_dev_data(tiny, tmp_path, name):
    files = LabelledFiles(rows(), rows(8))
    with pytest.raises(SettingsError, match=f"data.{name.split('=')[0]} is set, but dev data"):
        finetune_files("classify", tiny, files, tmp_path / "run", [*CHANGES, f"data.{name}"])
    assert not (tmp_path / "run").exists()


def test_a_run_with_dev_data_stores_no_split(tiny, tmp_path):
    files = LabelledFiles(rows(), [{"text": "the mat", "label": "meow"}])
    finetune_files("classify", tiny, files, tmp_path / "run", CHANGES)
    assert "data" not in read_toml(tmp_path / "run" / "recipe.toml")
    assert "dev split" not in load_folder(tmp_path / "run" / "model").manifest["provenance"]


def test_data_that_cannot_be_divided_are_refused():
    with pytest.raises(DataError, match="no dev data can be split off 2 examples"):
        read(data=[{"text": "a", "label": "x"}, {"text": "b", "label": "y"}])


def test_a_label_that_training_would_not_see_is_learned_from():
    """Of several labels of a text, each must be known, and not only the whole set."""
    given = [{"text": f"t {i}", "label": ["a", "b"]} for i in range(20)]
    given += [{"text": f"u {i}", "label": ["c", "d"]} for i in range(2)]
    given += [{"text": f"v {i}", "label": ["c", f"e{i}"]} for i in range(6)]
    for seed in range(5):
        changes = ["task.multi_label=true", "data.dev_share=0.5", f"data.dev_seed={seed}"]
        part = read(changes, given)
        assert {name for record in part.dev for name in record.label} <= {*"abcd"}
        assert len(part.train) + len(part.dev) == len(given)


def test_entities_that_training_would_not_see_are_learned_from(tmp_path):
    path = tmp_path / "a.conll"
    lines = [f"john B-PER\nno{i} O\n\n" for i in range(30)] + ["paris B-LOC\n\n"]
    path.write_text("".join(lines))
    for seed in range(10):
        recipe = compose(FINETUNE, "ner", ["data.dev_share=0.9", f"data.dev_seed={seed}"])
        part = Finetune(None, LabelledFiles(path, None)).read(recipe)
        assert all("LOC" not in str(record.entities) for record in part.dev)


def test_several_files_are_divided_as_one_set(tmp_path):
    paths = []
    for number, name in enumerate("ab"):
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows()[number::2]))
    recipe = compose(FINETUNE, "classify")
    part = Finetune(None, LabelledFiles(paths, None)).read(recipe)
    assert sorted(sum(texts(part), [])) == sorted(row["text"] for row in rows())


def test_pairs_are_divided_too():
    given = [{"translation": {"de": f"ein {i}", "en": f"a {i}"}} for i in range(30)]
    recipe = compose(TRANSLATE, "gru")
    part = Finetune(None, LabelledFiles(given, None, Columns("de", "en")), scope=TRANSLATE)
    assert len(part.read(recipe).dev) == 3


def test_each_of_several_tasks_may_leave_its_dev_data_out(tiny, tmp_path):
    path = str(file_of(tmp_path))
    own = {"task": {"name": "classify"}, "train": path}
    table = {
        "tasks": [{**own, "name": "first"}, {**own, "name": "second", "dev": path}],
        "schedule": {"steps": 2},
        "evaluate": {"times": 1},
        "data": {"dev_share": 0.2},
    }
    said: list[str] = []
    recipe = compose(MULTI_TASK, table)
    Run(MultiTask(tiny), recipe, tmp_path / "run", Heard(said)).go()
    assert any("32 for training, 8 held out (data.dev_share 0.2" in line for line in said)
    provenance = load_folder(tmp_path / "run" / "model").manifest["provenance"]
    assert provenance["first dev split"]["dev"] == 8
    assert "second dev split" not in provenance
    table["tasks"][0]["dev"] = path
    with pytest.raises(SettingsError, match="data.dev_share is set, but dev data are given"):
        Run(MultiTask(tiny), compose(MULTI_TASK, table), tmp_path / "other", Heard()).go()


@pytest.mark.slow
def test_two_processes_split_alike(tiny, tmp_path):
    """Each reads the data by itself; a difference would be refused."""
    path = file_of(tmp_path)
    trained(tiny, path, tmp_path / "one", ["loop.micro_batches=2"])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "unmask", "finetune", "classify", str(tiny)]
    command += ["--train", str(path), "--out", str(tmp_path / "two"), "--threads", "1"]
    command += [word for change in CHANGES for word in ("--set", change)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "36 for training, 4 held out" in done.stderr
    digests = [
        json.loads((tmp_path / n / "facts.json").read_text())["corpus"] for n in ("one", "two")
    ]
    assert digests[0] == digests[1]
