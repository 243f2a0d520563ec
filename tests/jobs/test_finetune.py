"""Fine-tuning: the same loop, a head on a trained encoder; the best is kept, nothing is lost."""

import json
import os
import shutil
import signal
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from tests.jobs.small import (
    At,
    Examined,
    Marks,
    data,
    finetune,
    names,
    recipe,
    run,
    samples,
    small_model,
    written,
)
from tests.shapes import bert_heads
from tests.train.conftest import Heard, metrics, single_threaded, state
from unmask.checkpoint.folder import Folder, load_folder
from unmask.infer import engine
from unmask.jobs.finetune import Finetune
from unmask.jobs.inputs.labelled import LabelledFiles, window_source
from unmask.jobs.seeds import run_seeds
from unmask.jobs.settings_read import FINETUNE
from unmask.model.factory import freeze, make_network
from unmask.model.network import Network
from unmask.model.shape import Shape
from unmask.system.distributed import Processes
from unmask.system.errors import DataError, FolderError, SettingsError, Stopped
from unmask.system.signals import StopRequest
from unmask.tasks.classify import Classify
from unmask.tasks.ner import Ner
from unmask.tasks.qa import Qa
from unmask.tasks.regress import Regress
from unmask.text.tokens import Tokenizers
from unmask.train.compose import compose
from unmask.train.optim.optimizers import place_parameters
from unmask.train.optim.schedules import OptimizerSettings
from unmask.train.run import RunOptions
from unmask.train.run_folder import RunFolder
from unmask.train.site import Site
from unmask.train.sources import Dealer
from unmask.train.steps.base import TrainingModule


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Folder:
    return small_model(tmp_path_factory.mktemp("model") / "small")


def network_for(config, seed=0, *, start=None) -> Network:
    """A network with the heads of the task."""
    heads = data().task.heads(config, Tokenizers(None, 32), {})
    return make_network(Shape.of(config, heads), seed, start=start)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_what_a_word_gives_away_is_learned_and_saved_as_a_model(model, tmp_path):
    found = finetune(model, data(), tmp_path / "run", recipe(schedule={"steps": 40}))
    assert found["accuracy"] == 1.0
    folder = load_folder(tmp_path / "run" / "model")
    assert folder.network.shape.labels.names == ("seven", "six")
    assert folder.manifest["task"]["name"] == "classify"
    assert folder.manifest["provenance"]["model"] == "small"
    assert "Scores on held-out data" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_the_encoder_and_the_pooler_are_taken_over_and_the_head_is_new(model):
    network = network_for(model.network.config, 1, start=model.network)
    for part in ("encoders.main", "heads.pooler"):
        for name, tensor in model.network.get_submodule(part).state_dict().items():
            assert torch.equal(network.get_submodule(part).state_dict()[name], tensor), name
    again, other = (network_for(model.network.config, seed, start=model.network) for seed in (1, 2))
    assert torch.equal(network.heads["labels"].dense.weight, again.heads["labels"].dense.weight)
    assert not torch.equal(network.heads["labels"].dense.weight, other.heads["labels"].dense.weight)


def test_transformers_gives_the_same_logits_with_the_same_labels(model, tmp_path):
    finetune(model, data(), tmp_path / "run", recipe())
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


def test_the_best_step_is_the_model(model, tmp_path):
    """Scores that rise and fall: the second evaluation after the first step is the best."""
    job = Examined(model, data(), Marks([0.1, 0.3, 0.9, 0.5, 0.4]))
    found = run(job, tmp_path / "run", recipe()).summary
    assert (found["accuracy"], found["step"]) == (0.9, 8)
    best = load_folder(tmp_path / "run" / "best" / "step-8").network.state_dict()
    kept = load_folder(tmp_path / "run" / "model").network.state_dict()
    assert all(torch.equal(best[name], kept[name]) for name in best)
    last = load_folder(tmp_path / "run" / "checkpoints" / "step-16").network.state_dict()
    assert any(not torch.equal(best[name], last[name]) for name in best)


def test_a_model_names_the_scores_of_its_step(model, tmp_path):
    """And no other number: what the best step was chosen by is one of them already."""
    run(Examined(model, data(), Marks([0.1, 0.3, 0.9, 0.5, 0.4])), tmp_path / "run", recipe())
    for place in ("model", "best/step-8"):
        about = load_folder(tmp_path / "run" / place).manifest["provenance"]
        assert about["scores"] == {"accuracy": 0.9, "loss": 0.0}, place
        assert about["step"] == 8


def test_without_anything_better_for_long_enough_a_run_ends(model, tmp_path):
    job = Examined(model, data(), Marks([0.1, 0.9, 0.5, 0.4, 0.3]))
    found = run(job, tmp_path / "run", recipe(evaluate={"patience": 2})).summary
    assert found["step"] == 4
    assert metrics(tmp_path / "run")[-1]["step"] == 12  # two evaluations after the best


@pytest.mark.parametrize("step", [1, 5, 11])
def test_stopped_anywhere_a_run_goes_on_to_the_same_bits(model, tmp_path, step):
    with single_threaded():
        finetune(model, data(), tmp_path / "whole", recipe())
        with pytest.raises(Stopped):
            finetune(model, data(), tmp_path / "cut", recipe(), console=At(step, terminate))
        finetune(model, data(), tmp_path / "cut", recipe(), resume=True)
    assert state(tmp_path / "cut", 16) == state(tmp_path / "whole", 16)
    weights = [
        (tmp_path / n / "model" / "model.safetensors").read_bytes() for n in ("cut", "whole")
    ]
    assert weights[0] == weights[1]


def test_other_data_is_another_run(model, tmp_path):
    finetune(model, data(), tmp_path / "run", recipe())
    with pytest.raises(
        FolderError, match=r"was started with another data set \(sha256 was [0-9a-f]{12}"
    ):
        finetune(model, data(train=41), tmp_path / "run", recipe(), resume=True)


def windows_and_source(model, tmp_path, count, **changes):
    """The windows of some samples, and where a run takes them from."""
    folder = RunFolder(tmp_path, Heard())
    site = Site(Processes(), folder, folder.console, StopRequest(), 0.0)
    tokens = Tokenizers(model.tokenizer, 32)
    task = data().task
    windows = [own for _, found in task.windows(samples(count), tokens) for own in found]
    part, objective = data(train=count), task.objective
    return windows, window_source(part, tokens, objective, recipe(**changes), site)


def texts_of(batch):
    """The tokens of every text of a batch."""
    rows = zip(batch.row.tolist(), batch.start.tolist(), batch.length.tolist(), strict=True)
    return [tuple(batch.tokens[row, at : at + size].tolist()) for row, at, size in rows]


def test_an_epoch_has_every_window_once(model, tmp_path):
    windows, source = windows_and_source(model, tmp_path, 21, loop={"batch_size": 7})
    known = sorted(tuple(map(int, window.ids)) for window in windows)
    assert len(set(known)) == 21
    orders, cursor = [], {}
    for epoch in range(3):
        seen = []
        for step in range(3 * epoch, 3 * epoch + 3):
            pieces, cursor = source.plan_step(cursor, step, 0.0)
            seen += [text for piece in pieces for text in texts_of(piece.make())]
        assert sorted(seen) == known
        assert cursor == {"epoch": epoch + 1, "row": 0}
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2]


def test_a_step_goes_on_over_the_end_of_an_epoch(model, tmp_path):
    windows, source = windows_and_source(model, tmp_path, 21)
    seen, cursor = Counter(), {}
    for step in range(8):  # of eight windows each: three epochs and a bit
        pieces, cursor = source.plan_step(cursor, step, 0.0)
        texts = [text for piece in pieces for text in texts_of(piece.make())]
        assert len(texts) == 8
        seen.update(texts)
    assert cursor == {"epoch": 3, "row": 1}
    assert set(seen) == {tuple(map(int, window.ids)) for window in windows}
    assert sorted(seen.values()) == [3] * 20 + [4]


def test_what_is_frozen_stays_as_it_is(model, tmp_path):
    finetune(model, data(), tmp_path / "run", recipe(model={"frozen": 1}))
    before = model.network.state_dict()
    after = load_folder(tmp_path / "run" / "checkpoints" / "step-16").network.state_dict()
    for name, tensor in after.items():
        if name in before and not name.startswith("heads.labels."):
            same = torch.equal(before[name], tensor)
            frozen = name.startswith("encoders.") and ".blocks.1." not in name
            assert same == frozen, name


def test_all_can_be_frozen_but_the_head(model, tmp_path):
    finetune(model, data(), tmp_path / "run", recipe(model={"frozen": -1}))
    before = model.network.state_dict()
    after = load_folder(tmp_path / "run" / "checkpoints" / "step-16").network.state_dict()
    changed = [n for n, t in after.items() if n in before and not torch.equal(before[n], t)]
    assert changed == []


def test_more_blocks_than_there_are_cannot_be_frozen(model):
    network = network_for(model.network.config)
    with pytest.raises(SettingsError, match=r"model\.frozen is 3, but the model has 2 layers"):
        freeze(network, 3, pooler=True)


def test_lower_blocks_learn_more_slowly_by_hand(model):
    settings = OptimizerSettings(layer_decay=0.5, head_factor=4.0)
    config, task = model.network.config.model_copy(update={"layers": 3}), data().task
    trainee = TrainingModule(network_for(config), task.objective)
    scales = {name: settings.scale(at.depth, 3) for name, _, at in place_parameters(trainee)}
    assert scales["network.heads.labels.dense.weight"] == 4.0
    assert scales["network.heads.pooler.dense.weight"] == 4.0
    assert scales["network.encoders.main.blocks.2.feed.inner.weight"] == 1.0
    assert scales["network.encoders.main.blocks.0.feed.inner.weight"] == 0.25
    assert scales["network.encoders.main.embeddings.tokens.weight"] == 0.125


@pytest.mark.parametrize("kind", ["classify", "ner"])
def test_a_head_may_read_several_layers(model, tmp_path, kind):
    settings = recipe(model={"head_layers": [1, 2], "frozen": -1})
    own = data() if kind == "classify" else names(tmp_path)
    finetune(model, own, tmp_path / "run", settings)
    folder = load_folder(tmp_path / "run" / "model")
    assert folder.network.shape.labels.mix == (1, 2)
    assert folder.network.heads["labels"].dense.weight.shape[1] == 64


def test_names_are_learned_and_transformers_reads_them(model, tmp_path):
    settings = recipe(
        task={"name": "ner"}, schedule={"steps": 40}, optimizer={"learning_rate": 5e-3}
    )
    found = finetune(model, names(tmp_path), tmp_path / "run", settings)
    assert found["f1"] == 1.0
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / "run" / "model")
    assert list(theirs.config.id2label.values()) == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


def test_several_seeds_have_a_mean_and_a_deviation(model, tmp_path):
    job, settings = Finetune(model, data()), recipe(schedule={"steps": 4})
    found = run_seeds(job, settings, tmp_path / "runs", 3, Heard(), RunOptions())
    each = [scores["accuracy"] for scores in found["seeds"].values()]
    assert found["mean"]["accuracy"] == pytest.approx(np.mean(each))
    assert found["deviation"]["accuracy"] == pytest.approx(np.std(each, ddof=1))
    best = found["best"]
    weights = [tmp_path / "runs" / p / "model.safetensors" for p in ("model", f"{best}/model")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert json.loads((tmp_path / "runs" / "summary.json").read_text()) == found


def test_what_is_in_both_files_is_told(tmp_path):
    path = written(tmp_path, "a.tsv", samples(6))
    found = LabelledFiles(path, path).read(recipe().task)
    assert any("6 of 6 examples are also in the training data" in line for line in found.notes)
    assert found.notes[0].endswith("text is column 'text', label is column 'label'")


def test_a_file_without_rows_is_refused(tmp_path):
    path = written(tmp_path, "a.tsv", samples(6))
    empty = written(tmp_path, "b.tsv", [])
    with pytest.raises(DataError, match="b.tsv: no examples to learn from"):
        LabelledFiles(path, empty).read(recipe().task)


@pytest.mark.parametrize(
    ("name", "kind"), [("classify", Classify), ("regress", Regress), ("qa", Qa), ("ner", Ner)]
)
def test_every_task_has_a_recipe(name, kind):
    task = compose(FINETUNE, name).task
    assert task.name == kind.name == name
    assert type(task.settings) is kind.Config


def test_a_pooler_that_is_new_learns_though_the_rest_is_frozen(model, tmp_path):
    bare = Folder(
        model.path,
        Network(Shape.of(model.network.config, bert_heads(pooler=False))),
        model.tokenizer,
        None,
    )
    finetune(bare, data(), tmp_path / "run", recipe(model={"frozen": -1}))
    first = network_for(bare.network.config, start=bare.network)
    last = load_folder(tmp_path / "run" / "checkpoints" / "step-16").network
    assert not torch.equal(first.heads["pooler"].dense.weight, last.heads["pooler"].dense.weight)
    assert torch.equal(
        first.encoder.embeddings.tokens.weight, last.encoder.embeddings.tokens.weight
    )


@pytest.mark.parametrize("layers", [[3], [-4], [1, 99]])
def test_layers_that_are_not_there_are_refused(model, tmp_path, layers):
    with pytest.raises(SettingsError, match=r"the model has 2 layers; need numbers from 0"):
        finetune(model, data(), tmp_path / "run", recipe(model={"head_layers": layers}))


def test_a_run_must_be_scored(model, tmp_path):
    settings = recipe(evaluate={"times": 0})
    with pytest.raises(SettingsError, match=r"evaluate\.times is 0; need at least 1"):
        finetune(model, data(), tmp_path / "run", settings)
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_the_report_is_drawn_with_every_evaluation(model, tmp_path, monkeypatch):
    """The best is the first; those after it are drawn all the same, and once more at the end."""
    drawn = []
    monkeypatch.setattr(
        "unmask.evaluation.best_step.write_report",
        lambda folder, scored: drawn.append((len(metrics(folder.path, "eval")), scored)),
    )
    job = Examined(model, data(), Marks([0.1, 0.9, 0.5, 0.4, 0.3]))
    run(job, tmp_path / "run", recipe())
    assert [count for count, _ in drawn] == [1, 2, 3, 4, 5, 5]
    assert [scored[""].scores["accuracy"] for _, scored in drawn] == [0.1, *[0.9] * 5]


def test_after_a_stop_the_report_has_the_answers_of_the_best_step(model, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        finetune(model, data(), out, recipe(), console=At(13, terminate))
    (out / "report.html").unlink()
    finetune(model, data(), out, recipe(), resume=True)
    assert "Confusion matrix" in (out / "report.html").read_text()


@pytest.mark.parametrize(("later", "best"), [(0.2, 4), (0.4, 8)])
def test_the_best_step_survives_a_crash_that_takes_steps_back(model, tmp_path, later, best):
    """Best at 4, 8 and 12, a checkpoint at 6: what a crash leaves must have a best step."""

    def crash():
        raise KeyboardInterrupt

    settings, out = recipe(loop={"save_steps": 6}), tmp_path / "run"
    job = Examined(model, data(), Marks([0.1, 0.3, 0.5, 0.9]))
    with pytest.raises(KeyboardInterrupt):
        run(job, out, settings, console=At(13, crash))
    for step in (12, 13):
        shutil.rmtree(out / "checkpoints" / f"step-{step}", ignore_errors=True)
    again = Examined(model, data(), Marks([later] * 9))
    found = run(again, out, settings, resume=True).summary
    assert (found["step"], found["accuracy"]) == (best, max(later, 0.3))
    assert load_folder(out / "model").manifest["provenance"]["step"] == best


def test_a_recipe_may_have_steps_and_no_epochs(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[task]\nname = "classify"\n\n[schedule]\nsteps = 7\n')
    assert compose(FINETUNE, str(path)).schedule.in_steps(1000).steps == 7


def test_processes_share_a_step_in_as_many_parts_each(model, tmp_path):
    """However long the windows of a step happen to be."""
    loop = {"batch_size": 21, "micro_batch_tokens": 27, "micro_batches": 2}
    windows, source = windows_and_source(model, tmp_path, 60, loop=loop)
    deals = [Dealer(source, Processes(rank, 2)) for rank in range(2)]
    cursor, uneven = {}, 0
    for step in range(12):
        chosen, _ = source.take(cursor, 21)
        dealt = [deal.take(cursor, step, 0.0) for deal in deals]
        each = [[texts_of(piece.batch) for piece in own.micro_batches] for own in dealt]
        assert len(each[0]) == len(each[1]) == dealt[0].rounds
        assert all(len(part) for parts in each for part in parts)
        seen = [text for parts in each for part in parts for text in part]
        assert sorted(seen) == sorted(tuple(map(int, windows[i].ids)) for i in chosen)
        uneven += len(list(engine.by_length([windows[i] for i in chosen], 27))) % 2
        assert dealt[0].cursor == dealt[1].cursor
        cursor = dealt[0].cursor
    assert uneven, "otherwise nothing was tried"


def test_steps_replace_epochs():
    assert compose(FINETUNE, "classify", ["schedule.steps=50"]).schedule.steps == 50
    usual = compose(FINETUNE, "classify")
    assert usual.schedule.in_steps(320 / usual.loop.batch_size).steps == 30


@pytest.mark.parametrize(
    "change",
    ["evaluate.tokens=500", 'data.pairs="nsp"', "optimizer.momentum=0.9", "model.width=64"],
)
def test_a_setting_that_fine_tuning_does_not_read_is_refused_by_its_name(change):
    name = change.partition("=")[0]
    with pytest.raises(SettingsError, match=f"^classify: {name} is set, but finetune does not"):
        compose(FINETUNE, "classify", [change])
    table = {"task": {"name": "classify"}}
    section, _, key = name.partition(".")
    table[section] = {key: json.loads(change.partition("=")[2])}
    with pytest.raises(SettingsError, match=f"^recipe: {name} is set, but finetune does not"):
        compose(FINETUNE, table)


def test_momentum_is_read_where_muon_is_chosen():
    changes = ["optimizer.momentum=0.9", "optimizer.kind=muon"]
    assert compose(FINETUNE, "classify", changes).optimizer.momentum == 0.9


@pytest.mark.parametrize("then", ["fp32", "bf16"])
def test_a_resume_in_another_precision_is_announced(model, tmp_path, monkeypatch, then):
    """`auto` is settled by the machine, and another machine may settle it otherwise."""

    def machine(precision):
        monkeypatch.setattr("unmask.train.loop.choose_precision", lambda wanted, on: precision)

    settings, out, said = recipe(loop={"precision": "auto"}), tmp_path / "run", []
    machine("fp32")
    finetune(model, data(), out, settings)
    assert json.loads((out / "facts.json").read_text())["precision"] == "fp32"
    assert 'precision = "auto"' in (out / "recipe.toml").read_text()
    machine(then)  # the run is finished, so that no step needs a CPU that has it
    finetune(model, data(), out, settings, said=said, resume=True)
    warned = [line for line in said if line.startswith("warning: not bit-identical")]
    expected = "because precision was 'fp32' and is 'bf16'"
    assert [line.endswith(expected) for line in warned] == ([] if then == "fp32" else [True])
