"""Fine-tuning from Python: rows or files in, a loaded model out; and the search for settings."""

import json

import pytest

import unmask
from tests.conftest import tiny_network
from tests.shapes import bert_heads
from tests.train.conftest import Heard
from unmask.checkpoint.folder import save_folder
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.settings_read import FINETUNE
from unmask.jobs.start import finetune_files
from unmask.system.errors import DataError, FolderError, SettingsError, Stopped
from unmask.train.compose import compose

QUICK = {
    "schedule.steps": 30,
    "loop.batch_size": 8,
    "optimizer.learning_rate": 5e-3,
    "evaluate.times": 3,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_folder(path, tiny_network(bert_heads(), max_length=16), tokenizer)
    return path


def rows(count, start=0):
    return [
        {"text": f"the {('cat', 'dog')[i % 2]} sat", "label": ("meow", "wuff")[i % 2], "number": i}
        for i in range(start, start + count)
    ]


def test_rows_are_learned_from_as_a_file_would_be(tiny, tmp_path):
    model = unmask.finetune(
        "classify", tiny, train=rows(40), dev=rows(8), out=tmp_path / "run", settings=QUICK
    )
    answers = model.classify(["the dog sat", "the cat sat"])
    assert [answer.label for answer in answers] == ["wuff", "meow"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(40)))
    again = unmask.finetune(
        "classify", tiny, train=path, dev=path, out=tmp_path / "again", settings=QUICK
    )
    assert model.task.names == again.task.names


def test_fine_tuning_from_python_prints_nothing(tiny, tmp_path, capfd):
    """Not even the warning that rows are in both lists, or the notice of a setting's old name."""
    given = {"train": rows(16), "dev": rows(8), "settings": {**QUICK, "train.keep": 3}}
    unmask.finetune("classify", tiny, out=tmp_path / "run", **given)
    unmask.finetune("classify", tiny, out=tmp_path / "runs", seeds=2, **given)
    assert capfd.readouterr() == ("", "")
    assert "examples are also in the training data" in (tmp_path / "run" / "log.txt").read_text()


def test_a_bad_row_is_named_by_its_number(tiny, tmp_path):
    bad = [*rows(3), {"text": "", "label": "meow"}]
    with pytest.raises(DataError, match=r"^train\[3\]: "):
        unmask.finetune("classify", tiny, train=bad, dev=rows(4), out=tmp_path / "run")


def test_seeds_and_a_search_are_two_things(tiny, tmp_path):
    with pytest.raises(SettingsError, match="--seeds and --search cannot be combined"):
        finetune_files(
            "classify", tiny, LabelledFiles(rows(4), rows(4)), tmp_path, seeds=2, trials=2
        )


def changes():
    return [f"{name}={value}" for name, value in QUICK.items()]


def test_a_search_tries_settings_and_tells_the_best(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.jobs.search.EPOCHS", (1, 2))
    found = finetune_files(
        "classify", tiny, LabelledFiles(rows(16), rows(8)), tmp_path, changes=changes(), trials=3
    )
    trials = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("trial-*/result.json"))]
    assert len(trials) == 3
    assert len({trial["settings"]["rate"] for trial in trials}) == 3
    assert found["scores"]["metric"] == max(trial["scores"]["metric"] for trial in trials)
    assert json.loads((tmp_path / "search.json").read_text()) == found


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(tiny, tmp_path, monkeypatch):
    """Finished trials are not trained again; those to come are drawn alike."""
    monkeypatch.setattr("unmask.jobs.search.EPOCHS", (1, 2))
    given = "classify", tiny, LabelledFiles(rows(16), rows(8))
    whole = finetune_files(*given, tmp_path / "whole", changes=changes(), trials=3)

    class Stopping(Heard):
        def progress(self, *stage, **more):
            super().progress(*stage, **more)
            if len(self.shown) == 5:
                raise Stopped(15)

    with pytest.raises(Stopped):
        finetune_files(*given, tmp_path / "cut", changes=changes(), trials=3, console=Stopping())
    assert not (tmp_path / "cut" / "search.json").exists()
    again = finetune_files(*given, tmp_path / "cut", changes=changes(), trials=3)
    assert again == whole


def test_a_trial_of_other_data_is_not_taken_for_this_one(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.jobs.search.EPOCHS", (1,))
    given = {"changes": changes(), "trials": 1}
    finetune_files("classify", tiny, LabelledFiles(rows(16), rows(8)), tmp_path, **given)
    assert (tmp_path / "model").is_dir()
    with pytest.raises(FolderError, match="a trial of other data"):
        finetune_files("classify", tiny, LabelledFiles(rows(18), rows(8)), tmp_path, **given)


def test_several_seeds_do_not_touch_a_single_run(tiny, tmp_path):
    given = {"changes": changes()}
    finetune_files("classify", tiny, LabelledFiles(rows(16), rows(8)), tmp_path / "run", **given)
    with pytest.raises(FolderError, match="holds a single run|not empty"):
        finetune_files(
            "classify", tiny, LabelledFiles(rows(16), rows(8)), tmp_path / "run", seeds=2, **given
        )
    assert (tmp_path / "run" / "model").is_dir()


def test_several_files_are_one_set(tmp_path):
    paths = []
    for number, label in enumerate(("six", "seven", "red")):
        paths.append(tmp_path / f"{number}.tsv")
        paths[-1].write_text("text\tlabel\n" + f"it is {label}\t{label}\n" * 3)
    choice = compose(FINETUNE, "classify").task
    part = LabelledFiles(paths, paths[:2]).read(choice)
    assert [record.label[0] for record in part.train] == ["six"] * 3 + ["seven"] * 3 + ["red"] * 3
    assert len(part.dev) == 6
    assert part.task.names == ("red", "seven", "six")
