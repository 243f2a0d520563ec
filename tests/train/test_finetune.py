"""Fine-tuning: the same loop, a head on a trained encoder; the best is kept, nothing is lost."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from tests.train.conftest import metrics, single_threaded, state
from unmask.checkpoint.folder import Folder, load_folder, save_folder
from unmask.data.columns import Columns, Sample
from unmask.errors import DataError, SettingsError, Stopped
from unmask.model.config import HeadsConfig, ModelConfig
from unmask.model.network import Network
from unmask.settings import build
from unmask.tasks import engine
from unmask.tasks.classify import Classify, ClassifySettings
from unmask.tasks.ner import Ner
from unmask.tasks.qa import Qa
from unmask.tasks.regress import Regress
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import SPECIALS, Vocabulary
from unmask.train.distributed import Processes
from unmask.train.finetune import finetune, freeze, read_data, windows_of, with_task
from unmask.train.scores import Data
from unmask.train.seeds import finetune_seeds
from unmask.train.tuning import Tuning, WindowSource, compose_tuning, rate_scale

WORDS = "red green blue six seven is was it the a john paris lives in . who where".split()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Folder:
    """A small encoder with a pooler, on disk as any other."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(Vocabulary([*SPECIALS, *WORDS]))
    config = ModelConfig(
        vocab_size=len(tokenizer.vocabulary),
        width=32,
        layers=2,
        heads=2,
        inner_width=64,
        max_length=32,
        init_std=0.1,
    )
    path = tmp_path_factory.mktemp("model") / "small"
    save_folder(path, Network(config, HeadsConfig(tokens=True, pair=True)), tokenizer)
    return load_folder(path)


def samples(count, *, start=0):
    """A text with six or seven in it: the label says which."""
    colours = "red", "green", "blue"
    return [
        Sample(
            f"it is {('six', 'seven')[i % 2]} {colours[i % 3]} " + "the " * (i % 5),
            None,
            (("six", "seven")[i % 2],),
            f"here:{i}",
        )
        for i in range(start, start + count)
    ]


def data(train=40, dev=12) -> Data:
    return Data(
        Classify(ClassifySettings(), ["seven", "six"]), samples(train), samples(dev, start=97)
    )


def tuning(**changes) -> Tuning:
    table = {
        "task": {"name": "classify"},
        "tune": {"epochs": None, "batch": 8},
        "optimizer": {"rate": 3e-3},
        "schedule": {"steps": 16, "warmup": 0.1},
        "train": {"evaluations": 4, "precision": "fp32"},
    }
    for name, value in changes.items():
        table[name] = {**table.get(name, {}), **value} if isinstance(value, dict) else value
    return build(Tuning, table, where="recipe")


def quiet(line):
    pass


def test_what_a_word_gives_away_is_learned_and_saved_as_a_model(model, tmp_path):
    found = finetune(model, data(), tmp_path / "run", tuning(schedule={"steps": 40}), notice=quiet)
    assert found["accuracy"] == 1.0
    folder = load_folder(tmp_path / "run" / "model")
    assert folder.network.heads.label_names == ("seven", "six")
    assert folder.manifest["task"]["name"] == "classify"
    assert folder.manifest["provenance"]["model"] == "small"
    assert "On held-out data" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_the_encoder_and_the_pooler_are_taken_over_and_the_head_is_new(model):
    task = data().task
    network = with_task(model.network, task.heads, seed=1)
    for part in ("encoder", "pooler"):
        for name, tensor in getattr(model.network, part).state_dict().items():
            assert torch.equal(getattr(network, part).state_dict()[name], tensor), name
    again, other = (with_task(model.network, task.heads, seed=s) for s in (1, 2))
    assert torch.equal(network.label_head.dense.weight, again.label_head.dense.weight)
    assert not torch.equal(network.label_head.dense.weight, other.label_head.dense.weight)


def test_transformers_gives_the_same_logits_with_the_same_labels(model, tmp_path):
    finetune(model, data(), tmp_path / "run", tuning(), notice=quiet)
    path = tmp_path / "run" / "model"
    theirs = AutoModelForSequenceClassification.from_pretrained(path).eval()
    assert theirs.config.id2label == {0: "seven", 1: "six"}
    assert theirs.config.problem_type == "single_label_classification"
    ours = load_folder(path)
    encoded = ours.tokenizer.encode("it is six blue")
    ids = torch.tensor([encoded.ids])
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
        hidden = ours.network.encoder(
            ids, torch.zeros_like(ids), torch.arange(ids.shape[1])[None], torch.zeros_like(ids)
        )
        found = ours.network.label_scores(hidden[:, 0])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_best_step_is_the_model(model, tmp_path, monkeypatch):
    """Scores that rise and fall: the second evaluation after the first step is the best."""
    values = iter([0.1, 0.3, 0.9, 0.5, 0.4])
    monkeypatch.setattr(
        Classify, "score", lambda self, records, answers: {"accuracy": next(values)}
    )
    found = finetune(model, data(), tmp_path / "run", tuning(), notice=quiet)
    assert (found["accuracy"], found["step"]) == (0.9, 8)
    best = load_folder(tmp_path / "run" / "best" / "step-8").network.state_dict()
    kept = load_folder(tmp_path / "run" / "model").network.state_dict()
    assert all(torch.equal(best[name], kept[name]) for name in best)
    last = load_folder(tmp_path / "run" / "checkpoints" / "step-16").network.state_dict()
    assert any(not torch.equal(best[name], last[name]) for name in best)


def test_without_anything_better_for_long_enough_a_run_ends(model, tmp_path, monkeypatch):
    values = iter([0.1, 0.9, 0.5, 0.4, 0.3])
    monkeypatch.setattr(
        Classify, "score", lambda self, records, answers: {"accuracy": next(values)}
    )
    found = finetune(model, data(), tmp_path / "run", tuning(tune={"patience": 2}), notice=quiet)
    assert found["step"] == 4
    assert metrics(tmp_path / "run")[-1]["step"] == 12  # two evaluations after the best


@pytest.mark.parametrize("step", [1, 5, 11])
def test_stopped_anywhere_a_run_goes_on_to_the_same_bits(model, tmp_path, step):
    def stop(position, report, progress):
        if position.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with single_threaded():
        finetune(model, data(), tmp_path / "whole", tuning(), notice=quiet)
        with pytest.raises(Stopped):
            finetune(model, data(), tmp_path / "cut", tuning(), notice=quiet, show=stop)
        finetune(model, data(), tmp_path / "cut", tuning(), notice=quiet, resume=True)
    assert state(tmp_path / "cut", 16) == state(tmp_path / "whole", 16)
    weights = [
        (tmp_path / n / "model" / "model.safetensors").read_bytes() for n in ("cut", "whole")
    ]
    assert weights[0] == weights[1]


def test_other_data_is_another_run(model, tmp_path):
    finetune(model, data(), tmp_path / "run", tuning(), notice=quiet)
    with pytest.raises(Exception, match="was begun with another corpus"):
        finetune(model, data(train=41), tmp_path / "run", tuning(), notice=quiet, resume=True)


def test_an_epoch_has_every_window_once(model):
    task = data().task
    windows, _ = windows_of(task, samples(21), model.tokenizer, 32)
    source = WindowSource(task, windows, tuning(), 0, Processes())
    seen, cursor = [], {}
    for step in range(8):  # of eight windows each: three epochs and a bit
        pieces, cursor = source.pieces(cursor, step, 0.0)
        assert sum(len(piece.batch.row) for piece in pieces) == 8
        seen += [tuple(b.tokens[b.owner >= 0].tolist()) for b in (p.batch for p in pieces)]
    assert cursor == {"epoch": 3, "row": 1}


def test_what_is_frozen_stays_as_it_is(model, tmp_path):
    finetune(model, data(), tmp_path / "run", tuning(tune={"frozen": 1}), notice=quiet)
    before = model.network.state_dict()
    after = load_folder(tmp_path / "run" / "checkpoints" / "step-16").network.state_dict()
    for name, tensor in after.items():
        if name in before and not name.startswith("label_head"):
            same = torch.equal(before[name], tensor)
            frozen = name.startswith("encoder.") and ".blocks.1." not in name
            assert same == frozen, name


def test_all_can_be_frozen_but_the_head(model, tmp_path):
    finetune(model, data(), tmp_path / "run", tuning(tune={"frozen": -1}), notice=quiet)
    before = model.network.state_dict()
    after = load_folder(tmp_path / "run" / "checkpoints" / "step-16").network.state_dict()
    changed = [n for n, t in after.items() if n in before and not torch.equal(before[n], t)]
    assert changed == []


def test_more_blocks_than_there_are_cannot_be_frozen(model):
    with pytest.raises(SettingsError, match="tune.frozen is 3, and the model has 2 blocks"):
        freeze(with_task(model.network, data().task.heads, 0), 3, pooler=True)


def test_lower_blocks_learn_more_slowly_by_hand():
    scale = rate_scale(tuning(tune={"layer_decay": 0.5, "head_factor": 4.0}).tune, layers=3)
    assert scale("network.label_head.dense.weight") == 4.0
    assert scale("network.encoder.blocks.2.feed.inner.weight") == 1.0
    assert scale("network.encoder.blocks.0.feed.inner.weight") == 0.25
    assert scale("network.encoder.tokens.weight") == 0.125


@pytest.mark.parametrize("kind", ["classify", "ner"])
def test_a_head_may_read_several_layers(model, tmp_path, kind):
    recipe = tuning(tune={"layers": [1, 2], "frozen": -1})
    own = data() if kind == "classify" else names(tmp_path)
    finetune(model, own, tmp_path / "run", recipe, notice=quiet)
    folder = load_folder(tmp_path / "run" / "model")
    assert folder.network.heads.layers == (1, 2)
    assert folder.network.label_head.dense.weight.shape[1] == 64


def names(tmp_path):
    path = tmp_path / "names.conll"
    path.write_text("john B-PER\nlives O\nin O\nparis B-LOC\n. O\n\nit O\nis O\nred O\n\n" * 6)
    recipe = tuning(task={"name": "ner"})
    return read_data(recipe.task, path, path, Columns())


def test_names_are_learned_and_transformers_reads_them(model, tmp_path):
    recipe = tuning(task={"name": "ner"}, schedule={"steps": 40}, optimizer={"rate": 5e-3})
    found = finetune(model, names(tmp_path), tmp_path / "run", recipe, notice=quiet)
    assert found["f1"] == 1.0
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / "run" / "model")
    assert list(theirs.config.id2label.values()) == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


def test_several_seeds_have_a_mean_and_a_deviation(model, tmp_path):
    found = finetune_seeds(
        model, data(), tmp_path / "runs", tuning(schedule={"steps": 4}), 3, notice=quiet
    )
    each = [scores["accuracy"] for scores in found["seeds"].values()]
    assert found["mean"]["accuracy"] == pytest.approx(np.mean(each))
    assert found["deviation"]["accuracy"] == pytest.approx(np.std(each, ddof=1))
    best = found["best"]
    weights = [tmp_path / "runs" / p / "model.safetensors" for p in ("model", f"{best}/model")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert json.loads((tmp_path / "runs" / "summary.json").read_text()) == found


def written(tmp_path, name, records):
    path = tmp_path / name
    rows = "".join(f"{record.text}\t{record.label[0]}\n" for record in records)
    path.write_text("text\tlabel\n" + rows)
    return str(path)


def test_what_is_in_both_files_is_told(tmp_path):
    path = written(tmp_path, "a.tsv", samples(6))
    found = read_data(tuning().task, path, path, Columns())
    assert any("6 of 6 examples are in the training data too" in line for line in found.said)
    assert found.said[0].endswith("text is column 'text', label is column 'label'")


def test_a_file_without_rows_is_refused(tmp_path):
    path = written(tmp_path, "a.tsv", samples(6))
    empty = written(tmp_path, "b.tsv", [])
    with pytest.raises(DataError, match="b.tsv: nothing to learn from in it"):
        read_data(tuning().task, path, empty, Columns())


@pytest.mark.parametrize(
    ("name", "kind"), [("classify", Classify), ("regress", Regress), ("qa", Qa), ("ner", Ner)]
)
def test_every_task_has_a_recipe(name, kind):
    recipe = build(Tuning, compose_tuning(name), where="recipe")
    assert recipe.task["name"] == kind.name == name


def test_a_pooler_that_is_new_learns_though_the_rest_is_frozen(model, tmp_path):
    bare = Folder(
        model.path, Network(model.network.config, HeadsConfig(pooler=False)), model.tokenizer, None
    )
    finetune(bare, data(), tmp_path / "run", tuning(tune={"frozen": -1}), notice=quiet)
    first, last = (
        load_folder(tmp_path / "run" / place).network.pooler.state_dict()["dense.weight"]
        for place in ("best/step-4", "checkpoints/step-16")
    )
    assert not torch.equal(first, last)


@pytest.mark.parametrize("layers", [[3], [-4], [1, 99]])
def test_layers_that_are_not_there_are_refused(model, tmp_path, layers):
    with pytest.raises(SettingsError, match=r"the model has 2 blocks; need numbers from 0"):
        finetune(model, data(), tmp_path / "run", tuning(tune={"layers": layers}), notice=quiet)


def test_a_run_must_be_scored(model):
    with pytest.raises(SettingsError, match=r"train\.evaluations is 0; need one at least"):
        tuning(train={"evaluations": 0})


def test_the_report_is_drawn_with_every_evaluation(model, tmp_path, monkeypatch):
    """The best is the first, and those after it are drawn all the same."""
    values = iter([0.1, 0.9, 0.5, 0.4, 0.3])
    monkeypatch.setattr(
        Classify, "score", lambda self, records, answers: {"accuracy": next(values)}
    )
    drawn = []
    monkeypatch.setattr(
        "unmask.train.finetune.write_tuned",
        lambda folder, recipe, found: drawn.append((len(metrics(folder.path, "eval")), found)),
    )
    finetune(model, data(), tmp_path / "run", tuning(), notice=quiet)
    assert [count for count, _ in drawn] == [1, 2, 3, 4, 5]
    assert drawn[-1][1][""].scores == {"accuracy": 0.9}


def test_after_a_stop_the_report_has_the_answers_of_the_best_step(model, tmp_path, monkeypatch):
    def stop(position, report, progress):
        if position.step == 13:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        finetune(model, data(), tmp_path / "run", tuning(), notice=quiet, show=stop)
    finetune(model, data(), tmp_path / "run", tuning(), notice=quiet, resume=True)
    assert "What was taken for what" in (tmp_path / "run" / "report.html").read_text()


def test_the_best_step_survives_a_crash_that_takes_steps_back(model, tmp_path, monkeypatch):
    """Best at 4, 8 and 12, a checkpoint at 6: what a crash leaves must have a best step."""
    values = iter([0.1, 0.3, 0.5, 0.9, 0.9, *[0.2] * 9])
    monkeypatch.setattr(
        Classify, "score", lambda self, records, answers: {"accuracy": next(values)}
    )

    def crash(position, report, progress):
        if position.step == 13:
            raise KeyboardInterrupt

    recipe = tuning(train={"save_steps": 6})
    with pytest.raises(KeyboardInterrupt):
        finetune(model, data(), tmp_path / "run", recipe, notice=quiet, show=crash)
    for step in (12, 13):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step}", ignore_errors=True)
    found = finetune(model, data(), tmp_path / "run", recipe, notice=quiet, resume=True)
    assert found["step"] in (4, 8)
    assert (tmp_path / "run" / "model").is_dir()


def test_a_recipe_may_have_steps_and_no_epochs(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[task]\nname = "classify"\n\n[schedule]\nsteps = 7\n')
    assert build(Tuning, compose_tuning(str(path)), where="recipe").course(1000).steps == 7


def test_processes_share_a_step_in_as_many_parts_each(model, monkeypatch):
    """However long the windows of each happen to be."""
    monkeypatch.setattr("unmask.tasks.engine.BATCH_TOKENS", 27)
    task = data().task
    windows, _ = windows_of(task, samples(60), model.tokenizer, 32)
    recipe, uneven = tuning(tune={"batch": 21}), 0
    sources = [WindowSource(task, windows, recipe, 0, Processes(r, 2)) for r in range(2)]
    cursor = {}
    for step in range(12):
        found = [source.pieces(cursor, step, 0.0) for source in sources]
        each = [[len(piece.batch.row) for piece in pieces] for pieces, _ in found]
        assert len(each[0]) == len(each[1])
        assert sum(map(sum, each)) == 21
        chosen, cursor = sources[0]._take(cursor.get("epoch", 0), cursor.get("row", 0))
        alone = {len(list(engine.by_length(chosen[rank::2]))) for rank in range(2)}
        uneven += len(alone) > 1
    assert uneven, "otherwise nothing was tried"


def test_steps_replace_epochs():
    table = compose_tuning("classify", ["schedule.steps=50"])
    assert build(Tuning, table, where="recipe").course(1000).steps == 50
    assert build(Tuning, compose_tuning("classify"), where="r").course(320).steps == 30
