"""The story of the README's first command: a BERT of your own, from text to answers, in minutes.

The text is on every machine that runs this: the documentation inside Python's standard library and
the installed packages, read from their source files. From it a vocabulary is learned, a small BERT
is pre-trained, and what it has learned is put to use: which library does a sentence document?
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from unmask.checkpoint.folder import load_folder
from unmask.checkpoint.vocabulary import learn_folder, load_tokenizer
from unmask.data.corpus.prepare import PrepareSettings, prepare
from unmask.data.corpus.statistics import CorpusReport
from unmask.data.labelled.columns import Sample
from unmask.data.read.docstrings import LIBRARIES, Module, read_library
from unmask.evaluation.report.charts import Chart, Line
from unmask.evaluation.report.html import REPORT, page
from unmask.evaluation.tasks import Labelled
from unmask.jobs.finetune import Finetune
from unmask.jobs.pretrain import Pretrain
from unmask.jobs.settings_read import FINETUNE
from unmask.model.network import Network, count_parameters
from unmask.system.console import Console
from unmask.system.disk import check_output_folder
from unmask.system.errors import FolderError
from unmask.tasks.classify import Classify, ClassifySettings
from unmask.text.learn import LearnSettings
from unmask.text.sentences import split_sentences
from unmask.text.tokenizer import Tokenizer
from unmask.train.compose import compose
from unmask.train.recipe import Recipe
from unmask.train.run import Run, RunOptions
from unmask.train.run_folder import of_kind, read_metrics

Say = Callable[[str], None]
KEPT_OUT = 8  # one module in so many is for the test: nothing before has seen it


@dataclass(frozen=True)
class DemoSize:
    """How much of everything: as much as the minutes deserve."""

    characters: int  # of each library
    vocabulary: int
    minutes: float  # of pre-training
    labelled: int  # sentences of each library to learn the labels from
    steps: int  # of fine-tuning


FULL = DemoSize(characters=600_000, vocabulary=4096, minutes=2.0, labelled=150, steps=120)
FAST = DemoSize(characters=100_000, vocabulary=1500, minutes=0.2, labelled=60, steps=30)


def tell(
    out: Path, *, fast: bool = False, console: Console | None = None, say: Say = Console().say
) -> None:
    """Tell the story to `say`, line by line, each step timed and with its number.

    `console` shows how far pre-training is.
    """
    check_output_folder(out, renamed=False)
    if out.exists() and any(out.iterdir()):
        raise FolderError(f"{out}: there is something in it. Give another --out, or remove it.")
    size = FAST if fast else FULL
    begun = since = time.perf_counter()
    told: list[tuple[str, float, str]] = []

    def step(title: str) -> None:
        nonlocal since
        since = time.perf_counter()
        say(f"\n{len(told) + 1}. {title}\n")

    def done(what: str, result: str) -> None:
        told.append((what, time.perf_counter() - since, result))

    step("Text that is already here: what Python's libraries say about themselves")
    seen, unseen = gather(size.characters, say)
    files = write_texts(seen, out)
    characters = sum(module.characters for module in seen)
    done("read", f"{characters:,} characters from {len(seen)} modules")

    step("A vocabulary of its own")
    wanted = LearnSettings(size=size.vocabulary)
    learned = learn_folder(files, out / "vocabulary", wanted)
    tokenizer = load_tokenizer(out / "vocabulary")
    show_tokens(tokenizer, say)
    result = f"{learned.tokens:,} tokens, {learned.tokens_per_word:.2f} a word"
    done("learn a vocabulary", result)

    step("Text to tokens: sentences, documents, shards")
    manifest = prepare(files, tokenizer, out / "corpus", PrepareSettings())
    assert manifest is not None
    facts = CorpusReport(**manifest["statistics"])
    say(f"   {facts.documents:,} documents, {facts.sentences:,} sentences")
    done("prepare", f"{facts.tokens:,} tokens")

    step(f"Pre-training for {60 * size.minutes:.0f} seconds: hidden words and next sentences")
    model = learn(out, size, console or Console(), say)
    metrics = read_metrics(out / "pretrain")
    last = of_kind(metrics, "eval")[-1]
    result = f"loss {last['mlm']:.2f}; word frequencies alone {last['unigram_loss']:.2f}"
    done("pre-train", result)
    show_blanks(last["blanks"], say)

    step("What pre-training buys: which library does a sentence document?")
    accuracies = compare(model, label(seen, unseen, size), size, out, say)
    done("fine-tune twice", " and ".join(f"{a:.1%} {n}" for n, a in accuracies.items()))
    write_page(out, metrics, recipe(size))
    show_table(told, time.perf_counter() - begun, out, say)


def gather(limit: int, say: Say = Console().say) -> tuple[list[Module], list[Module]]:
    """The modules of all libraries: to learn from, and kept out for the test."""
    seen, unseen = [], []
    for library in LIBRARIES:
        modules = list(read_library(library, limit))
        characters = sum(module.characters for module in modules)
        say(f"   {library:<10} {len(modules):>4} modules  {characters:>9,} characters")
        unseen += modules[KEPT_OUT - 1 :: KEPT_OUT]
        seen += [m for i, m in enumerate(modules) if i % KEPT_OUT != KEPT_OUT - 1]
    return seen, unseen


def write_texts(modules: Sequence[Module], out: Path) -> list[str]:
    """One JSON line for each module, as a user's own text might come."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "text.jsonl"
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for module in modules:
            name = f"{module.library}.{module.name}"
            line = {"text": "\n".join(module.paragraphs), "module": name}
            file.write(json.dumps(line) + "\n")
    return [str(path)]


def recipe(size: DemoSize) -> dict[str, Any]:
    """A BERT as small as the minutes deserve.

    Many small steps, no dropout, and weights that start as wide as a narrow network wants them:
    with the paper's 0.02, meant for a width of 768, a short run hardly leaves word frequencies.
    """
    short = {"dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.06}
    return {
        "model": {"size": "tiny", "max_length": 128, **short},
        "data": {"held_out": 12},
        "optimizer": {"rate": 2e-3},
        "schedule": {
            "minutes": size.minutes,
            "warmup": 0.05,
            "phases": [{"share": 1.0, "length": 128, "batch_tokens": 2048}],
        },
        "evaluate": {"times": 8, "tokens": 16_000},
    }


class IndentedConsole(Console):
    """Prints the lines of a run as part of the demo, and passes its progress on."""

    def __init__(self, console: Console, say: Say) -> None:
        self.tell, self.console = say, console

    def say(self, line: str) -> None:
        """Tell a line of the run."""
        self.tell(f"   {line}")

    def progress(self, *arguments: Any, **more: Any) -> None:
        """Show how far a stage is."""
        self.console.progress(*arguments, **more)

    def finish(self) -> None:
        """End what is shown."""
        self.console.finish()


def learn(out: Path, size: DemoSize, console: Console, say: Say) -> Path:
    """Pre-train, with a bar for as long as it takes."""
    job, chosen = Pretrain(out / "corpus"), compose(Pretrain.scope, recipe(size))
    run = Run(job, chosen, out / "pretrain", IndentedConsole(console, say), RunOptions(check=True))
    return run.go().model


def compare(model: Path, data: Labelled, size: DemoSize, out: Path, say: Say) -> dict[str, float]:
    """Fine-tune the pre-trained network and the same one untrained; accuracy on unseen modules."""
    train, dev = len(data.train), len(data.dev)
    trained = load_folder(model)
    torch.manual_seed(0)
    fresh = Network(trained.network.shape)
    say(f"   {train} labelled sentences to learn from, {dev} of unseen modules to test")
    say(f"   {count_parameters(fresh):,} parameters, the same steps for both\n")
    accuracies = {}
    starts = {"pre-trained": trained, "from nothing": replace(trained, network=fresh)}
    for name, start in starts.items():
        place = out / f"classify-{name.replace(' ', '-')}"
        accuracy: float = Run(Finetune(start, data), tuning(size), place).go().summary["accuracy"]
        accuracies[name] = accuracy
        say(f"   {name:<14} {accuracy:>6.1%}")
    say(f"   {'guessing':<14} {1 / len(LIBRARIES):>6.1%}")
    return accuracies


def tuning(size: DemoSize) -> Recipe:
    """A few short epochs with a high rate: the network is small, and so is the data."""
    table = {
        "task": {"name": "classify"},
        "tokenizer": {"max_length": 128},
        "optimizer": {"rate": 5e-4},
        "schedule": {"steps": size.steps, "warmup": 0.1},
        "evaluate": {"times": 4},
    }
    return compose(FINETUNE, table)


def label(seen: Sequence[Module], unseen: Sequence[Module], size: DemoSize) -> Labelled:
    """Sentences to learn the labels from, and those of unseen modules for the test."""
    train, dev = label_sentences(seen, size.labelled), label_sentences(unseen, 100)
    return Labelled(Classify(ClassifySettings(), LIBRARIES), train, dev)


def label_sentences(modules: Sequence[Module], each: int) -> list[Sample]:
    """So many sentences of every library, with its name, which no sentence may have in it."""
    found: list[Sample] = []
    for library in LIBRARIES:
        sentences = (
            sentence
            for module in modules
            if module.library == library
            for paragraph in module.paragraphs[:: max(1, len(module.paragraphs) // 20)]
            for sentence in split_sentences(paragraph)
            if 40 <= len(sentence) <= 300 and library not in sentence.lower()
        )
        found += [Sample(text, None, (library,), library) for text in islice(sentences, each)]
    return found


def show_tokens(tokenizer: Tokenizer, say: Say) -> None:
    """A sentence in its tokens."""
    text = "Return a new array of the given shape."
    tokens = [tokenizer.vocabulary.tokens[i] for i in tokenizer.encode(text).ids]
    say(f"   {text}\n   {' '.join(tokens)}")


def show_blanks(blanks: Sequence[dict[str, Any]], say: Say) -> None:
    """What the model says about hidden words of sentences it has not seen."""
    say("\n   Blanks in sentences that it has not seen: the truth, and its three best guesses\n")
    for case in blanks:
        guesses = ", ".join(f"{token} {share:.0%}" for token, share in case["guesses"])
        say(f"   {case['text'].replace('[MASK]', '____')}\n      {case['truth']}:  {guesses}")


def show_table(told: Sequence[tuple[str, float, str]], seconds: float, out: Path, say: Say) -> None:
    """The last thing on screen."""
    say(f"\n{'':3}{'step':<22}{'seconds':>8}   result")
    for what, spent, result in told:
        say(f"{'':3}{what:<22}{spent:>8.1f}   {result}")
    say(f"{'':3}{'all':<22}{seconds:>8.1f}")
    say(f"\nThe curves, the blanks and the recipe: open {out / REPORT} in a browser. To go on:\n")
    model = out / "pretrain" / "model"
    say(f'  unmask fill {model} "Return the [MASK] of the array."')
    say(f'  unmask next {model} "Sort the list in place." "The sort is stable."')
    say("  unmask vocab learn YOUR.txt --size 8000 --out my-vocabulary")


def write_page(out: Path, metrics: list[dict[str, Any]], table: dict[str, Any]) -> None:
    """The report of the pre-training, and what it bought."""
    lines = []
    for name in ("pre-trained", "from nothing"):
        run = read_metrics(out / f"classify-{name.replace(' ', '-')}")
        held = of_kind(run, "eval")
        lines.append(Line(name, [e["step"] for e in held], [e["accuracy"] for e in held]))
    ends = [0, lines[0].xs[-1]]
    lines.append(Line("guessing", ends, [1 / len(LIBRARIES)] * 2, dashed=True))
    picture = Chart("Which library? Accuracy on unseen modules", lines, percent=True).svg()
    extra = f"<h2>What pre-training buys</h2>{picture}"
    text = page("unmask demo", metrics, table, [], extra=extra)
    (out / REPORT).write_text(text, encoding="utf-8", newline="\n")
