"""`--device`: which verbs have it, what it refuses, and that it reaches the work."""

import json

import pytest
import torch

from tests.cli.asked import options_of
from tests.cli.test_cli import said
from tests.cli.test_help import LEAVES
from tests.corpora import chatter, corpus_of
from unmask import load
from unmask.infer.loaded import move_model
from unmask.system.errors import SettingsError

COMPUTE = {"embed", "fill", "next", "evaluate", "predict", "look", "serve", "pretrain", "finetune"}
COMPUTE |= {"demo"} | {f"translate {verb}" for verb in "train run evaluate compare look".split()}
TRAINING = ["pretrain", "finetune", "translate train"]


def flags_of(command):
    return {flag for param in command.params for flag in getattr(param, "opts", [])}


@pytest.mark.parametrize(("command", "name"), LEAVES)
def test_verbs_that_compute_have_it(command, name):
    assert ("--device" in flags_of(command)) == (" ".join(name) in COMPUTE)


@pytest.mark.parametrize("verb", TRAINING)
def test_training_verbs_share_their_flags(verb):
    (command,) = [case.values[0] for case in LEAVES if case.id == verb]
    shared = {"--seed", "--learning-rate", "--lr", "--batch-size", "--max-length", "--device"}
    # The length of pre-training is in steps or minutes: it has no epochs.
    assert shared | ({"--epochs"} if verb != "pretrain" else set()) <= flags_of(command)


@pytest.mark.parametrize("device", ["cuda:7", "mps"])
def test_a_device_that_is_not_there_is_refused(unmask, tiny, device):
    message = said(unmask("fill", tiny, "the [MASK]", "--device", device))
    assert f"device {device}: this machine does not have it. Available: auto, cpu" in message


def test_the_cpu_computes_what_auto_does(unmask, tiny):
    by = [unmask("next", tiny, "the cat", "sat", "--json", *d) for d in ([], ["--device", "cpu"])]
    assert json.loads(by[0].stdout) == json.loads(by[1].stdout)


def test_it_reaches_a_run(tmp_path):
    corpus = corpus_of(tmp_path / "corpus", chatter(80)).path
    words = ["pretrain", corpus, "--out", tmp_path / "run", "--device", "cpu"]
    assert options_of(*words).device == "cpu"
    assert options_of(*words[:-2]).device == "auto"


def test_a_model_moves_and_a_compiled_one_stays(tiny):
    model = load(tiny)
    move_model(model, "cpu")
    assert model.network.table().device == torch.device("cpu")
    model.forward = object()  # as if it were compiled: another pass than the live one
    move_model(model, "auto")
    with pytest.raises(SettingsError, match="compiled for ONNX Runtime on the CPU"):
        move_model(model, "cuda")
