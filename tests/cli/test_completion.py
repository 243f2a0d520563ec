"""What a shell offers for the beginning of a word."""

import os
import subprocess
import sys

import pytest


def offered(*words, home="/nowhere", shell="bash"):
    """The completions of the last word, and the modules that were imported for them."""
    variables = {
        **os.environ,
        "UNMASK_HOME": str(home),
        "_UNMASK_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(["unmask", *words]),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-X", "importtime", "-m", "unmask"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    return done.stdout.split(), modules


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["fi"], ["finetune", "fill"]),
        (["translate", "ev"], ["evaluate"]),
        (["fill", "mi"], ["minilm"]),
        (["fill", "minilm", "--dev"], ["--device"]),
        (["fill", "minilm", "--device", "cu"], ["cuda", "cuda:0"]),
        (["finetune", "c"], ["classify"]),
        (["finetune", "m"], ["multi"]),
        (["finetune", "classify", "mi"], ["minilm"]),
        (["check", "d.tsv", "--task", "re"], ["regress"]),
        (["pretrain", "b"], ["bert", "budget"]),
        (["pretrain", "--size", "m"], ["mini", "medium"]),
        (["pretrain", "--pairs", "s"], ["sop"]),
        (["embed", "minilm", "--pool", "c"], ["cls"]),
        (["translate", "train", "--recipe", "tr"], ["transformer"]),
        (["vocab", "learn", "--criterion", "l"], ["likelihood"]),
    ],
)
def test_names_are_completed_without_torch(words, names):
    found, modules = offered(*words)
    assert found == names
    assert "torch" not in modules


def test_all_sizes_are_offered_from_small_to_large():
    sizes = ["tiny", "mini", "small", "medium", "base", "large", "auto"]
    assert offered("pretrain", "--size", "''")[0] == sizes


def test_models_of_the_hub_that_were_downloaded_are_offered(tmp_path):
    (tmp_path / "models" / "hf-google--bert").mkdir(parents=True)
    assert offered("info", "hf", home=tmp_path)[0] == ["hf:google/bert"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shell):
    variables = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "unmask", "--show-completion", shell]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert f"_UNMASK_COMPLETE=complete_{shell}" in done.stdout
