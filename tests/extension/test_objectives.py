"""A user's own objectives, each in one file, through the command line with `--plugin`."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.extension.conftest import PLUGINS, command, environment, plugin, pretraining
from unmask import load
from unmask.model.heads import LabelHead
from unmask.train.run_folder import read_metrics

STEPS = 12
RUNS = {  # plugin -> its objective and the settings that it needs
    "own_parameter": ("tempered", []),
    "coupled_pairs": ("halves", []),
    "generator": ("replaced_tokens", []),
    "imitation": ("imitate", ["objective.teacher=bert/model"]),
}
OWN = {
    "own_parameter": {"temperature"},
    "coupled_pairs": {"sharpness"},
    "generator": set(),
    "imitation": {"map.weight", "map.bias"},
}
ONCE = ["model.dropout=0.0", "model.attention_dropout=0.0", "optimizer.max_grad_norm=1e9"]


def run_of(name: str, out: str, *changes: str, steps: int = STEPS) -> list[str]:
    objective, needed = RUNS[name]
    own = [f"schedule.steps={steps}", "loop.save_steps=4", "optimizer.learning_rate=5e-3"]
    return [*pretraining(out, objective, *needed, *own, *changes), *plugin(name)]


def tensors(run: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    """All that a checkpoint holds."""
    place = run / "checkpoints" / f"step-{step}"
    return {
        f"{path.name}/{name}": tensor
        for path in sorted(place.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def whole(world) -> Path:
    """One undisturbed run of each."""
    for name in RUNS:
        command(world, *run_of(name, f"whole-{name}"))
    return world


@pytest.mark.parametrize("path", sorted(PLUGINS.glob("*.py")), ids=lambda path: path.stem)
def test_a_plugin_is_short(path):
    assert len(path.read_text().splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_its_terms_are_learned_and_recorded(whole, name):
    metrics = read_metrics(whole / f"whole-{name}")
    trained = [entry for entry in metrics if entry["kind"] == "train"]
    first, last = trained[0], trained[-1]
    assert last["loss"] < first["loss"]
    held = [entry for entry in metrics if entry["kind"] == "eval"]
    terms = {"own_parameter": {"mlm", "pull"}, "coupled_pairs": {"halves"}}
    terms |= {"generator": {"mlm", "replaced"}, "imitation": {"mlm", "distance"}}
    assert terms[name] <= first.keys()
    assert terms[name] <= held[-1].keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_its_own_parameters_are_saved_with_the_run_and_never_published(whole, name):
    run = whole / f"whole-{name}"
    saved = {key.partition("/")[2] for key in tensors(run) if key.startswith("objective.")}
    assert saved == OWN[name]
    moments = load_file(run / "checkpoints" / f"step-{STEPS}" / "optimizer.safetensors")
    learned = {key.removeprefix("exp_avg/objective.") for key in moments if "/objective." in key}
    assert learned - {key for key in moments} >= OWN[name]
    for folder in [run / "model", *(run / "models").glob("*")]:
        assert not [key for key in load_file(folder / "model.safetensors") if "objective" in key]


@pytest.mark.slow
def test_the_weight_of_a_term_counts_in_the_loss_and_not_in_the_term(whole):
    entry = next(e for e in read_metrics(whole / "whole-own_parameter") if e["kind"] == "train")
    assert entry["pull"] == pytest.approx((2.0 - 1.0) ** 2)  # before the first step
    assert entry["loss"] == pytest.approx(entry["mlm"] + 0.5 * entry["pull"])


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_and_resumed_it_ends_with_the_same_bits(whole, name):
    words, run = run_of(name, f"killed-{name}"), whole / f"killed-{name}"
    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", *words],
        cwd=whole,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while not (run / "checkpoints" / "step-4").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    command(whole, *words, "--resume")
    assert same(tensors(run), tensors(whole / f"whole-{name}"))


def gradients(world: Path, out: str, *changes: str, processes: int = 1) -> dict[str, torch.Tensor]:
    """The first moments after one step: a tenth of the gradient."""
    words = run_of("coupled_pairs", out, *ONCE, *changes, steps=1)
    command(world, *words, processes=processes)
    found = load_file(world / out / "checkpoints" / "step-1" / "optimizer.safetensors")
    return {key: 10 * value for key, value in found.items() if key.startswith("exp_avg/")}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("micro_tokens", [64, 128, 256])
def test_a_coupled_loss_has_the_gradients_of_one_pass(world, micro_tokens, processes):
    """All texts at once in one process, beside any micro-batches and two processes."""
    if not (world / "at-once").exists():
        gradients(world, "at-once", "loop.micro_batch_tokens=512")
    found = load_file(world / "at-once" / "checkpoints" / "step-1" / "optimizer.safetensors")
    expected = {key: 10 * v for key, v in found.items() if key.startswith("exp_avg/")}
    assert expected["exp_avg/objective.sharpness"].abs().item() > 1e-3
    assert expected["exp_avg/heads.half.dense.weight"].abs().max() > 1e-3
    out = f"parts-{micro_tokens}-{processes}"
    changes = [f"loop.micro_batch_tokens={micro_tokens}"]
    parts = gradients(world, out, *changes, processes=processes)
    assert parts.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(parts[name], gradient, rtol=0.0, atol=1e-6, msg=name)


@pytest.mark.slow
def test_a_coupled_loss_with_parameters_of_its_own_is_not_sharded(world):
    words = run_of("coupled_pairs", "shares", steps=1)
    printed = command(world, *words, "--shard", processes=2, code=1).stderr
    assert "--shard: the objective has parameters of its own (sharpness)" in printed


@pytest.mark.slow
def test_two_encoders_are_published_apart_and_each_works_alone(whole):
    run = whole / "whole-generator"
    main, generator = load(run / "model"), load(run / "models" / "generator")
    assert isinstance(main.network.heads["labels"], LabelHead)
    assert main.network.shape.labels.names == ("kept", "replaced")
    assert generator.network.config.width == main.network.config.width // 2
    assert generator.network.config.borrows is None
    assert torch.equal(generator.network.table(), main.network.table())  # learned together
    assert generator.embed(["john lives in paris ."]).shape == (1, 16)
    whole_run = load_file(run / "checkpoints" / f"step-{STEPS}" / "model.safetensors")
    size = main.network.table().shape
    assert sum(tensor.shape == size for tensor in whole_run.values()) == 1  # one table on disk


@pytest.mark.slow
def test_a_companion_is_neither_saved_nor_changed_and_its_digest_is(whole):
    run = whole / "whole-imitation"
    facts = json.loads((run / "facts.json").read_text())
    manifest = json.loads((run / "model" / "unmask.json").read_text())
    assert len(manifest["provenance"]["teacher sha256"]) == 64
    assert manifest["provenance"]["teacher sha256"] in facts["corpus"]
    names = [key for key in tensors(run) if "teacher" in key]
    assert not names


@pytest.mark.slow
def test_a_run_with_another_companion_is_another_run(whole):
    other = [*pretraining("other", "mlm", "schedule.steps=2")]
    command(whole, *other)
    words = run_of("imitation", "whole-imitation", "objective.teacher=other/model")
    printed = command(whole, *words, "--resume", code=2).stderr
    assert "was started with" in printed


@pytest.mark.slow
def test_resuming_needs_the_plugin_again_and_announces_a_changed_file(whole, tmp_path):
    run = ["pretrain", "corpus", "--out", "whole-own_parameter", "--resume", "--threads", "1"]
    printed = command(whole, *run, code=2).stderr
    assert "unknown objective 'tempered'" in printed
    assert "--plugin FILE.py" in printed
    changed = tmp_path / "own_parameter.py"
    changed.write_text((PLUGINS / "own_parameter.py").read_text() + "\n# another line\n")
    printed = command(whole, *run, "--plugin", str(changed)).stderr
    assert "the plugin own_parameter.py has changed since the run was started" in printed
