"""The demo: a small BERT from raw text to a fine-tuned classifier, in minutes.

It needs no data: the text is the documentation in the source files of Python's standard library and
of installed packages. The demo learns a vocabulary, pre-trains a small BERT and fine-tunes it to
recognise which library a sentence documents, beside the same network without pre-training.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from unmask.checkpoint.folder import load_folder
from unmask.checkpoint.vocabulary import learn_folder, load_tokenizer
from unmask.data.corpus.prepare import PrepareSettings, prepare
from unmask.data.corpus.statistics import CorpusReport
from unmask.data.labelled.columns import Sample
from unmask.data.labelled.table_files import write_table
from unmask.data.read.docstrings import LIBRARIES, Module, read_library
from unmask.evaluation.report.charts import Chart, Line
from unmask.evaluation.report.html import REPORT, report_page
from unmask.evaluation.tasks import Labelled
from unmask.jobs.finetune import Finetune
from unmask.jobs.pretrain import Pretrain
from unmask.jobs.settings_read import FINETUNE
from unmask.model.network import Network, count_parameters
from unmask.system.console import Console
from unmask.tasks.classify import Classify, ClassifySettings
from unmask.text.learn import LearnSettings
from unmask.text.sentences import split_sentences
from unmask.text.tokenizer import Tokenizer
from unmask.train.compose import compose
from unmask.train.recipe import Recipe
from unmask.train.run import Run, RunOptions
from unmask.train.run_folder import of_kind, read_metrics

Say = Callable[[str], None]
HELD_OUT_EVERY = 8  # one module in eight is held out from vocabulary, pre-training and fine-tuning


@dataclass(frozen=True)
class DemoSize:
    """The amounts of text and training in the full and in the fast demo."""

    characters: int  # read from each library
    vocabulary: int
    minutes: float  # of pre-training
    labelled: int  # sentences of each library to fine-tune on
    steps: int  # of fine-tuning


FULL = DemoSize(characters=600_000, vocabulary=4096, minutes=2.0, labelled=150, steps=120)
FAST = DemoSize(characters=100_000, vocabulary=1500, minutes=0.2, labelled=60, steps=30)


def run_demo(
    out: Path,
    *,
    fast: bool = False,
    console: Console | None = None,
    say: Say = Console().say,
    device: str = "auto",
) -> dict[str, Any]:
    """Run the demo in a new folder, print its steps with `say`, and return its result."""
    size = FAST if fast else FULL
    started = step_started = time.perf_counter()
    finished: list[tuple[str, float, str]] = []

    def step(title: str) -> None:
        nonlocal step_started
        step_started = time.perf_counter()
        say(f"\n{len(finished) + 1}. {title}\n")

    def done(name: str, result: str) -> None:
        finished.append((name, time.perf_counter() - step_started, result))

    step("Collect text: the documentation of Python and of installed libraries")
    seen, unseen = gather(size.characters, say)
    files = write_texts(seen, out)
    characters = sum(module.characters for module in seen)
    done("read", f"{characters:,} characters from {len(seen)} modules")

    step("Learn a vocabulary from the text")
    settings = LearnSettings(size=size.vocabulary)
    learned = learn_folder(files, out / "vocabulary", settings)
    tokenizer = load_tokenizer(out / "vocabulary")
    show_tokens(tokenizer, say)
    result = f"{learned.tokens:,} tokens, {learned.tokens_per_word:.2f} per word"
    done("learn a vocabulary", result)

    step("Prepare the corpus: sentences, documents and tokens")
    manifest = prepare(files, tokenizer, out / "corpus", PrepareSettings())
    assert manifest is not None
    statistics = CorpusReport(**manifest["statistics"])
    say(f"   {statistics.documents:,} documents, {statistics.sentences:,} sentences")
    done("prepare", f"{statistics.tokens:,} tokens")

    step(f"Pre-train for {60 * size.minutes:.0f} seconds: masked tokens and next sentences")
    options = RunOptions(check=True, device=device)
    model = pretrain(out, size, IndentedConsole(console or Console(), say), options)
    metrics = read_metrics(out / "pretrain")
    last = of_kind(metrics, "eval")[-1]
    result = f"loss {last['mlm']:.2f}; token frequencies alone: {last['unigram_loss']:.2f}"
    done("pre-train", result)
    show_predictions(last["masked_predictions"], say)

    step("Fine-tune: which library does a sentence document?")
    accuracies = compare(model, label(seen, unseen, size, out), size, out, say, device)
    done("fine-tune twice", " and ".join(f"{a:.1%} {n}" for n, a in accuracies.items()))
    write_page(out, metrics, recipe(size))
    seconds = time.perf_counter() - started
    show_table(finished, seconds, out, say)
    losses = {"loss": last["mlm"], "unigram_loss": last["unigram_loss"]}
    folders = {"folder": str(out), "model": str(model), "report": str(out / REPORT)}
    return {**folders, **losses, "accuracy": accuracies, "seconds": round(seconds, 1)}


def gather(limit: int, say: Say = Console().say) -> tuple[list[Module], list[Module]]:
    """Collect the modules of all libraries: to train on, and held out for testing."""
    seen, unseen = [], []
    for library in LIBRARIES:
        modules = list(read_library(library, limit))
        characters = sum(module.characters for module in modules)
        say(f"   {library:<10} {len(modules):>4} modules  {characters:>9,} characters")
        # Whole modules are held out, so that no sentence of the test is seen in training.
        unseen += modules[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
        seen += [m for i, m in enumerate(modules) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    return seen, unseen


def write_texts(modules: Sequence[Module], out: Path) -> list[str]:
    """Write the modules as JSONL, one per line, like text files of a user."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "text.jsonl"
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for module in modules:
            name = f"{module.library}.{module.name}"
            line = {"text": "\n".join(module.paragraphs), "module": name}
            file.write(json.dumps(line) + "\n")
    return [str(path)]


def recipe(size: DemoSize) -> dict[str, Any]:
    """Return a recipe to pre-train a small BERT in minutes.

    It takes many small steps without dropout. Initial weights are wider than the paper's 0.02,
    which is meant for a width of 768: with it, a short run hardly gets beyond token frequencies.
    """
    short = {"dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.06}
    return {
        "model": {"size": "tiny", "max_length": 128, **short},
        "data": {"held_out": 12},
        "optimizer": {"learning_rate": 2e-3},
        "schedule": {
            "minutes": size.minutes,
            "warmup": 0.05,
            "phases": [{"share": 1.0, "length": 128, "batch_tokens": 2048}],
        },
        "evaluate": {"times": 8, "tokens": 16_000},
    }


class IndentedConsole(Console):
    """A console that indents the lines of a run and passes its progress on."""

    def __init__(self, console: Console, say: Say) -> None:
        self.print_line, self.console = say, console

    def say(self, line: str) -> None:
        """Print a line of the run, indented."""
        self.print_line(f"   {line}")

    def progress(self, *arguments: Any, **keywords: Any) -> None:
        """Show the progress of a stage."""
        self.console.progress(*arguments, **keywords)

    def finish(self) -> None:
        """End the progress display."""
        self.console.finish()


def pretrain(out: Path, size: DemoSize, console: Console, options: RunOptions) -> Path:
    """Pre-train on the corpus in `out`; return the model folder."""
    job, settings = Pretrain(out / "corpus"), compose(Pretrain.scope, recipe(size))
    return Run(job, settings, out / "pretrain", console, options).go().model


def compare(
    model: Path, data: Labelled, size: DemoSize, out: Path, say: Say, device: str
) -> dict[str, float]:
    """Fine-tune the network with and without pre-training; return accuracies on unseen modules."""
    train, dev = len(data.train), len(data.dev)
    trained = load_folder(model)
    torch.manual_seed(0)  # the untrained network is the same each time
    fresh = Network(trained.network.shape)
    say(f"   {train} labelled sentences for training, {dev} from unseen modules for testing")
    say(f"   {count_parameters(fresh):,} parameters, and as many steps for both starts\n")
    accuracies = {}
    starts = {"pre-trained": trained, "from scratch": replace(trained, network=fresh)}
    for name, start in starts.items():
        folder = out / f"classify-{name.replace(' ', '-')}"
        run = Run(Finetune(start, data), tuning(size), folder, options=RunOptions(device=device))
        accuracy: float = run.go().summary["accuracy"]
        accuracies[name] = accuracy
        say(f"   {name:<14} {accuracy:>6.1%}")
    say(f"   {'chance':<14} {1 / len(LIBRARIES):>6.1%}")
    return accuracies


def tuning(size: DemoSize) -> Recipe:
    """Return a fine-tuning recipe for a small network and little data: a high learning rate."""
    table = {
        "task": {"name": "classify"},
        "tokenizer": {"max_length": 128},
        "optimizer": {"learning_rate": 5e-4},
        "schedule": {"steps": size.steps, "warmup": 0.1},
        "evaluate": {"times": 4},
    }
    return compose(FINETUNE, table)


def label(seen: Sequence[Module], unseen: Sequence[Module], size: DemoSize, out: Path) -> Labelled:
    """Label sentences for training, and sentences of unseen modules for testing.

    They are also written as tables, like those of a user: train.tsv and dev.tsv.
    """
    train, dev = label_sentences(seen, size.labelled), label_sentences(unseen, 100)
    for name, samples in (("train", train), ("dev", dev)):
        rows = [{"text": sample.text, "label": sample.label[0]} for sample in samples]
        write_table(out / f"{name}.tsv", ".tsv", ["text", "label"], partial(iter, rows))
    return Labelled(Classify(ClassifySettings(), LIBRARIES), train, dev)


def label_sentences(modules: Sequence[Module], each: int) -> list[Sample]:
    """Label `each` sentences of every library with its name."""
    samples: list[Sample] = []
    for library in LIBRARIES:
        sentences = (
            sentence
            for module in modules
            if module.library == library
            # Some 20 paragraphs of each module, so that no long module fills the quota.
            for paragraph in module.paragraphs[:: max(1, len(module.paragraphs) // 20)]
            for sentence in split_sentences(paragraph)
            # A sentence that names its library would give the label away.
            if 40 <= len(sentence) <= 300 and library not in sentence.lower()
        )
        samples += [Sample(text, None, (library,), library) for text in islice(sentences, each)]
    return samples


def show_tokens(tokenizer: Tokenizer, say: Say) -> None:
    """Print a sentence and its tokens."""
    text = "Return a new array of the given shape."
    tokens = [tokenizer.vocabulary.tokens[i] for i in tokenizer.encode(text).ids]
    say(f"   {text}\n   {' '.join(tokens)}")


def show_predictions(cases: Sequence[dict[str, Any]], say: Say) -> None:
    """Print predictions for masked tokens of held-out sentences."""
    say("\n   Masked tokens in held-out sentences: the truth, and the three best predictions\n")
    for case in cases:
        predictions = ", ".join(f"{token} {share:.0%}" for token, share in case["predictions"])
        say(f"   {case['text'].replace('[MASK]', '____')}\n      {case['truth']}:  {predictions}")


def show_table(
    steps: Sequence[tuple[str, float, str]], seconds: float, out: Path, say: Say
) -> None:
    """Print the time and result of each step, and commands to try next."""
    say(f"\n{'':3}{'step':<22}{'seconds':>8}   result")
    for name, spent, result in steps:
        say(f"{'':3}{name:<22}{spent:>8.1f}   {result}")
    say(f"{'':3}{'total':<22}{seconds:>8.1f}")
    say(f"\nCurves, predictions and recipe: open {out / REPORT} in a browser. Try next:\n")
    model = out / "pretrain" / "model"
    say(f'  unmask fill {model} "Return the [MASK] of the array."')
    say(f'  unmask next {model} "Sort the list in place." "The sort is stable."')
    say(f"  unmask finetune classify minilm --train {out / 'train.tsv'} --out classifier")
    say("  unmask vocab learn YOUR.txt --size 8000 --out my-vocabulary")


def write_page(out: Path, metrics: list[dict[str, Any]], table: dict[str, Any]) -> None:
    """Write the report of pre-training, with the accuracies of fine-tuning."""
    lines = []
    for name in ("pre-trained", "from scratch"):
        run = read_metrics(out / f"classify-{name.replace(' ', '-')}")
        entries = of_kind(run, "eval")
        lines.append(Line(name, [e["step"] for e in entries], [e["accuracy"] for e in entries]))
    ends = [0, lines[0].xs[-1]]
    lines.append(Line("chance", ends, [1 / len(LIBRARIES)] * 2, dashed=True))
    picture = Chart("Which library? Accuracy on unseen modules", lines, percent=True).svg()
    extra = f"<h2>With and without pre-training</h2>{picture}"
    text = report_page("unmask demo", metrics, table, [], extra=extra)
    (out / REPORT).write_text(text, encoding="utf-8", newline="\n")
