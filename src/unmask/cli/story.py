"""The verb demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.progress import progress

if TYPE_CHECKING:
    from unmask.train.course import Position
    from unmask.train.step import Report


def add_to(app: typer.Typer) -> None:
    """Register the verb of this file."""
    app.command()(demo)


def demo(
    out: Annotated[
        Path | None, typer.Option(help="A new folder; runs/demo if left out, or the next free.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Under a minute, with less of all.")] = False,
) -> None:
    """Learn a vocabulary, pre-train a small BERT and use it, on text that is already here."""
    from unmask.demo import tell

    with progress("pre-training", "steps") as job:

        def show(position: "Position", report: "Report", done: float) -> None:
            total = round(position.step / max(done, 1e-9))
            job.reach("pre-training", "steps", position.step, total, note=f"loss {report.loss:.2f}")

        tell(out or _free(Path("runs")), fast=fast, show=show)


def _free(folder: Path) -> Path:
    """runs/demo, runs/demo-2, ...: the first that is not there."""
    names = ["demo", *(f"demo-{i}" for i in range(2, 10_000))]
    return next(folder / name for name in names if not (folder / name).exists())
