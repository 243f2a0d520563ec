"""The verb `demo`: a small BERT from raw text to a fine-tuned classifier."""

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import options
from unmask.cli.progress import answer, notice, terminal
from unmask.system.devices import check_device
from unmask.system.disk import check_output_folder
from unmask.system.errors import FolderError


def demo(
    out: Annotated[
        Path | None, typer.Option(help="A new folder.  [default: runs/demo, or the next free name]")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="A reduced demo that takes under a minute.")
    ] = False,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Pre-train and fine-tune a small BERT in minutes.

    It needs no data: the text is the documentation of Python and of installed packages.

    Example: unmask demo --fast
    """
    folder = out or _free(Path("runs"))
    check_output_folder(folder, renamed=False)
    if folder.exists() and any(folder.iterdir()):
        raise FolderError(f"{folder}: the folder is not empty. Give another --out, or remove it.")
    check_device(device)
    from unmask.cli.demo_steps import run_demo

    def say(line: str) -> None:
        if as_json:
            notice(line)  # standard output gets the JSON object alone
        elif not terminal.quiet:
            answer(line, flush=True)  # shows each line at once, also in a pipe

    result = run_demo(folder, fast=fast, console=terminal, say=say, device=device)
    if as_json:
        options.print_json(result)
    elif terminal.quiet:
        answer(f"the model is in {result['model']}, the report in {result['report']}")


def _free(folder: Path) -> Path:
    """Return the first of runs/demo, runs/demo-2, ... that does not exist."""
    names = ["demo", *(f"demo-{i}" for i in range(2, 10_000))]
    return next(folder / name for name in names if not (folder / name).exists())
