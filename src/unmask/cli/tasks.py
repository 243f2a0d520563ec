"""Verbs for labelled data: finetune, evaluate, predict, check."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import completion, options
from unmask.cli.checks import check_inputs, check_model, check_recipe, require_optional
from unmask.cli.infer import report_counts, report_truncation, speed_hint_after
from unmask.cli.progress import answer, notice, progress, terminal
from unmask.system.errors import SettingsError, UserError, plural, unknown_name
from unmask.system.plugins import known_names
from unmask.tasks import TASKS

if TYPE_CHECKING:
    from unmask.tasks.check import FileCheck

TASK = typer.Argument(autocompletion=completion.tasks_or_multi)
TASK_OF_FILE = typer.Option(autocompletion=completion.tasks)
Label = Annotated[str | None, typer.Option(help="The column with the label.")]


def name_tasks() -> None:
    """Write the names of all tasks into the help; call again after loading plugins."""
    names = ", ".join(known_names("task", TASKS))
    TASK.help = f"{names}; or multi RECIPE.toml for several at once."
    TASK_OF_FILE.help = f"The task of the data: {names}. Recognised by the contents if not given."


name_tasks()


ModelArguments = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="A model folder, or the name of a downloaded model.",
        autocompletion=completion.models,
    ),
]
TrainOption = Annotated[
    list[Path] | None, typer.Option(help="Training data; repeatable for several files.")
]
DevOption = Annotated[
    list[Path] | None,
    typer.Option(help="Held-out data to score on; repeatable. Default: a tenth of --train."),
]
MaxLengthOption = Annotated[
    int | None, typer.Option(min=8, help="Maximum length of a text, in tokens.")
]
SeedsOption = Annotated[
    int, typer.Option(min=1, help="Number of runs, each with a seed of its own.")
]
TrialsOption = Annotated[
    int, typer.Option("--search", min=0, help="Number of hyper-parameter trials.")
]


def finetune(
    task: Annotated[str, TASK],
    arguments: ModelArguments,
    *,
    train: TrainOption = None,
    dev: DevOption = None,
    table: options.DataFlags,
    label: Label = None,
    epochs: options.Epochs = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Batch size, in examples.")] = None,
    max_length: MaxLengthOption = None,
    seeds: SeedsOption = 1,
    trials: TrialsOption = 0,
    run: options.RunFlags,
) -> None:
    """Fine-tune a model on labelled data.

    Without --dev, a tenth of the training data is held out. To train on several tasks at once, run
    unmask finetune multi tasks.toml minilm --out run

    Example: unmask finetune classify minilm --train a.tsv --dev b.tsv --out run
    """
    flags = {
        "schedule.epochs": epochs,
        "loop.batch_size": batch_size,
        "tokenizer.max_length": max_length,
    }
    changes = run.changes(flags)
    run.check()
    # Errors that need neither torch nor data are raised here, before both.
    columns, watcher = table.columns(label), table.watcher()
    single_task = table != options.DataFlags() or label is not None or seeds > 1 or trials > 0
    _check_arguments(task, arguments, train, dev, single_task=single_task)
    _check_before(task, arguments, [*(train or []), *(dev or [])], changes, search=trials > 0)
    from unmask.jobs.inputs.labelled import LabelledFiles
    from unmask.jobs.multi_task import MultiTask
    from unmask.jobs.start import finetune_files
    from unmask.jobs.summary import say_summary
    from unmask.train.compose import compose
    from unmask.train.run import Run

    console, run_options = options.console_of_run(), run.run_options()
    if task == "multi":
        recipe = compose(MultiTask.scope, arguments[0], changes, console=console)
        options.report_recipe(MultiTask.scope.table(recipe))
        job = MultiTask(arguments[1])
        outcome = Run(job, recipe, run.out, console, run_options).go()
        say_summary(console, job, outcome)
        summary: dict[str, object] = outcome.summary
    else:
        _report_recipe(task, changes)
        files = LabelledFiles(train or [], dev or None, columns, watcher)
        summary = finetune_files(
            task,
            arguments[0],
            files,
            run.out,
            changes,
            console,
            run_options,
            seeds=seeds,
            trials=trials,
        )
    options.answer_of_run(json.dumps(summary))


def _report_recipe(task: str, changes: list[str]) -> None:
    """With --verbose, print the settings of a fine-tuning. Imports torch."""
    if terminal.verbose:
        from unmask.jobs.settings_read import task_recipe
        from unmask.train.compose import compose

        scope, source = task_recipe(task)
        options.report_recipe(scope.table(compose(scope, source, changes)))


def _check_arguments(
    task: str,
    arguments: list[str],
    train: list[Path] | None,
    dev: list[Path] | None,
    *,
    single_task: bool,
) -> None:
    """Refuse arguments that are missing, or that do not go with one task or with several.

    `single_task` tells whether any other option is set that only a single task has.
    """
    if task != "multi":
        if len(arguments) != 1 or not train:
            raise UserError(
                f"finetune {task}: need a model and --train FILE. As in: unmask finetune {task} "
                "minilm --train train.tsv --out run"
            )
        return
    if train or dev or single_task:
        raise UserError(
            "finetune multi: --train, --dev, columns, --on-bad, --seeds and --search are for a "
            "single task; with several tasks, the recipe names the data. Leave them out."
        )
    if len(arguments) != 2:
        raise UserError("finetune multi: need a recipe and a model, as in: multi tasks.toml minilm")


def _check_before(
    task: str, arguments: list[str], files: list[Path], changes: list[str], *, search: bool
) -> None:
    """Refuse wrong files, names and settings, and missing packages, before torch is imported."""
    from unmask.jobs.settings_read import FINETUNE, MULTI_TASK
    from unmask.system.settings import read_toml
    from unmask.train.compose import known_recipes, recipe_path

    if search:
        require_optional("--search")
    check_inputs(files)
    check_model(arguments[-1])
    if task == "multi":
        check_recipe(MULTI_TASK, arguments[0], changes)
        entries = read_toml(recipe_path(MULTI_TASK.folder, arguments[0])).get("tasks", [])
        tables = [entry for entry in entries if isinstance(entry, dict)]
        paths = [entry.get(name) for entry in tables for name in ("train", "dev")]
        check_inputs([path for path in paths if isinstance(path, str)])
        return
    source: str | dict[str, object] = task
    name = task
    if task in known_names("task", TASKS) and task not in known_recipes(FINETUNE.folder):
        source = {"task": {"name": task}}  # a plugin's task has no recipe of its own
    elif task.endswith(".toml"):
        name = str(read_toml(Path(task)).get("task", {}).get("name"))
    check_recipe(FINETUNE, source, changes, known=False)
    if name == "translate":
        require_optional("scoring translations")


def evaluate(
    model: options.ModelName,
    files: Annotated[
        list[str], typer.Argument(help="Labelled data: one file, or two parallel files.")
    ],
    table: options.DataFlags = options.DataFlags(),
    label: Label = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Score a fine-tuned model on labelled data.

    The metrics depend on the task, such as accuracy, F1 or BLEU.

    Example: unmask evaluate run/model dev.tsv
    """
    columns, watcher = table.columns(label), table.watcher()
    check_inputs(files)
    loaded = options.load_model(model, device)
    if loaded.network.shape.decoder:
        require_optional("scoring translations")
    from unmask.infer.predict import evaluate_file

    scores, detail, _ = evaluate_file(loaded, files, columns, watcher, notice)
    report_truncation(loaded, loaded.limit, hint="")
    if as_json:
        options.print_json({"scores": scores, "details": list(detail.table)})
        return
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
        typer.Option(help="A .csv, .tsv, .jsonl or .parquet file; it has the input's columns too."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file in --out.")
    ] = False,
    table: options.DataFlags = options.DataFlags(),
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Answer each line of a file with a fine-tuned model.

    A line is a text or a JSON object, or the file is a table. Each answer is printed as a JSON
    object, with or without --json, or written with --out beside the columns of the input.
    `unmask info MODEL` lists the fields, with an example.

    Example: unmask predict run/model texts.txt --out answers.csv
    """
    from unmask.data.labelled.table_files import check_table_file

    columns, watcher = table.columns(), table.watcher()
    check_inputs([file])
    if out is not None:  # before torch is imported
        check_table_file(out, file, overwrite=overwrite)
    elif overwrite:
        raise UserError("--overwrite: replaces the file in --out; give that, too.")
    loaded = options.load_model(model, device)
    from unmask.infer.predict import predict_lines
    from unmask.infer.predict_files import predict_file

    with speed_hint_after(loaded), progress("predicting", "answers") as job:
        if out is None:
            for prediction in predict_lines(loaded, file, columns, watcher, notice):
                answer(json.dumps(prediction, ensure_ascii=False))
                job.advance()
        else:
            predict_file(
                loaded, file, out, columns, watcher, say=notice, progress=job.advance,
                overwrite=overwrite,
            )  # fmt: skip
    report_truncation(loaded, loaded.limit, hint="")
    report_counts(file, "answer", job.done, skipped=watcher.skipped, blanks=watcher.blanks)


def check(
    file: Annotated[Path, typer.Argument(help="A file of labelled data.")],
    task: Annotated[str | None, TASK_OF_FILE] = None,
    train: Annotated[
        Path | None, typer.Option(help="The training data to compare the file with.")
    ] = None,
    table: options.TableFlags = options.TableFlags(),
    label: Label = None,
    set_: options.Set = None,
    as_json: options.Json = False,
) -> None:
    """Check a labelled data file for errors.

    Every error is listed with its line. With --train, the file is also compared with the training
    data.

    Example: unmask check dev.tsv --train train.tsv
    """
    check_inputs([file, *([train] if train else [])])
    if task is not None and task not in known_names("task", TASKS):
        raise SettingsError(unknown_name("task", task, known_names("task", TASKS)))
    columns = table.columns(label)
    from unmask.system.settings import apply_overrides
    from unmask.tasks.check import examine

    settings = apply_overrides({}, set_ or []).get("task", {})
    report = examine(file, task=task, columns=columns, train=train, settings=settings)
    if as_json:
        table_of_findings = {"facts": report.facts, "warnings": report.warnings}
        options.print_json({"file": str(file), **table_of_findings, "faults": report.faults})
    else:
        _print_report(file, report)
    if report.faults:
        count = len(report.faults)
        raise UserError(f"{file}: {count:,} {plural('fault', count)}, listed above. Fix them.")


def _print_report(file: Path, report: "FileCheck") -> None:
    for fact in report.facts:
        answer(f"{file}: {fact}")
    for warning in report.warnings:
        answer(f"warning: {warning}")
    for fault in report.faults:
        answer(f"fault: {fault}")
    if not report.faults:
        answer("no faults")
