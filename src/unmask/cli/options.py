"""Arguments and options that several verbs have, and what the verbs that start a run do with them.

Nothing here imports torch.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.progress import answer, terminal
from unmask.console import Console
from unmask.disk import check_output_folder
from unmask.errors import UserError

ModelName = Annotated[str, typer.Argument(help="A model folder, or a fetched model's name.")]
TextFiles = Annotated[list[str], typer.Argument(help="Text files: .txt .jsonl .csv .tsv .parquet")]
Column = Annotated[str | None, typer.Option(help="Where a table has its text.")]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help="Does the first row name columns?")
]
OnBad = Annotated[str, typer.Option(help="stop at a bad record, or skip it.")]
NewFolder = Annotated[Path, typer.Option(help="The folder to write: new, or empty.")]

# Of a run.
Out = Annotated[Path, typer.Option(help="The run's folder.")]
Rate = Annotated[float | None, typer.Option(help="The highest learning rate.")]
Epochs = Annotated[float | None, typer.Option(help="How often everything is seen.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Of everything random.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; all cores.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Any setting: data.held_out=10")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start over; delete the old run.")]
Shard = Annotated[bool, typer.Option("--shard", help="Share the weights among processes (FSDP2).")]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="RUN/tensorboard too (an extra).")]
NoPreflight = Annotated[bool, typer.Option("--no-preflight", help="Do not check that it is sane.")]


def changes(flags: Mapping[str, object], set_: list[str] | None) -> list[str]:
    """The settings that a user gives: flags by the names of their settings, then those of --set."""
    given = [f"{name}={value}" for name, value in flags.items() if value is not None]
    return given + (set_ or [])


def check_run(out: Path, resume: bool, overwrite: bool) -> None:
    """Refuse to resume and to start over at once, and a folder that cannot be written."""
    if resume and overwrite:
        raise UserError(
            "--resume and --overwrite: a run is resumed or started over. Give one of them."
        )
    check_output_folder(out, renamed=False)


def console_of_run() -> Console:
    """The terminal, or silence for the other processes that torchrun has started."""
    return terminal if _is_main() else Console()


def answer_of_run(line: str) -> None:
    """Print what a run came to, once for all processes that torchrun has started."""
    if _is_main():
        answer(line)


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"
