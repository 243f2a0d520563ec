"""Verbs for translation: train, run, evaluate, compare, look."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import completion, options
from unmask.cli.checks import check_inputs, check_model, check_recipe, require_optional
from unmask.cli.help import COMMON_FLAGS
from unmask.cli.progress import answer, notice, progress
from unmask.system.devices import check_device
from unmask.system.errors import FolderError, SettingsError, plural

if TYPE_CHECKING:
    from unmask.model.config import SearchSettings

Folder = Annotated[
    Path | None,
    typer.Argument(help="A folder with train.de, train.en, val.de, val.en; or use --train."),
]
Source = Annotated[
    str | None, typer.Option("--from", help="Source language: the extension of its files.")
]
Target = Annotated[
    str | None, typer.Option("--to", help="Target language: the extension of its files.")
]
Paths = list[Path] | None
Beams = Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy search.")]
Penalty = Annotated[
    float, typer.Option(help="Length penalty: scores are divided by length to this power.")
]

verbs = typer.Typer(
    help="Train translation models, and translate.", no_args_is_help=True, rich_markup_mode=None
)


TrainOption = Annotated[
    Paths, typer.Option(help="Training pairs: a table, or two parallel files (give it twice).")
]
RecipeOption = Annotated[
    str,
    typer.Option(
        help="lstm, gru, attention, transformer, or a TOML file.",
        autocompletion=completion.translation_recipes,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(help="A BERT model to start the encoder from.", autocompletion=completion.models),
]
VocabularyOption = Annotated[
    Path | None, typer.Option(help="A vocabulary folder, instead of a new vocabulary.")
]
TargetVocabularyOption = Annotated[
    Path | None, typer.Option(help="A vocabulary folder for the target language alone.")
]
MinutesOption = Annotated[
    float | None, typer.Option(help="Time limit in minutes, instead of epochs.")
]
MaxLengthOption = Annotated[
    int | None, typer.Option(min=8, help="Maximum length of a text, in tokens.")
]


def train(
    folder: Folder = None,
    *,
    source: Source = None,
    target: Target = None,
    train: TrainOption = None,
    dev: Annotated[
        Paths, typer.Option(help="Held-out pairs, like --train. Default: a tenth of --train.")
    ] = None,
    recipe: RecipeOption = "transformer",
    model: ModelOption = None,
    vocabulary: VocabularyOption = None,
    target_vocabulary: TargetVocabularyOption = None,
    table: options.DataFlags,
    epochs: options.Epochs = None,
    minutes: MinutesOption = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Batch size, in pairs.")] = None,
    max_length: MaxLengthOption = None,
    run: options.RunFlags,
) -> None:
    """Train a translation model on pairs of texts.

    Pairs are the files of a folder (train.de, train.en, val.de, val.en) or given with --train and
    --dev. Without --dev, a tenth of the pairs is held out.

    Example: unmask translate train pairs --from de --to en --out translator
    """
    flags = {"schedule.epochs": epochs, "schedule.minutes": minutes, "loop.batch_size": batch_size}
    flags |= {"tokenizer.max_length": max_length}
    changes = run.changes(flags)
    # The BERT has a vocabulary of its own, which the target language cannot share.
    if model is not None and not any(".joint" in change for change in changes):
        changes.append("tokenizer.joint=false")
    run.check()
    columns, watcher = table.columns(), table.watcher()
    from unmask.data.labelled.parallel_files import PairFiles
    from unmask.jobs.settings_read import TRANSLATE

    # Errors in files, names and settings are raised here, before torch is imported.
    pairs = PairFiles(folder, source, target, train or [], dev or [])
    training_files, dev_files = pairs.paths(needs_dev=False)
    check_inputs([*training_files, *dev_files])
    if model is not None:
        check_model(model)
    for vocabulary_folder in (vocabulary, target_vocabulary):
        if vocabulary_folder is not None and not vocabulary_folder.is_dir():
            raise FolderError(f"{vocabulary_folder}: no such folder. Check the path.")
    check_recipe(TRANSLATE, recipe, changes)
    require_optional("scoring translations")
    from unmask.jobs.finetune import Finetune
    from unmask.jobs.inputs.labelled import LabelledFiles
    from unmask.jobs.inputs.vocabularies import GivenVocabularies
    from unmask.jobs.summary import say_summary
    from unmask.train.compose import compose
    from unmask.train.run import Run

    console = options.console_of_run()
    files = LabelledFiles(training_files, dev_files or None, columns, watcher)
    job = Finetune(model, files, GivenVocabularies(vocabulary, target_vocabulary), scope=TRANSLATE)
    composed = compose(TRANSLATE, recipe, changes, console=console)
    options.report_recipe(TRANSLATE.table(composed))
    outcome = Run(job, composed, run.out, console, run.run_options()).go()
    say_summary(console, job, outcome)
    options.answer_of_run(json.dumps(outcome.summary))


def run(
    model: options.ModelName,
    file: Annotated[
        str, typer.Argument(help="A file with one text per line; - is standard input.")
    ] = "-",
    beams: Beams = 1,
    penalty: Penalty = 1.0,
    longest: Annotated[
        int | None, typer.Option(min=1, help="Maximum length of a translation, in tokens.")
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample tokens instead of searching.")
    ] = False,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; values below 1 favour likely tokens.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the K likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for sampling.")] = 0,
    device: options.Device = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per line, with the score.")
    ] = False,
    split: Annotated[bool, typer.Option(help="Translate a text that is too long in parts.")] = True,
) -> None:
    """Translate each line of a file.

    Blank lines stay blank, so line N of the output translates line N of the input.

    Example: unmask translate run translator/model texts.txt --beams 4
    """
    search = {"beam_size": beams, "length_penalty": penalty, "max_length": longest}
    search |= {"sample": sample, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    search |= {"seed": seed}
    settings = _settings(search)
    from unmask.data.labelled.parallel import read_sources

    check_inputs([file])
    sources = read_sources(file)
    loaded = options.load_model(model, device).translator
    with progress("translating", "texts") as job:
        texts = (pair.source for pair in sources)
        for translation in loaded.translate(texts, settings, split=split):
            table = {"text": translation.text, "score": translation.score}
            line = json.dumps(table, ensure_ascii=False) if as_json else translation.text
            answer(line)
            job.advance()
    _report_splits(loaded.limit, loaded.split_texts)


def evaluate(
    model: options.ModelName,
    files: Annotated[list[Path], typer.Argument(help="A table of pairs, or two parallel files.")],
    beams: Beams = 1,
    penalty: Penalty = 1.0,
    table: options.DataFlags = options.DataFlags(),
    out: Annotated[
        Path | None, typer.Option(help="Write the translations to this file, one per line.")
    ] = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Score a translation model: BLEU, chrF, loss, perplexity.

    BLEU and chrF are computed by sacrebleu (pip install 'unmask[translate]').

    Example: unmask translate evaluate translator/model val.de val.en
    """
    settings = _settings({"beam_size": beams, "length_penalty": penalty})
    from unmask.system.disk import check_output_file, write_file

    if out is not None:
        check_output_file(out)
    columns, watcher = table.columns(), table.watcher()
    check_inputs(files)
    require_optional("scoring translations")
    loaded = options.load_model(model, device)
    from unmask.infer.predict import evaluate_file
    from unmask.tasks.translate import Translate, TranslateSettings, metrics

    scored = metrics()
    task = Translate(TranslateSettings(search=settings))
    values, _, translations = evaluate_file(loaded, files, columns, watcher, notice, task)
    _report_splits(loaded.limit, task.split_texts)
    if out is not None:
        write_file(
            out, "".join(f"{translation.text}\n" for translation in translations).encode("utf-8")
        )
    signatures = []
    for _, metric in scored:
        # A signature needs a call with references.
        metric.corpus_score([translations[0].text], [[""]])
        signatures.append(str(metric.get_signature()))
    if as_json:
        options.print_json({"scores": values, "signatures": signatures})
        return
    for name, value in values.items():
        answer(f"{name:<12} {value:.2f}")
    for signature in signatures:
        answer(f"signature    {signature}")


def compare(
    recipe: Annotated[Path, typer.Argument(help="A TOML file with the data and the variants.")],
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; all cores by default.")
    ] = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Train several variants and plot their curves.

    A TOML file names the data and the variants. A table of their scores is printed.

    Example: unmask translate compare compare.toml
    """
    from unmask.jobs.comparison import check_folders, read_comparison
    from unmask.jobs.settings_read import TRANSLATE

    comparison = read_comparison(recipe)
    check_folders(comparison)
    training_files, dev_files = comparison.files.paths()
    check_inputs([*training_files, *dev_files])
    for variant in comparison.variants:
        check_recipe(TRANSLATE, variant.recipe, [*comparison.set, *variant.set])
    require_optional("scoring translations")
    check_device(device)
    from unmask.jobs.compare import FIGURE
    from unmask.jobs.compare import compare as run_all

    console = options.console_of_run()
    rows = run_all(comparison, console, threads=threads, device=device)
    figure = Path(comparison.out) / FIGURE
    if as_json:
        options.print_json({"variants": [vars(row) for row in rows], "figure": str(figure)})
        return
    print(f"{'':<24}{'bleu':>8}{'chrf':>8}{'perplexity':>12}{'minutes':>9}")
    for row in rows:
        print(
            f"{row.variant:<24}{row.bleu:>8.2f}{row.chrf:>8.2f}{row.perplexity:>12.2f}"
            f"{row.minutes:>9.1f}"
        )
    notice(f"the curves are in {figure}")


def look(
    model: options.ModelName,
    text: Annotated[str, typer.Argument(help="A text to translate.")],
    out: Annotated[Path, typer.Option(help="The SVG file to write.")],
    target: Annotated[
        str | None, typer.Option(help="A translation to align; by default, the model's own.")
    ] = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Draw which source words each target word attended to.

    The model's own translation is drawn, or the one given with --target.

    Example: unmask translate look translator/model "Ein Hund." --out look.svg
    """
    from unmask.system.disk import check_output_file, write_file

    if out.suffix != ".svg":
        raise SettingsError(f"--out {out}: unknown ending '{out.suffix}'; need .svg.")
    check_output_file(out)
    loaded = options.load_model(model, device).translator
    from unmask.inspect.alignment import alignment_svg

    alignment = loaded.looked(text, target)
    write_file(out, alignment_svg(alignment).encode("utf-8"))
    if as_json:
        table = {"file": str(out), "source": alignment.source, "target": alignment.target[:-1]}
        options.print_json(table)
        return
    print(" ".join(alignment.target[:-1]))
    notice(f"written to {out}: open it in a browser")


def _settings(search: dict[str, float | None]) -> "SearchSettings":
    """Validate search settings, before torch is imported."""
    from unmask.model.config import SearchSettings
    from unmask.system.settings import validate

    return validate(SearchSettings, search, where="translate")


def _report_splits(limit: int, count: int) -> None:
    if count:
        notice(
            f"split: {count:,} {plural('text', count)} longer than {limit} tokens, translated in "
            "parts (--no-split refuses such texts)"
        )


for verb in (train, run, evaluate, compare, look):
    verbs.command(epilog=COMMON_FLAGS)(options.flatten_options(verb))
