"""`python -m benchmarks same OLD NEW`: do two checkouts of unmask train the same weights?

Each checkout trains every case in a process of its own, through its command line, from the same
initial tensors, in fp32 on one thread. Two comparisons for each case:

    exact    30 steps with `optimizer.clip=1e9`: the final weights agree bit for bit
    close    50 steps with `optimizer.clip=1.0`: the losses of all steps agree within 1e-6

The gradient norm is a sum over all parameters in their order. So clipping, and only clipping, lets
a reordering of modules change the last bits; hence the two comparisons. The script prints a table
and fails with the names of the cases that differ. Runs of OLD are kept in --work and reused.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EXACT_STEPS, CLOSE_STEPS, TOLERANCE = 30, 50, 1e-6
# Parameter names of OLD -> names of NEW, as prefixes; the first matching prefix is used.
RENAMED: dict[str, str] = {
    f"{prefix}{old}": f"{prefix}{new}"
    for prefix in ("network.", "unmask.")  # in training, and on disk
    for old, new in {
        "encoder.tokens.": "encoders.main.embeddings.tokens.",
        "encoder.segments.": "encoders.main.embeddings.segments.",
        "encoder.positions.": "encoders.main.embeddings.positions.",
        "encoder.norm.": "encoders.main.embeddings.norm.",
        "encoder.": "encoders.main.",
        "pooler.": "heads.pooler.",
        "token_head.": "heads.tokens.",
        "pair_head.": "heads.pair.",
        "label_head.": "heads.labels.",
        "label_heads.": "heads.",
        "decoder.": "heads.decoder.",
    }.items()
}

SHAPE = ["model.size=tiny", "model.width=32", "model.heads=2", "model.inner_width=64"]
PLAIN = ["train.precision=fp32", "train.evaluations=1", "train.save_minutes=1000"]
PRETRAIN = [*SHAPE, *PLAIN, "examples.held_out=5", "optimizer.rate=1e-3", "model.init_std=0.1"]
ONE_PHASE = ["--length", "32", "--batch-tokens", "512"]
TRANSLATE = [*PLAIN, "vocabulary.size=120", "model.width=32", "model.init_std=0.1"]
RECURRENT = [*TRANSLATE, "model.inner_width=32"]


def pretrain(*changes: str, recipe: str = "bert", flags: Iterable[str] = ONE_PHASE) -> list[str]:
    return ["pretrain", recipe, "{data}/corpus", *flags, *_set([*PRETRAIN, *changes])]


def finetune(task: str, ending: str, *changes: str) -> list[str]:
    files = ["--train", f"{{data}}/{task}.train.{ending}", "--dev", f"{{data}}/{task}.dev.{ending}"]
    return ["finetune", task, "{data}/encoder/model", *files, *_set([*PLAIN, *TUNED, *changes])]


def translate(recipe: str, *changes: str) -> list[str]:
    source = ["translate", "train", "{data}/pairs", "--from", "xx", "--to", "yy"]
    return [*source, "--recipe", recipe, *_set([*changes, "optimizer.rate=2e-3", "tune.batch=16"])]


def _set(changes: Iterable[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


TUNED = ["tune.batch=8", "optimizer.rate=1e-3"]
TWO_PHASES = ["--set", "phases.0.share=0.5", "--set", "phases.0.length=32"]
TWO_PHASES += ["--set", "phases.0.batch_tokens=512", "--set", "phases.1.share=0.5"]
TWO_PHASES += ["--set", "phases.1.length=64", "--set", "phases.1.batch_tokens=512"]
SMALL_TRANSFORMER = ["model.heads=2", "model.layers=2", "model.inner_width=64"]
CASES = {
    "pretrain: pairs and dropout": pretrain("examples.pairs=nsp", "model.dropout=0.1"),
    "pretrain: two phases": pretrain(flags=TWO_PHASES),
    "pretrain: Muon": pretrain(recipe="budget", flags=[*ONE_PHASE]),
    "pretrain: running means": pretrain("train.average=0.2"),
    "pretrain: accumulation": pretrain("train.micro_tokens=128"),
    "finetune: classify": finetune("classify", "tsv"),
    "finetune: regress": finetune("regress", "tsv"),
    "finetune: qa": finetune("qa", "json", "tune.length=32", "train.micro_tokens=128"),
    "finetune: ner": finetune("ner", "conll", "tune.layer_decay=0.9", "tune.head_factor=5.0"),
    "finetune: several tasks": [
        *("finetune", "multi", "{data}/tasks.toml", "{data}/encoder/model"),
        *_set([*PLAIN, *TUNED]),
    ],
    "translate: lstm": translate("lstm", *RECURRENT),
    "translate: gru": translate("gru", *RECURRENT, "task.forcing=0.5"),
    "translate: attention": translate("attention", *RECURRENT),
    "translate: transformer": translate("transformer", *TRANSLATE, *SMALL_TRANSFORMER),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks same", description=__doc__)
    parser.add_argument("old", type=Path, help="the checkout to compare with")
    parser.add_argument("new", type=Path, help="the checkout to test")
    parser.add_argument("--work", type=Path, default=Path("results/same"), help="data and runs")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args(sys.argv[2:])
    work, old, new = arguments.work.resolve(), arguments.old.resolve(), arguments.new.resolve()
    prepare(old, work)
    failed, rows = [], []
    for name, command in CASES.items():
        if arguments.only not in name:
            continue
        exact, close = compare(name, command, old, new, work)
        rows.append((name, exact, close))
        print(f"{name:<32} {exact:<36} {close}", flush=True)
        if exact != "bit-identical" or not close.startswith("within"):
            failed.append(name)
    print(f"{len(rows) - len(failed)} of {len(rows)} cases agree")
    if failed:
        raise SystemExit(f"these cases differ: {', '.join(failed)}")


def compare(name: str, command: list[str], old: Path, new: Path, work: Path) -> tuple[str, str]:
    """Train a case in both checkouts; return the results of both comparisons as text."""
    folder = work / name.replace(": ", "-").replace(" ", "-")
    found = []
    for kind, steps, clip in (("exact", EXACT_STEPS, "1e9"), ("close", CLOSE_STEPS, "1.0")):
        runs = {}
        for side, checkout in (("old", old), ("new", new)):
            run = runs[side] = folder / f"{kind}-{side}"
            if side == "old" and (run / "model").exists():
                continue
            settings = _set([f"schedule.steps={steps}", f"optimizer.clip={clip}"])
            if command[0] == "pretrain":
                settings = ["--steps", str(steps), *_set([f"optimizer.clip={clip}"])]
                settings.append("--no-preflight")
            words = [word.format(data=work / "data") for word in command]
            start = folder / f"{kind}-start.safetensors"
            flags = ["--out", str(run), "--threads", "1"]
            remove(run)
            if side == "old":
                start.unlink(missing_ok=True)
            train(checkout, start, [*words, *settings, *flags])
        found.append(kind_of(kind, steps, runs["old"], runs["new"]))
    return found[0], found[1]


def kind_of(kind: str, steps: int, old: Path, new: Path) -> str:
    """Compare two runs; return the result as text for the table."""
    if kind == "exact":
        from safetensors.torch import load_file

        name = f"checkpoints/step-{steps}/model.safetensors"
        first = {renamed(key): tensor for key, tensor in load_file(old / name).items()}
        second = load_file(new / name)
        if first.keys() != second.keys():
            return f"{len(first.keys() ^ second.keys())} tensors are in one of them only"
        worst = {k: float((first[k] - second[k]).abs().max()) for k in first}
        differ = [k for k, v in worst.items() if v != 0.0]
        if not differ:
            return "bit-identical"
        return f"{len(differ)} tensors differ, by up to {max(worst.values()):.1e}"
    before, after = losses(old), losses(new)
    if len(before) != steps or len(after) != steps:
        return f"{len(before)} and {len(after)} losses, expected {steps}"
    gap = max(abs(a - b) / max(abs(a), 1e-9) for a, b in zip(before, after, strict=True))
    return f"{'within' if gap <= TOLERANCE else 'apart by'} {gap:.1e}"


def losses(run: Path) -> list[float]:
    """Return the training loss of each step."""
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    return [entry["loss"] for entry in map(json.loads, lines) if entry["kind"] == "train"]


def train(checkout: Path, start: Path, command: list[str]) -> None:
    """Run a command of a checkout in a process of its own, from the given initial tensors."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    script = [sys.executable, __file__, "--child", str(start), *command]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, cwd=start.parent)
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(command)}\n{done.stdout}{done.stderr}")


def child(start: Path, command: list[str]) -> None:
    """Run a command; save its initial tensors to `start`, or load them from it if it exists."""
    import torch
    from safetensors.torch import load_file, save_file

    import unmask.train.loop as loop
    from unmask.cli import main as run

    torch.set_num_threads(1)
    make = loop.make_optimizer  # called once, when all parameters are initialized

    def with_start(module: torch.nn.Module, *arguments: Any, **settings: Any) -> Any:
        own = dict(module.named_parameters())
        if start.exists():
            stored = {renamed(name): tensor for name, tensor in load_file(start).items()}
            if stored.keys() != own.keys():
                raise SystemExit(f"parameters differ: {sorted(stored.keys() ^ own.keys())}")
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(stored[name])
        else:
            save_file({name: tensor.detach().clone() for name, tensor in own.items()}, start)
        return make(module, *arguments, **settings)

    loop.make_optimizer = with_start
    sys.argv = ["unmask", *command]
    run()


def renamed(name: str) -> str:
    """Return NEW's name of a parameter of OLD."""
    for before, after in RENAMED.items():
        if name.startswith(before):
            return after + name.removeprefix(before)
    return name


def remove(run: Path) -> None:
    import shutil

    run.parent.mkdir(parents=True, exist_ok=True)
    if run.exists():
        shutil.rmtree(run)


def prepare(old: Path, work: Path) -> None:
    """Write the data of all cases, and with OLD's code a vocabulary, a corpus and an encoder."""
    data = work / "data"
    if (data / "encoder" / "model").exists():
        return
    remove(data)
    data.mkdir(parents=True)
    draw = random.Random(0)
    words = [a + b + c for a in ("ba", "do", "ki", "lu") for b in ("m", "r", "s") for c in "aeiou"]

    def text(least: int, most: int) -> list[str]:
        return [draw.choice(words) for _ in range(draw.randint(least, most))]

    documents = ["\n".join(" ".join(text(3, 12)) + "." for _ in range(6)) for _ in range(150)]
    (data / "texts.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    for part, count in (("train", 120), ("dev", 24)):
        texts = [text(3, 14) for _ in range(count)]
        labels = "".join(f"{' '.join(t)}\t{'ba' if t[0] < 'f' else 'ki'}\n" for t in texts)
        _write(data / f"classify.{part}.tsv", f"text\tlabel\n{labels}")
        numbers = "".join(f"{' '.join(t)}\t{len(t) / 5:.2f}\n" for t in texts)
        _write(data / f"regress.{part}.tsv", f"text\tlabel\n{numbers}")
        tagged = ("".join(f"{w} {'B-PER' if w[0] == 'k' else 'O'}\n" for w in t) for t in texts)
        _write(data / f"ner.{part}.conll", "\n".join(tagged))
        _write(data / f"qa.{part}.json", json.dumps(questions(texts)))
        _write(data / f"pairs/{'val' if part == 'dev' else part}.xx", lines(texts))
        _write(data / f"pairs/{'val' if part == 'dev' else part}.yy", lines(t[::-1] for t in texts))
    _write(data / "tasks.toml", tasks(data))
    for command in (
        ["vocab", "learn", f"{data}/texts.txt", "--size", "200", "--out", f"{data}/vocabulary"],
        ["prepare", f"{data}/texts.txt", "--tokenizer", f"{data}/vocabulary"]
        + ["--out", f"{data}/corpus"],
        [w.format(data=data) for w in pretrain("examples.pairs=nsp", "model.dropout=0.1")]
        + ["--steps", "20", "--no-preflight", "--out", f"{data}/encoder", "--threads", "1"],
    ):
        train(old, data / "encoder-start.safetensors", command)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def lines(texts: Iterable[list[str]]) -> str:
    return "".join(f"{' '.join(text)}\n" for text in texts)


def questions(texts: list[list[str]]) -> dict[str, object]:
    """Make questions for the position of a word in a text, in SQuAD's format."""
    paragraphs = []
    for number, text in enumerate(texts):
        context, word = " ".join(text * 3), text[number % len(text)]
        answer = {"text": word, "answer_start": context.index(word)}
        asked = {"id": str(number), "question": f"where is {word}", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [asked]})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


def tasks(data: Path) -> str:
    parts = [("sounds", "classify", "tsv"), ("names", "ner", "conll")]
    return "temperature = 0.5\n" + "".join(
        f'\n[[tasks]]\nname = "{name}"\ntask = {{ name = "{task}" }}\n'
        f'train = "{data}/{task}.train.{ending}"\ndev = "{data}/{task}.dev.{ending}"\n'
        for name, task, ending in parts
    )


if __name__ == "__main__":
    if sys.argv[1] != "--child":
        raise SystemExit("usage: python -m benchmarks same OLD NEW")
    child(Path(sys.argv[2]), sys.argv[3:])
