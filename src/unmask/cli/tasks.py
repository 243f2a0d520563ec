"""Verbs for labelled data: finetune, evaluate, predict, check."""

import json
from pathlib import Path
from typing import Annotated

import typer

from unmask import load
from unmask.cli import options
from unmask.cli.answers import report_truncation, say_counts, speed_hint_after
from unmask.cli.progress import answer, notice, progress
from unmask.system.errors import UserError, plural
from unmask.system.plugins import known_names
from unmask.tasks import TASKS

TASK = typer.Argument()
TASK_OF_FILE = typer.Option()
Label = Annotated[str | None, typer.Option(help="The column of the answer.")]


def name_tasks() -> None:
    """Write the names of all tasks into the help; call again after loading plugins."""
    names = ", ".join(known_names("task", TASKS))
    TASK.help = f"{names}; or multi RECIPE.toml for several at once."
    TASK_OF_FILE.help = f"The task of the data: {names}. Recognised by the contents if not given."


name_tasks()


def finetune(
    task: Annotated[str, TASK],
    arguments: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="A model folder or name.")
    ],
    *,
    train: Annotated[
        list[Path] | None, typer.Option(help="Data to learn from; any number of files.")
    ] = None,
    dev: Annotated[
        list[Path] | None,
        typer.Option(help="Data to be scored on, likewise; without it, a tenth of --train."),
    ] = None,
    table: options.DataFlags,
    label: Label = None,
    epochs: options.Epochs = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Examples per step.")] = None,
    max_length: Annotated[
        int | None, typer.Option(min=8, help="Longest window, in tokens.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, each with another seed.")] = 1,
    trials: Annotated[int, typer.Option("--search", min=0, help="Trials of settings.")] = 0,
    run: options.RunFlags,
) -> None:
    """Fine-tune a model on labelled data.

    Several tasks at once: unmask finetune multi tasks.toml minilm --out run

    Example: unmask finetune classify minilm --train a.tsv --dev b.tsv --out run
    """
    flags = {
        "schedule.epochs": epochs,
        "loop.batch_size": batch_size,
        "tokenizer.max_length": max_length,
    }
    changes = run.changes(flags)
    run.check()
    columns, watcher = table.columns(label), table.watcher()  # refused before torch is imported
    for_one = table != options.DataFlags() or label is not None or seeds > 1 or trials > 0
    _check_arguments(task, arguments, train, dev, for_one=for_one)
    from unmask.jobs.inputs.labelled import LabelledFiles
    from unmask.jobs.multi_task import MultiTask
    from unmask.jobs.start import finetune_files
    from unmask.jobs.summary import say_summary
    from unmask.train.compose import compose
    from unmask.train.run import Run

    console, how = options.console_of_run(), run.how()
    if task == "multi":
        recipe = compose(MultiTask.scope, arguments[0], changes, console=console)
        job = MultiTask(arguments[1])
        outcome = Run(job, recipe, run.out, console, how).go()
        say_summary(console, job, outcome)
        found = outcome.summary
    else:
        files = LabelledFiles(train or [], dev or None, columns, watcher)
        found = finetune_files(
            task, arguments[0], files, run.out, changes, console, how, seeds=seeds, trials=trials
        )
    options.answer_of_run(json.dumps(found))


def _check_arguments(
    task: str,
    arguments: list[str],
    train: list[Path] | None,
    dev: list[Path] | None,
    *,
    for_one: bool,
) -> None:
    """Refuse arguments that are missing, or that do not go with one task or with several.

    `for_one` says whether any other option is given that only a single task has.
    """
    if task != "multi":
        if len(arguments) != 1 or not train:
            raise UserError(
                f"finetune {task}: need a model and --train FILE. As in: unmask finetune {task} "
                "minilm --train train.tsv --out run"
            )
        return
    if train or dev or for_one:
        raise UserError(
            "finetune multi: --train, --dev, columns, --on-bad, --seeds and --search are for one "
            "task; the recipe of several says what each needs. Leave them out."
        )
    if len(arguments) != 2:
        raise UserError("finetune multi: need a recipe and a model, as in: multi tasks.toml minilm")


def evaluate(
    model: options.ModelName,
    files: Annotated[list[str], typer.Argument(help="Labelled data; two are parallel files.")],
    table: options.DataFlags = options.DataFlags(),
    label: Label = None,
) -> None:
    """Score a fine-tuned model on labelled data.

    The metrics depend on the task, such as accuracy, F1 or BLEU.

    Example: unmask evaluate run/model dev.tsv
    """
    columns, watcher = table.columns(label), table.watcher()
    loaded = load(model)
    from unmask.infer.predict import evaluate_file

    scores, detail, _ = evaluate_file(loaded, files, columns, watcher, notice)
    report_truncation(loaded, loaded.limit, hint="")
    for name, value in scores.items():
        answer(f"{name:<16} {value:.4f}")
    for row in detail.table:
        cells = [f"{v:>9.3f}" if isinstance(v, float) else f"{v:>9}" for v in row.values()]
        answer("  ".join(cells))


def predict(
    model: options.ModelName,
    file: Annotated[str, typer.Argument(help="Texts or records; - is standard input.")] = "-",
    out: Annotated[
        Path | None,
        typer.Option(help="A .csv, .tsv, .jsonl or .parquet file, with the input's columns, too."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file in --out.")
    ] = False,
    table: options.DataFlags = options.DataFlags(),
) -> None:
    """Answer each line of a file with a fine-tuned model.

    A line is a text or a JSON object, or the file is a table. Each answer is printed as a JSON
    object, or written with --out beside the columns of the input. `unmask info MODEL` lists the
    fields, with an example.

    Example: unmask predict run/model texts.txt --out answers.csv
    """
    from unmask.data.labelled.table_files import check_table_file

    columns, watcher = table.columns(), table.watcher()
    if out is not None:  # before torch is imported
        check_table_file(out, file, overwrite=overwrite)
    elif overwrite:
        raise UserError("--overwrite: replaces the file in --out; give that, too.")
    loaded = load(model)
    from unmask.infer.predict import predict_lines
    from unmask.infer.predict_files import predict_file

    with speed_hint_after(loaded), progress("answering", "answers") as job:
        if out is None:
            for found in predict_lines(loaded, file, columns, watcher, notice):
                answer(json.dumps(found, ensure_ascii=False))
                job.advance()
        else:
            predict_file(
                loaded, file, out, columns, watcher, say=notice, progress=job.advance,
                overwrite=overwrite,
            )  # fmt: skip
    report_truncation(loaded, loaded.limit, hint="")
    say_counts(file, "answer", job.done, skipped=watcher.skipped, blanks=watcher.blanks)


def check(
    file: Annotated[Path, typer.Argument(help="Labelled data.")],
    task: Annotated[str | None, TASK_OF_FILE] = None,
    train: Annotated[Path | None, typer.Option(help="The training data it goes with.")] = None,
    table: options.TableFlags = options.TableFlags(),
    label: Label = None,
    set_: options.Set = None,
) -> None:
    """Check a labelled data file for errors.

    Every error is listed with its line. With --train, the file is also compared with the training
    data.

    Example: unmask check dev.tsv --train train.tsv
    """
    from unmask.system.settings import apply_overrides
    from unmask.tasks.check import examine

    columns = table.columns(label)
    own = apply_overrides({}, set_ or []).get("task", {})
    found = examine(file, task=task, columns=columns, train=train, settings=own)
    for fact in found.facts:
        answer(f"{file}: {fact}")
    for warning in found.warnings:
        answer(f"warning: {warning}")
    for fault in found.faults:
        answer(f"fault: {fault}")
    if found.faults:
        count = len(found.faults)
        faults = plural("fault", count)
        raise UserError(f"{file}: {count:,} {faults}, one line each above. Fix them.")
    answer("no faults")
