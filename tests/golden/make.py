"""Write the golden folders: models, and an interrupted run, as the code of one commit writes them.

    git worktree add ../at-3616f50 3616f50      # and copy tests/golden/*.py into it
    cd ../at-3616f50 && PYTHONPATH=$PWD/src python -m tests.golden.make

Run this script on commit 3616f50 only, and never on a later one: the folders record what that
version wrote and answered, and every later version is tested against them. The script refuses to
run when `src` or `recipes` differ from that commit. It runs on one thread in fp32. Weights,
answers and losses are the same in every run on the same machine; only clock values differ.

Everything is tiny: about 100 tokens, width 16, two layers. After training, noise is added to every
tensor of a model, biases and norms included, so that a later version that ignores or misplaces a
tensor gives other answers. The interrupted run is left as training left it.

The unmask package is imported inside the functions, because pytest imports this file for its
doctests on later versions too, where the modules have other names.
"""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from tests.golden.toys import write_pairs, write_tasks, write_text

COMMIT = "3616f50"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NOISE = 0.05  # standard deviation; weights of width 16 are about 0.25
JITTER = 3e-7  # relative; what another CPU may do to a sum
SIZES = {"width": 16, "layers": 2, "max_length": 48, "init_std": 0.2}
EXACT = ["--threads", "1", "--set", "train.precision=fp32"]
STOP, SAVED, STEPS = 8, 6, 14  # steps of the interrupted run: killed after, saved at, planned

INTERRUPTED: dict[str, Any] = {
    "seed": 3,
    "model": {"size": "tiny", **SIZES, "heads": 2, "inner_width": 32, "dropout": 0.0}
    | {"attention_dropout": 0.0},
    "examples": {"pairs": "nsp", "held_out": 6},
    "objective": {"name": "mlm"},
    "optimizer": {"kind": "muon", "rate": 5e-3},
    "schedule": {"steps": STEPS, "warmup": 0.2},
    "phases": [
        {"share": 0.65, "length": 24, "batch_tokens": 384},
        {"share": 0.35, "length": 40, "batch_tokens": 480},
    ],
    "train": {"precision": "fp32", "micro_tokens": 160, "average": 0.3, "evaluations": 2}
    | {"save_steps": SAVED},
}


def main() -> None:
    """Delete folders/ and expected/, and write them again."""
    refuse_other_commits()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    for place in ("folders", "expected"):
        shutil.rmtree(HERE / place, ignore_errors=True)
        (HERE / place).mkdir()
    with TemporaryDirectory() as scratch:
        os.chdir(scratch)  # paths that end up in manifests and logs are relative
        write_corpus()
        make_interrupted()
        make_budget()
        make_tasks()
        make_translators()
        os.chdir(ROOT)
    size = sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file())
    print(f"{size:,} bytes in {HERE}")


def refuse_other_commits() -> None:
    """Compare the code with that of the commit."""
    command = ["git", "diff", "--quiet", COMMIT, "--", "src", "recipes"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise SystemExit(
            f"src or recipes differ from commit {COMMIT}. The golden folders are what that commit "
            "wrote; check it out in a worktree and run this script there."
        )


def unmask(*arguments: object) -> None:
    """Run a command as a user does."""
    subprocess.run([sys.executable, "-m", "unmask", *map(str, arguments)], check=True)


def sets(**settings: object) -> list[str]:
    """Turn model__width=16 into --set model.width=16."""
    pairs = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    return [word for pair in pairs for word in ("--set", pair)]


def write_corpus() -> None:
    """Text, a vocabulary learned from it, and the prepared corpus."""
    write_text(Path("text.txt"))
    unmask("vocab", "learn", "text.txt", "--size", 96, "--out", "words")
    flags = ["--lines", "sentences", "--workers", 1]
    unmask("prepare", "text.txt", "--tokenizer", "words", "--out", "corpus", *flags)


def make_interrupted() -> None:
    """Pre-train to the end, again until killed, and resume a copy; record the resumed steps."""
    from tests.golden.outputs import FOLDERS, checkpointed
    from unmask import load
    from unmask.train.pretrain import pretrain
    from unmask.train.run import read_metrics

    def killed(position: Any, report: Any, progress: float) -> None:
        if position.step == STOP:
            raise KeyboardInterrupt

    pretrain(Path("corpus"), Path("whole"), INTERRUPTED, check=False)
    with suppress(KeyboardInterrupt):
        pretrain(Path("corpus"), Path("run"), INTERRUPTED, check=False, show=killed)
    target = FOLDERS / "interrupted"
    ours = shutil.ignore_patterns(".lock*", "report.html", "curves.svg", "*.tmp-*")
    shutil.copytree("run", target / "run", ignore=ours)
    shutil.copytree("corpus", target / "corpus", ignore=ours)
    shutil.copytree(target / "run", "resumed")
    pretrain(Path("corpus"), Path("resumed"), None, resume=True)

    kept = ("kind", "step", "mlm", "pair", "loss", "norm", "rate", "tokens")
    resumed, whole = (
        [{key: entry[key] for key in kept if key in entry} for entry in read_metrics(Path(run))]
        for run in ("resumed", "whole")
    )
    assert resumed == whole, "resuming must be exact"
    steps = [entry for entry in resumed if entry["step"] > SAVED]
    inputs = {
        "texts": ["john lives in paris .", "the quiet bird sleeps ."],
        "masked": ["anna lives in [MASK] .", "the [MASK] dog [MASK] ."],
        "pairs": [["who feeds the cat ?", "anna does ."], ["the old cat sleeps .", "in oslo ."]],
    }
    (checkpoint,) = (target / "run" / "checkpoints").iterdir()
    answers = checkpointed(load(checkpoint), inputs)
    write("interrupted", {"inputs": inputs, "outputs": answers, "metrics": steps})


def make_budget() -> None:
    """Pre-train by the recipe `budget`, tiny."""
    sizes = {f"model__{name}": value for name, value in SIZES.items()} | {"model__max_length": 128}
    small = sets(**sizes, model__heads=2, model__inner_width=32, examples__held_out=6)
    flags = ["--size", "tiny", "--steps", 300, "--batch-tokens", 512, "--rate", 0.02]
    flags += ["--no-preflight", *small]
    unmask("pretrain", "budget", "corpus", "--out", "budget", *flags, *EXACT)
    inputs = {
        "texts": ["john lives in paris .", "a cat and a dog play in the red house .", "unknown"],
        "masked": ["anna lives in [MASK] .", "the [MASK] dog [MASK] ."],
    }
    publish("budget/model", "budget", inputs)


def make_tasks() -> None:
    """Pre-train a BERT, and fine-tune it for each task, and for two tasks together."""
    from unmask.train.pretrain import pretrain

    longer = {"schedule": {"steps": 400}, "train": {"precision": "fp32"}}
    pretrain(Path("corpus"), Path("bert"), {**INTERRUPTED, **longer}, check=False)
    inputs = write_tasks(Path())
    small = sets(tune__batch=8, tune__epochs=30.0, train__evaluations=2, optimizer__rate=5e-3)
    own = {"qa": sets(tune__length=32, task__stride=8), "regress": ["--second", "second"]}
    for task in inputs:
        ending = "conll" if task == "ner" else "jsonl"
        files = ["--train", f"{task}.train.{ending}", "--dev", f"{task}.dev.{ending}"]
        flags = [*files, "--out", task, *small, *own.get(task, []), *EXACT]
        unmask("finetune", task, "bert/model", *flags)
        publish(f"{task}/model", task, inputs[task])
    Path("multi.toml").write_text(
        '[[tasks]]\nname = "animal"\ntask = { name = "classify" }\n'
        'train = "classify.train.jsonl"\ndev = "classify.dev.jsonl"\n'
        '[[tasks]]\nname = "names"\ntask = { name = "ner" }\n'
        'train = "ner.train.conll"\ndev = "ner.dev.conll"\n'
    )
    unmask("finetune", "multi", "multi.toml", "bert/model", "--out", "multi", *small, *EXACT)
    publish_several({"animal": inputs["classify"], "names": inputs["ner"]})


def make_translators() -> None:
    """Train the four recipes on a toy language pair: word by word, in reversed order."""
    write_pairs(Path())
    inputs = {
        "texts": ["hund", "alt rot haus", "", "gross katze baum alt hund rot"],
        "pairs": [["rot hund", "dog red"], ["alt haus gross baum", "tree big house old"]],
    }
    small = sets(tune__batch=20, tune__epochs=60.0, train__evaluations=1, vocabulary__size=60)
    small += sets(**{f"model__{name}": value for name, value in SIZES.items()})
    small += sets(optimizer__rate=1e-2, model__dropout=0.0, task__smoothing=0.0)
    shapes = {
        "lstm": sets(model__inner_width=16, vocabulary__joint="false"),  # two vocabularies
        "gru": sets(model__inner_width=16),
        "attention": sets(model__inner_width=16),
        "transformer": sets(model__heads=2, model__inner_width=32),
    }
    for recipe, shape in shapes.items():
        flags = [*("--from", "de", "--to", "en", "--recipe", recipe), *small, *shape, *EXACT]
        unmask("translate", "train", ".", "--out", recipe, *flags)
        publish(f"{recipe}/model", recipe, inputs)


def publish(made: str, name: str, inputs: dict[str, Any]) -> None:
    """Store a model with noise in its tensors, and what it answers."""
    from tests.golden.outputs import ASK, FOLDERS, load
    from unmask.checkpoint.folder import load_folder

    folder = load_folder(Path(made))
    add_noise(folder.network)
    save(folder, folder.network, FOLDERS / name, folder.manifest)
    answers = ASK[name](load(name), inputs)
    check(lambda: load(name), ASK[name], inputs, answers)
    write(name, {"inputs": inputs, "outputs": answers})


def publish_several(inputs: dict[str, Any]) -> None:
    """Store the model with two heads, and the two models that share its weights."""
    from tests.golden.outputs import FOLDERS, SEVERAL, load
    from unmask.checkpoint.folder import load_folder

    whole = load_folder(Path("multi/model"))
    add_noise(whole.network)
    save(whole, whole.network, FOLDERS / "multi" / "model", whole.manifest)
    answers = {}
    for name, ask in SEVERAL.items():
        place = f"multi/models/{name}"
        own = load_folder(Path(place))
        save(own, whole.network.only(name), FOLDERS / place, own.manifest)
        answers[name] = ask(load(place), inputs[name])
        check(lambda place=place: load(place), ask, inputs[name], answers[name])
    write("multi", {"inputs": inputs, "outputs": answers})


def save(folder: Any, network: Any, target: Path, manifest: dict[str, Any]) -> None:
    """Write a model folder with what the manifest of another says of it."""
    from unmask.checkpoint.folder import save_folder

    about = {key: manifest.get(key) for key in ("recipe", "provenance", "task")}
    save_folder(target, network, folder.tokenizer, target=folder.target, **about)


def add_noise(network: Any) -> None:
    """Move every tensor away from its first value, biases and norms too."""
    draw = np.random.default_rng(0)
    for tensor in network.state_dict().values():
        noise = draw.normal(0.0, NOISE, tuple(tensor.shape)).astype(np.float32)
        tensor.add_(torch.from_numpy(noise))


def check(load: Any, ask: Any, inputs: dict[str, Any], answers: dict[str, Any]) -> None:
    """Require that every tensor of the folder counts, and that rounding does not."""
    from tests.golden.outputs import differences
    from unmask.checkpoint.tensors import layout

    network = load().network
    for name, slot in layout(network).items():
        model = load()
        model.network.state_dict()[slot.ours][slot.rows] = 0.0
        # One bias for all keys adds the same to all scores of a query, and softmax ignores it.
        free = name.endswith("key.bias") and network.config.positions != "rotary"
        assert free or differences(ask(model, inputs), answers), f"{name} does not count"
    draw = np.random.default_rng(1)
    for _ in range(5):
        model = load()
        for tensor in model.network.state_dict().values():
            noise = draw.normal(1.0, JITTER, tuple(tensor.shape)).astype(np.float32)
            tensor.mul_(torch.from_numpy(noise))
        assert not (found := differences(ask(model, inputs), answers)), found


def write(name: str, table: dict[str, Any]) -> None:
    """Write inputs and outputs as JSON, numbers with nine significant digits."""
    text = json.dumps(rounded(table), indent=1, ensure_ascii=False) + "\n"
    (HERE / "expected" / f"{name}.json").write_text(text, "utf-8")


def rounded(value: Any) -> Any:
    """Round the floats of a table."""
    if isinstance(value, dict):
        return {key: rounded(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(own) for own in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
