"""Verbs of labelled data: finetune, evaluate, predict, check."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.progress import progress
from unmask.cli.training import Out, Overwrite, Resume, Set, Threads
from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.data.columns import Columns
    from unmask.train.course import Position
    from unmask.train.step import Report

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
Seed = Annotated[int | None, typer.Option(min=0, help="Of everything random.")]


def add_to(app: typer.Typer) -> None:
    """Register the verbs of this file."""
    for verb in (finetune, evaluate, predict, check):
        app.command()(verb)


def finetune(
    task: Annotated[str, typer.Argument(help="classify, regress, qa, ner, or a recipe.toml.")],
    model: ModelName,
    train: Annotated[Path, typer.Option(help="Data to learn from.")],
    dev: Annotated[Path, typer.Option(help="Data to be scored on.")],
    out: Out,
    text: Text = None,
    second: Second = None,
    label: Label = None,
    header: Header = None,
    rate: Rate = None,
    epochs: Epochs = None,
    batch: Batch = None,
    length: Length = None,
    seed: Seed = None,
    threads: Threads = None,
    set_: Set = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a model for a task on labelled data of your own."""
    flags = {"optimizer.rate": rate, "tune.epochs": epochs, "tune.batch": batch}
    flags |= {"tune.length": length, "seed": seed}
    changes = [f"{name}={value}" for name, value in flags.items() if value is not None]
    if resume and overwrite:
        raise UserError("--resume and --overwrite: a run goes on or begins anew. Give one of them.")
    from unmask.settings import build
    from unmask.train.tuning import Tuning, compose_tuning

    table = compose_tuning(task, [*changes, *(set_ or [])])
    recipe = build(Tuning, table, where="recipe")
    import torch

    from unmask.checkpoint.fetch import locate
    from unmask.checkpoint.folder import load_folder
    from unmask.train.finetune import finetune as run
    from unmask.train.finetune import read_data

    if threads:
        torch.set_num_threads(threads)
    data = read_data(recipe, train, dev, _columns(text, second, label, header))
    folder = load_folder(locate(model))
    with progress("training", "steps", None) as job:

        def show(position: "Position", report: "Report", done: float) -> None:
            steps = round(position.step / max(done, 1e-9))
            note = f"loss {report.loss:.3f}"
            job.reach("training", "steps", position.step, steps, note=note)

        scores = run(
            folder, data, out, recipe, resume=resume, overwrite=overwrite, notice=_notice, show=show
        )
    print(json.dumps(scores))


def evaluate(
    model: ModelName,
    file: File,
    text: Text = None,
    second: Second = None,
    label: Label = None,
    header: Header = None,
) -> None:
    """Score a fine-tuned model on labelled data."""
    from unmask.use.model import Model
    from unmask.use.predict import evaluate_file

    columns = _columns(text, second, label, header)
    scores, detail, _ = evaluate_file(Model.load(model), file, columns)
    for name, value in scores.items():
        print(f"{name:<16} {value:.4f}")
    for row in detail.table:
        cells = [f"{v:>9.3f}" if isinstance(v, float) else f"{v:>9}" for v in row.values()]
        print("  ".join(cells))


def predict(
    model: ModelName,
    file: Annotated[str, typer.Argument(help="Texts or records; - is standard input.")] = "-",
    text: Text = None,
    second: Second = None,
    header: Header = None,
) -> None:
    """Answer every line: a text or a JSON object in, a JSON object out."""
    from unmask.use.model import Model
    from unmask.use.predict import predict_lines

    columns = _columns(text, second, None, header)
    with progress("answering", "answers", None) as job:
        for answer in predict_lines(Model.load(model), file, columns):
            sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
            job.advance(1)


def _columns(
    text: str | None, second: str | None, label: str | None, header: bool | None
) -> "Columns":
    from unmask.data.columns import Columns

    return Columns(text, second, label, header)


def _notice(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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
) -> None:
    """Read a data file and say everything that is wrong with it, with its lines."""
    from unmask.tasks.check import examine

    columns = _columns(text, second, label, header)
    found = examine(file, task=task, columns=columns, train=train)
    for fact in found.facts:
        print(f"{file}: {fact}")
    for warning in found.warnings:
        print(f"warning: {warning}")
    for fault in found.faults:
        print(f"fault: {fault}")
    if found.faults:
        raise UserError(f"{file}: {len(found.faults):,} faults. Mend them, one line each above.")
    print("no faults")
