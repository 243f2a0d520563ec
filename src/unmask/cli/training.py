"""The verb pretrain: a corpus folder -> a run folder with a model in it."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.progress import progress
from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.train.loop import Position
    from unmask.train.step import Report


def add_to(app: typer.Typer) -> None:
    """Register the verb of this file."""
    app.command()(pretrain)


def pretrain(
    arguments: Annotated[
        list[str], typer.Argument(metavar="[RECIPE] CORPUS", help="A recipe, bert if left out.")
    ],
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    size: Annotated[
        str | None, typer.Option(help="tiny, mini, small, medium, base or large.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="How many steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="How many minutes; the schedule ends with them.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="One phase with rows so long.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens a step.")] = None,
    rate: Annotated[float | None, typer.Option(help="The highest learning rate.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the run until then.")] = None,
    pairs: Annotated[str | None, typer.Option(help="nsp, sop or off.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything random.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: examples.held_out=10")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin it anew.")] = False,
    shard: Annotated[
        bool, typer.Option("--shard", help="Share the weights among processes (FSDP2).")
    ] = False,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Do not check that the run is sane.")
    ] = False,
) -> None:
    """Train a BERT on a corpus of your own: hidden words and next sentences.

    `torchrun --nproc-per-node 2 -m unmask pretrain ...` trains on several processes.
    """
    if len(arguments) > 2:
        raise UserError(f"{len(arguments)} arguments; need a corpus, or a recipe and a corpus.")
    from unmask.data.corpus import read_manifest
    from unmask.model.config import sized
    from unmask.settings import build
    from unmask.train.recipe import Recipe, compose

    corpus = Path(arguments[-1])
    read_manifest(corpus)  # what can be said is said before torch is imported
    flags = {"model.size": size, "optimizer.rate": rate, "schedule.warmup": warmup}
    flags |= {"examples.pairs": pairs, "seed": seed}
    changes = [f"{name}={value}" for name, value in flags.items() if value is not None]
    changes += set_ or []
    lengths = {"steps": steps, "minutes": minutes, "length": length, "batch_tokens": batch_tokens}
    table = None
    given = len(arguments) == 2 or changes or any(lengths.values())
    if given or not (resume and (out / "recipe.toml").exists()):
        name = arguments[0] if len(arguments) == 2 else "bert"
        table = compose(name, changes, **lengths)  # type: ignore[arg-type]
        sized(str(build(Recipe, table, where="recipe").model.get("size", "base")))
    train_here(
        corpus,
        out,
        table,
        threads=threads,
        resume=resume,
        overwrite=overwrite,
        shard=shard,
        check=not no_preflight,
    )


def train_here(
    corpus: Path, out: Path, table: dict[str, Any] | None, *, threads: int | None, **how: bool
) -> None:
    """Train with a bar, and turn a signal into its exit code."""
    import torch

    from unmask.train.pretrain import pretrain as run
    from unmask.train.signals import Stopped

    if threads:
        torch.set_num_threads(threads)
    total = (table or {}).get("schedule", {}).get("steps")
    with progress("training", "steps", total) as job:

        def show(position: "Position", report: "Report", done: float) -> None:
            steps = round(position.step / max(done, 1e-9))
            note = f"loss {report.loss:.3f}, {done:.0%}"
            job.reach("training", "steps", position.step, steps, note=note)

        try:
            model = run(corpus, out, table, notice=_notice, show=show, **how)
        except Stopped as stopped:
            raise typer.Exit(stopped.exit_code) from None
    if os.environ.get("RANK", "0") == "0":  # torchrun's other processes keep quiet
        print(f"the model is in {model}, the report in {out / 'report.html'}")


def _notice(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
