"""The verb `demo`: a small BERT from raw text to a fine-tuned classifier."""

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.progress import answer, terminal


def demo(
    out: Annotated[
        Path | None, typer.Option(help="A new folder.  [default: runs/demo, or the next free name]")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="A reduced demo that takes under a minute.")
    ] = False,
) -> None:
    """Pre-train and fine-tune a small BERT in minutes.

    It needs no data: the text is the documentation of Python and of installed packages.

    Example: unmask demo --fast
    """
    from unmask.cli.demo_steps import run_demo

    def say(line: str) -> None:
        answer(line, flush=True)  # shows each line at once, also in a pipe

    run_demo(out or _free(Path("runs")), fast=fast, console=terminal, say=say)


def _free(folder: Path) -> Path:
    """Return the first of runs/demo, runs/demo-2, ... that does not exist."""
    names = ["demo", *(f"demo-{i}" for i in range(2, 10_000))]
    return next(folder / name for name in names if not (folder / name).exists())
