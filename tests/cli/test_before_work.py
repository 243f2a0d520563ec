"""Mistakes, missing files and missing packages are reported before any work begins.

All commands run in processes in which torch cannot be imported: whatever is reported there, is
reported before a model is loaded or a run is started.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.corpora import chatter, corpus_of
from unmask.cli.checks import OPTIONAL, require_optional
from unmask.system.errors import UserError

ROOT = Path(__file__).parents[2]
TUNE = "finetune classify TINY --train GOOD --dev GOOD --out OUT"
TRAIN = "translate train --train PAIRS --dev PAIRS --out OUT"
MISTAKES = {
    "finetune: training data": (TUNE.replace("--train GOOD", "--train no.tsv"), "no.tsv: no such"),
    "finetune: held-out data": (TUNE.replace("--dev GOOD", "--dev no.tsv"), "no.tsv: no such file"),
    "finetune: model": (TUNE.replace("TINY", "minillm"), "did you mean 'minilm'?"),
    "finetune: task": (TUNE.replace("classify", "clasify"), "did you mean 'classify'?"),
    "finetune: recipe": (TUNE.replace("classify", "no.toml"), "no.toml: cannot be read"),
    "finetune: setting": (f"{TUNE} --set loop.bath_size=3", "did you mean 'batch_size'?"),
    "finetune: value": (f"{TUNE} --set loop.batch_size=none", "batch_size"),
    "finetune: device": (f"{TUNE} --device gpu", "unknown device 'gpu'"),
    "finetune: records": (f"{TUNE} --on-bad ignore", "unknown choice 'ignore'"),
    "finetune: a run is there": (
        TUNE.replace("OUT", "RUN"),
        "RUN: the folder already holds a run.",
    ),
    "finetune: no run is there": (
        TUNE.replace("OUT", "FULL"),
        "FULL: the folder is not empty and holds no run.",
    ),
    "finetune: folder": (TUNE.replace("OUT", "GOOD/run"), "GOOD is not a folder"),
    "multi: recipe": ("finetune multi no.toml TINY --out OUT", "no.toml: cannot be read"),
    "multi: data": ("finetune multi MULTI TINY --out OUT", "missing.tsv: no such file"),
    "multi: setting": ("finetune multi MULTI TINY --out OUT --set loop.bath_size=3", "batch_size"),
    "evaluate: data": ("evaluate TINY no.tsv", "no.tsv: no such file"),
    "evaluate: model": ("evaluate no-model GOOD", "no-model: no such folder"),
    "evaluate: column": ("evaluate TINY GOOD --column text", "need FIELD=COLUMN"),
    "predict: data": ("predict TINY no.txt", "no.txt: no such file"),
    "predict: run": ("predict RUN GOOD", "a run that has no model yet"),
    "check: data": ("check no.tsv", "no.tsv: no such file"),
    "check: training data": ("check GOOD --train no.tsv", "no.tsv: no such file"),
    "check: task": ("check GOOD --task clasify", "did you mean 'classify'?"),
    "compile: texts": ("compile TINY --texts no.txt --out OUT", "no.txt: no such file"),
    "compile: model": ("compile minillm --out OUT", "did you mean 'minilm'?"),
    "export: folder": ("export TINY --out FULL", "FULL: already exists"),
    "look: texts": ("look TINY text --texts no.txt --out L.html", "no.txt: no such file"),
    "look: head": ("look TINY text --mute 3 --out L.html", "--mute 3: need LAYER.HEAD"),
    "look: other model": ("look TINY text --beside minillm --out L.html", "'minilm'?"),
    "serve: model": ("serve minillm", "did you mean 'minilm'?"),
    "serve: run": ("serve TINY --run nowhere", "run nowhere: no such folder"),
    "serve: queue": ("serve TINY --texts 9 --queue 3", "Raise queue"),
    "serve: device": ("serve TINY --device gpu", "unknown device 'gpu'"),
    "translate train: data": (TRAIN.replace("--dev PAIRS", "--dev no.tsv"), "no.tsv: no such file"),
    "translate train: recipe": (f"{TRAIN} --recipe lstn", "did you mean 'lstm'?"),
    "translate train: setting": (f"{TRAIN} --set task.x=1 --set model.wdth=3", "'width'?"),
    "translate train: vocabulary": (f"{TRAIN} --vocabulary nowhere", "nowhere: no such folder"),
    "translate train: model": (f"{TRAIN} --model minillm", "did you mean 'minilm'?"),
    "translate run: data": ("translate run TINY no.txt", "no.txt: no such file"),
    "translate run: search": ("translate run TINY GOOD --top-k 5", "set sample"),
    "translate evaluate: data": ("translate evaluate TINY no.tsv", "no.tsv: no such file"),
    "translate look: ending": ("translate look TINY text --out l.png", "need .svg"),
    "translate compare: file": ("translate compare no.toml", "no.toml: cannot be read"),
    "translate compare: recipe": ("translate compare COMPARE", "did you mean 'lstm'?"),
    "pretrain: corpus": ("pretrain nowhere --out OUT", "nowhere: no such folder"),
    "pretrain: batch": ("pretrain CORPUS --out OUT --batch-size 8 --batch-tokens 64", "Give one"),
    "pretrain: setting": ("pretrain CORPUS/corpus --out OUT --set loop.bath_size=3", "unknown key"),
    "pretrain: a run is there": (
        "pretrain CORPUS --out RUN",
        "RUN: the folder already holds a run.",
    ),
    "prepare: data": ("prepare no.txt --tokenizer TINY --out OUT", "no.txt: no such file"),
    "prepare: tokenizer": ("prepare GOOD --tokenizer minillm --out OUT", "'minilm'?"),
    "embed: data": ("embed TINY no.txt", "no.txt: no such file"),
    "vocab learn: data": ("vocab learn no.txt --size 99 --out OUT", "no.txt: no such file"),
    "demo: folder": ("demo --out FULL", "FULL: the folder is not empty"),
    "demo: device": ("demo --out OUT --device gpu", "unknown device 'gpu'"),
    "get: model": ("get minillm", "did you mean 'minilm'?"),
}
NEEDS = {  # a command, and a package that it cannot do without
    "ray": ("prepare TEXTS --tokenizer TINY --out OUT --engine ray", "ray"),
    "tensorboard, pretrain": ("pretrain CORPUS --out OUT --tensorboard", "tensorboard"),
    "tensorboard, finetune": (f"{TUNE} --tensorboard", "tensorboard"),
    "tensorboard, translate": (f"{TRAIN} --tensorboard", "tensorboard"),
    "optuna": (f"{TUNE} --search 2", "optuna"),
    "sacrebleu, translate train": (TRAIN, "sacrebleu"),
    "sacrebleu, finetune": (f"{TUNE.replace('classify', 'translate')}", "sacrebleu"),
    "sacrebleu, evaluate": ("translate evaluate TINY PAIRS", "sacrebleu"),
    "sacrebleu, compare": ("translate compare BOTH", "sacrebleu"),
    "hub": ("get hf:google/bert", "huggingface_hub"),
    "compile, onnx": ("compile TINY --out OUT", "onnx"),
    "compile, onnxscript": ("compile TINY --out OUT", "onnxscript"),
    "compile, onnxruntime": ("compile TINY --out OUT", "onnxruntime"),
    "export, onnx": ("export TINY --out OUT", "onnx"),
    "export, onnxscript": ("export TINY --out OUT", "onnxscript"),
    "export, onnxruntime": ("export TINY --out OUT", "onnxruntime"),
    "captum": ("look TINY text --integrated --out L.html", "captum"),
    "serve, fastapi": ("serve TINY", "fastapi"),
    "serve, uvicorn": ("serve TINY", "uvicorn"),
    "serve, prometheus": ("serve TINY", "prometheus_client"),
    "parquet, embed": ("embed TINY T.parquet", "pyarrow"),
    "parquet, embed --out": ("embed TINY TEXTS --out V.parquet", "pyarrow"),
    "parquet, predict": ("predict TINY T.parquet", "pyarrow"),
    "parquet, check": ("check T.parquet", "pyarrow"),
    "parquet, finetune": (TUNE.replace("GOOD", "T.parquet"), "pyarrow"),
    "parquet, vocab learn": ("vocab learn T.parquet --size 99 --out OUT", "pyarrow"),
    "zst, prepare": ("prepare T.txt.zst --tokenizer TINY --out OUT", "pyarrow"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny):
    """A folder with what the commands name in capitals."""
    folder = tmp_path_factory.mktemp("before")
    (folder / "GOOD").write_text("text\tlabel\na cat\t1\na dog\t0\n")
    (folder / "TEXTS").write_text("a cat\na dog\n")
    (folder / "PAIRS.tsv").write_text("source\ttarget\neins\tone\n")
    (folder / "FULL").mkdir()
    (folder / "FULL" / "mine").touch()
    (folder / "RUN").mkdir()
    (folder / "RUN" / "recipe.toml").touch()
    for name in ("T.parquet", "T.txt.zst"):
        (folder / name).touch()
    entry = '[[tasks]]\nname = "one"\ntrain = "GOOD"\ndev = "missing.tsv"\ntask.name = "classify"\n'
    (folder / "MULTI.toml").write_text(entry)
    for name, recipe in (("COMPARE", "lstn"), ("BOTH", "lstm")):
        (folder / f"{name}.toml").write_text(
            'out = "OUT"\ntrain = ["PAIRS.tsv"]\ndev = ["PAIRS.tsv"]\n'
            f'[[variants]]\nname = "one"\nrecipe = "{recipe}"\n'
        )
    corpus_of(folder / "CORPUS", chatter(80))
    return folder


def outcomes(place, tiny, commands):
    """Exit code and error of each command, in one process; nothing may have been written."""
    endings = {"PAIRS": "PAIRS.tsv", "MULTI": "MULTI.toml", "COMPARE": "COMPARE.toml"}
    endings |= {"BOTH": "BOTH.toml", "TINY": str(tiny)}
    table = {
        name: ([endings.get(word, word) for word in words.split()], hidden)
        for name, (words, hidden) in commands.items()
    }
    before = sorted(place.rglob("*"))
    script = ROOT / "tests" / "cli" / "in_one_process.py"
    command = [sys.executable, str(script), json.dumps(table)]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(place.rglob("*")) == before
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def refused(place, tiny):
    return outcomes(
        place, tiny, {name: (words, ["torch"]) for name, (words, _) in MISTAKES.items()}
    )


@pytest.fixture(scope="module")
def without_package(place, tiny):
    commands = {name: (case[0], ["torch", case[1]]) for name, case in NEEDS.items()}
    return outcomes(place, tiny, commands)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_before_torch_is_imported(refused, mistake):
    code, message = refused[mistake]
    assert code == 2, message
    assert MISTAKES[mistake][1] in message


@pytest.mark.parametrize("need", NEEDS)
def test_a_missing_package_is_reported_before_torch_is_imported(without_package, need):
    code, message = without_package[need]
    assert code == 2, message
    assert f"needs {NEEDS[need][1]}, which is not installed. Run: pip install " in message


def test_every_optional_dependency_of_the_package_is_checked():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = {*table["project"]["optional-dependencies"]} - {"test", "check", "bench"}
    assert {extra for _, extra in OPTIONAL.values()} == extras


@pytest.mark.parametrize("feature", OPTIONAL)
def test_a_package_that_is_there_is_not_missed(feature, monkeypatch):
    packages, extra = OPTIONAL[feature]
    for package in packages:
        pytest.importorskip(package)
    require_optional(feature)
    monkeypatch.setitem(sys.modules, packages[0], None)
    with pytest.raises(UserError, match=rf"pip install 'unmask\[{extra}\]'"):
        require_optional(feature)
