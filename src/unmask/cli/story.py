"""The verb demo."""

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.progress import answer, terminal


def demo(
    out: Annotated[
        Path | None, typer.Option(help="A new folder; runs/demo if left out, or the next free.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Under a minute, with less of all.")] = False,
) -> None:
    """Learn a vocabulary, pre-train a small BERT and use it, on text that is already here."""
    from unmask.cli.demo import tell

    def say(line: str) -> None:
        answer(line, flush=True)  # the story is read while it happens, also through a pipe

    tell(out or _free(Path("runs")), fast=fast, console=terminal, say=say)


def _free(folder: Path) -> Path:
    """runs/demo, runs/demo-2, ...: the first that is not there."""
    names = ["demo", *(f"demo-{i}" for i in range(2, 10_000))]
    return next(folder / name for name in names if not (folder / name).exists())
