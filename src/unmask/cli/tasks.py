"""Verbs of labelled data: finetune, evaluate, predict, check."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.answers import say_counts, say_what_was_cut, saying_what_is_faster
from unmask.cli.progress import answer, notice, progress
from unmask.cli.training import (
    NoPreflight,
    Out,
    Overwrite,
    Resume,
    Set,
    Shard,
    Tensorboard,
    Threads,
    check_run,
    console_of_run,
    is_main,
)
from unmask.errors import SettingsError, UserError, unknown

if TYPE_CHECKING:
    from unmask.data.columns import Columns
    from unmask.data.lines import Chooser

ModelName = Annotated[str, typer.Argument(help="A model folder, or a fetched model's name.")]
File = Annotated[str, typer.Argument(help="Labelled data.")]
Text = Annotated[str | None, typer.Option(help="The column of the text.")]
Second = Annotated[str | None, typer.Option(help="The column of the second text of a pair.")]
Label = Annotated[str | None, typer.Option(help="The column of the answer.")]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help="Does the first row name columns?")
]
Rate = Annotated[float | None, typer.Option(help="The highest learning rate.")]
Epochs = Annotated[float | None, typer.Option(help="How often everything is seen.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Examples a step.")]
Length = Annotated[int | None, typer.Option(min=8, help="Tokens of a window at most.")]
OnBad = Annotated[str, typer.Option(help="stop at a bad record, or skip it.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Of everything random.")]


def add_to(app: typer.Typer) -> None:
    """Register the verbs of this file."""
    for verb in (finetune, evaluate, predict, check):
        app.command()(verb)


def finetune(
    task: Annotated[str, typer.Argument(help="classify, regress, qa, ner, or multi RECIPE.toml.")],
    arguments: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="A model folder or name.")
    ],
    out: Out,
    train: Annotated[Path | None, typer.Option(help="Data to learn from.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Data to be scored on.")] = None,
    text: Text = None,
    second: Second = None,
    label: Label = None,
    header: Header = None,
    rate: Rate = None,
    epochs: Epochs = None,
    batch: Batch = None,
    length: Length = None,
    seed: Seed = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, each with another seed.")] = 1,
    trials: Annotated[int, typer.Option("--search", min=0, help="Trials of settings.")] = 0,
    threads: Threads = None,
    on_bad: OnBad = "stop",
    set_: Set = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    shard: Shard = False,
    tensorboard: Tensorboard = False,
    no_preflight: NoPreflight = False,
) -> None:
    """Train a model for a task, or for several, on labelled data of your own."""
    flags = {"optimizer.rate": rate, "seed": seed, "schedule.epochs": epochs}
    flags |= {"loop.batch_size": batch, "tokenizer.max_length": length}
    changes = [f"{name}={v}" for name, v in flags.items() if v is not None] + (set_ or [])
    check_run(out, resume, overwrite)
    if task == "multi":
        one = (train, dev, text, second, label, header, on_bad != "stop", seeds > 1, trials)
        _refuse_for_several(arguments, one)
    else:
        model, learned, scored = _given(task, arguments, train, dev)
    from unmask.jobs.start import finetune_files, finetune_several
    from unmask.train.run import Options

    options = Options(resume, overwrite, shard, not no_preflight, tensorboard, threads)
    console = console_of_run()
    if task == "multi":
        found = finetune_several(arguments[0], arguments[1], out, changes, console, options)
    else:
        files = task, model, learned, scored, out
        found = finetune_files(
            *files,
            columns=_columns(text, second, label, header),
            changes=changes,
            seeds=seeds,
            trials=trials,
            watcher=watcher_for(on_bad),
            console=console,
            options=options,
        )
    if is_main():
        answer(json.dumps(found))


def watcher_for(on_bad: str) -> "Chooser":
    """Who is told of bad records."""
    from unmask.data.lines import Chooser

    if on_bad not in (known := ("stop", "skip")):
        raise SettingsError(unknown("choice", on_bad, known))
    return Chooser(on_bad == "skip", notice)


def _given(
    task: str, arguments: list[str], train: Path | None, dev: Path | None
) -> tuple[str, Path, Path]:
    """The model and the files that one task needs."""
    if len(arguments) != 1 or train is None or dev is None:
        raise UserError(
            f"finetune {task}: need a model, --train FILE and --dev FILE. As in: unmask finetune "
            f"{task} minilm --train train.tsv --dev dev.tsv --out run"
        )
    return arguments[0], train, dev


def _refuse_for_several(arguments: list[str], ignored: tuple[Any, ...]) -> None:
    """Check `unmask finetune multi RECIPE.toml MODEL`."""
    if any(value not in (None, False, 0) for value in ignored):
        raise UserError(
            "finetune multi: --train, --dev, columns, --on-bad, --seeds and --search are for one "
            "task; the recipe of several says what each needs. Leave them out."
        )
    if len(arguments) != 2:
        raise UserError("finetune multi: need a recipe and a model, as in: multi tasks.toml minilm")


def evaluate(
    model: ModelName,
    file: File,
    text: Text = None,
    second: Second = None,
    label: Label = None,
    header: Header = None,
    on_bad: OnBad = "stop",
) -> None:
    """Score a fine-tuned model on labelled data."""
    from unmask.use.model import Model
    from unmask.use.predict import evaluate_file

    columns, loaded = _columns(text, second, label, header), Model.load(model)
    scores, detail, _ = evaluate_file(loaded, file, columns, watcher_for(on_bad), notice)
    say_what_was_cut(loaded, loaded.limit, hint="")
    for name, value in scores.items():
        answer(f"{name:<16} {value:.4f}")
    for row in detail.table:
        cells = [f"{v:>9.3f}" if isinstance(v, float) else f"{v:>9}" for v in row.values()]
        answer("  ".join(cells))


def predict(
    model: ModelName,
    file: Annotated[str, typer.Argument(help="Texts or records; - is standard input.")] = "-",
    text: Text = None,
    second: Second = None,
    header: Header = None,
    on_bad: OnBad = "stop",
) -> None:
    """Answer every line: a text or a JSON object in, a JSON object out."""
    from unmask.use.model import Model
    from unmask.use.predict import predict_lines

    columns, loaded = _columns(text, second, None, header), Model.load(model)
    watcher = watcher_for(on_bad)
    with saying_what_is_faster(loaded), progress("answering", "answers", None) as job:
        for found in predict_lines(loaded, file, columns, watcher, notice):
            answer(json.dumps(found, ensure_ascii=False))
            job.advance()
    say_what_was_cut(loaded, loaded.limit, hint="")
    say_counts(file, "answer", job.stage.done, skipped=watcher.skipped, blanks=watcher.blanks)


def _columns(
    text: str | None, second: str | None, label: str | None, header: bool | None
) -> "Columns":
    from unmask.data.columns import Columns

    return Columns(text, second, label, header)


def check(
    file: Annotated[Path, typer.Argument(help="Labelled data.")],
    task: Annotated[
        str | None, typer.Option(help="What it is for; told by the file, if not.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="The training data it goes with.")] = None,
    text: Text = None,
    second: Second = None,
    label: Label = None,
    header: Header = None,
    set_: Set = None,
) -> None:
    """Read a data file and say everything that is wrong with it, with its lines."""
    from unmask.tasks.check import examine

    columns = _columns(text, second, label, header)
    from unmask.settings import override

    own = override({}, set_ or []).get("task", {})
    found = examine(file, task=task, columns=columns, train=train, settings=own)
    for fact in found.facts:
        answer(f"{file}: {fact}")
    for warning in found.warnings:
        answer(f"warning: {warning}")
    for fault in found.faults:
        answer(f"fault: {fault}")
    if found.faults:
        count = f"{len(found.faults):,} fault{'s' * (len(found.faults) > 1)}"
        raise UserError(f"{file}: {count}, one line each above. Mend them.")
    answer("no faults")
