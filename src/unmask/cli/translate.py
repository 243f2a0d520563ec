"""Verbs for translation: train, run, evaluate, compare, look."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask import load
from unmask.cli import options
from unmask.cli.progress import answer, notice, progress
from unmask.system.errors import SettingsError

if TYPE_CHECKING:
    from unmask.model.config import SearchSettings

Folder = Annotated[
    Path | None, typer.Argument(help="Files train.de, train.en, val.de, val.en; or --train.")
]
Source = Annotated[str | None, typer.Option("--from", help="The folder's language to read.")]
Target = Annotated[str | None, typer.Option("--to", help="The folder's language to say.")]
Paths = list[Path] | None
Beams = Annotated[int, typer.Option(min=1, help="Beginnings kept at every step; 1 is greedy.")]
Penalty = Annotated[float, typer.Option(help="Scores are divided by length to this power.")]

verbs = typer.Typer(help="Learn to translate, and translate.", no_args_is_help=True)


def train(
    folder: Folder = None,
    *,
    source: Source = None,
    target: Target = None,
    train: Annotated[
        Paths, typer.Option(help="A table of pairs; twice, two parallel files.")
    ] = None,
    dev: Annotated[
        Paths, typer.Option(help="Pairs to be scored on, likewise; without, a tenth of --train.")
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="lstm, gru, attention, transformer, or a file.")
    ] = "transformer",
    model: Annotated[str | None, typer.Option(help="A BERT to be the encoder.")] = None,
    vocabulary: Annotated[Path | None, typer.Option(help="Words that were learned before.")] = None,
    target_vocabulary: Annotated[Path | None, typer.Option(help="Of the target alone.")] = None,
    table: options.DataFlags,
    epochs: options.Epochs = None,
    minutes: Annotated[float | None, typer.Option(help="How long, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Pairs per step.")] = None,
    run: options.RunFlags,
) -> None:
    """Train a translation model on pairs of texts.

    Pairs are the files of a folder (train.de, train.en, val.de, val.en) or given with --train and
    --dev. Without --dev, a tenth of the pairs is held out.

    Example: unmask translate train pairs --from de --to en --out translator
    """
    flags = {"schedule.epochs": epochs, "schedule.minutes": minutes, "loop.batch_size": batch_size}
    changes = run.changes(flags)
    # The BERT has a vocabulary of its own, which the target language cannot share.
    if model is not None and not any(".joint" in change for change in changes):
        changes.append("tokenizer.joint=false")
    run.check()
    from unmask.data.labelled.parallel_files import PairFiles

    # Refuses wrong paths before torch is imported.
    pairs = PairFiles(folder, source, target, train or [], dev or [])
    learned, held_out = pairs.paths(needs_dev=False)
    from unmask.jobs.finetune import Finetune
    from unmask.jobs.inputs.labelled import LabelledFiles
    from unmask.jobs.inputs.vocabularies import GivenVocabularies
    from unmask.jobs.settings_read import TRANSLATE
    from unmask.jobs.summary import say_summary
    from unmask.train.compose import compose
    from unmask.train.run import Run

    console = options.console_of_run()
    files = LabelledFiles(learned, held_out or None, table.columns(), table.watcher())
    job = Finetune(model, files, GivenVocabularies(vocabulary, target_vocabulary), scope=TRANSLATE)
    composed = compose(TRANSLATE, recipe, changes, console=console)
    outcome = Run(job, composed, run.out, console, run.how()).go()
    say_summary(console, job, outcome)
    options.answer_of_run(json.dumps(outcome.summary))


def run(
    model: options.ModelName,
    file: Annotated[str, typer.Argument(help="A text a line; - is standard input.")] = "-",
    beams: Beams = 1,
    penalty: Penalty = 1.0,
    longest: Annotated[int | None, typer.Option(min=1, help="Words at most.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw words.")] = False,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; values below 1 favour likely tokens.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the K most likely tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest with this share.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of draws.")] = 0,
    scores: Annotated[bool, typer.Option("--json", help="JSON lines, with scores.")] = False,
    split: Annotated[bool, typer.Option(help="Translate a text that is too long in parts.")] = True,
) -> None:
    """Translate each line of a file.

    Blank lines stay blank, so line N of the output translates line N of the input.

    Example: unmask translate run translator/model texts.txt --beams 4
    """
    asked = {"beams": beams, "penalty": penalty, "longest": longest, "sample": sample}
    asked |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    settings = _settings(asked)
    from unmask.data.labelled.parallel import read_sources

    sources = read_sources(file)
    loaded = load(model).translator
    with progress("translating", "texts") as job:
        texts = (pair.source for pair in sources)
        for found in loaded.translate(texts, settings, split=split):
            table = {"text": found.text, "score": found.score}
            line = json.dumps(table, ensure_ascii=False) if scores else found.text
            answer(line)
            job.advance()
    _say_what_was_split(loaded.limit, loaded.split_texts)


def evaluate(
    model: options.ModelName,
    files: Annotated[list[Path], typer.Argument(help="A table of pairs, or two parallel files.")],
    beams: Beams = 1,
    penalty: Penalty = 1.0,
    table: options.DataFlags = options.DataFlags(),
    out: Annotated[
        Path | None, typer.Option(help="Write the translations to this file, one per line.")
    ] = None,
) -> None:
    """Score a translation model: BLEU, chrF, loss, perplexity.

    BLEU and chrF are computed by sacrebleu (pip install 'unmask[translate]').

    Example: unmask translate evaluate translator/model val.de val.en
    """
    settings = _settings({"beams": beams, "penalty": penalty})
    from unmask.system.disk import check_output_file, write_file

    if out is not None:
        check_output_file(out)
    loaded = load(model)
    from unmask.infer.predict import evaluate_file
    from unmask.tasks.translate import Translate, TranslateSettings, metrics

    scored = metrics()  # fails at once if sacrebleu is not installed
    task = Translate(TranslateSettings(search=settings))
    columns, watcher = table.columns(), table.watcher()
    found, _, said = evaluate_file(loaded, files, columns, watcher, notice, task)
    _say_what_was_split(loaded.limit, task.split_texts)
    if out is not None:
        write_file(out, "".join(f"{own.text}\n" for own in said).encode("utf-8"))
    for name, value in found.items():
        answer(f"{name:<12} {value:.2f}")
    for _, metric in scored:
        metric.corpus_score([said[0].text], [[""]])  # a signature needs a call with references
        answer(f"signature    {metric.get_signature()}")


def compare(
    recipe: Annotated[Path, typer.Argument(help="Data and variants, as TOML.")],
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores.")] = None,
) -> None:
    """Train several variants and plot their curves.

    A TOML file names the data and the variants. A table of their scores is printed.

    Example: unmask translate compare compare.toml
    """
    from unmask.jobs.compare import FIGURE, read_comparison
    from unmask.jobs.compare import compare as run_all

    asked = read_comparison(recipe)
    console = options.console_of_run()
    rows = run_all(asked, console, threads=threads)
    print(f"{'':<24}{'bleu':>8}{'chrf':>8}{'perplexity':>12}{'minutes':>9}")
    for row in rows:
        print(
            f"{row.variant:<24}{row.bleu:>8.2f}{row.chrf:>8.2f}{row.perplexity:>12.2f}"
            f"{row.minutes:>9.1f}"
        )
    notice(f"the curves are in {Path(asked.out) / FIGURE}")


def look(
    model: options.ModelName,
    text: Annotated[str, typer.Argument(help="A text to translate.")],
    out: Annotated[Path, typer.Option(help="The picture, an SVG file.")],
    target: Annotated[str | None, typer.Option(help="A translation; the model's own.")] = None,
) -> None:
    """Draw which source words each target word attended to.

    The model's own translation is drawn, or the one given with --target.

    Example: unmask translate look translator/model "Ein Hund." --out look.svg
    """
    from unmask.system.disk import check_output_file, write_file

    if out.suffix != ".svg":
        raise SettingsError(f"--out {out}: unknown ending '{out.suffix}'; need .svg.")
    check_output_file(out)
    loaded = load(model).translator
    from unmask.inspect.alignment import alignment_svg

    looked = loaded.looked(text, target)
    write_file(out, alignment_svg(looked).encode("utf-8"))
    print(" ".join(looked.target[:-1]))
    notice(f"the picture is {out}")


def _settings(asked: dict[str, float | None]) -> "SearchSettings":
    """Validate search settings, before torch is imported."""
    from unmask.model.config import SearchSettings
    from unmask.system.settings import validate

    return validate(SearchSettings, asked, where="translate")


def _say_what_was_split(limit: int, count: int) -> None:
    if count:
        notice(
            f"split: {count:,} longer than {limit} tokens, translated in parts (--no-split refuses "
            "such texts)"
        )


for verb in (train, run, evaluate, compare, look):
    verbs.command()(options.flatten_options(verb))
