"""The verb pretrain: a corpus folder -> a run folder with a model in it."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.progress import Job, notice, progress
from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.train.course import Position
    from unmask.train.step import Report


CHECKING = "checking the corpus"


def add_to(app: typer.Typer) -> None:
    """Register the verb of this file."""
    app.command()(pretrain)


Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="[RECIPE] CORPUS", help="Without a recipe, bert; with --minutes, budget."
    ),
]
Out = Annotated[Path, typer.Option(help="The run's folder.")]
Size = Annotated[str | None, typer.Option(help="tiny, mini, small, medium, base, large or auto.")]
Steps = Annotated[int | None, typer.Option(min=1, help="How many steps.")]
Minutes = Annotated[float | None, typer.Option(help="How many minutes; the rate ends with them.")]
Length = Annotated[int | None, typer.Option(help="One phase with rows so long.")]
BatchTokens = Annotated[int | None, typer.Option(help="Tokens a step.")]
Rate = Annotated[float | None, typer.Option(help="The highest learning rate.")]
Warmup = Annotated[float | None, typer.Option(help="Share of the run until then.")]
Pairs = Annotated[str | None, typer.Option(help="nsp, sop or off.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Of everything random.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; all cores.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Any setting: examples.held_out=10")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start over; delete the old run.")]
Shard = Annotated[bool, typer.Option("--shard", help="Share the weights among processes (FSDP2).")]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="RUN/tensorboard too (an extra).")]
NoPreflight = Annotated[bool, typer.Option("--no-preflight", help="Do not check that it is sane.")]


def pretrain(
    arguments: Arguments,
    out: Out,
    size: Size = None,
    steps: Steps = None,
    minutes: Minutes = None,
    length: Length = None,
    batch_tokens: BatchTokens = None,
    rate: Rate = None,
    warmup: Warmup = None,
    pairs: Pairs = None,
    seed: Seed = None,
    threads: Threads = None,
    set_: Set = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    shard: Shard = False,
    tensorboard: Tensorboard = False,
    no_preflight: NoPreflight = False,
) -> None:
    """Train a BERT on a corpus of your own: hidden words and next sentences.

    `torchrun --nproc-per-node 2 -m unmask pretrain ...` trains on several processes.
    """
    flags = {"model.size": size, "optimizer.rate": rate, "schedule.warmup": warmup}
    flags |= {"examples.pairs": pairs, "seed": seed}
    changes = [f"{name}={value}" for name, value in flags.items() if value is not None]
    lengths = {"steps": steps, "minutes": minutes, "length": length, "batch_tokens": batch_tokens}
    refuse_both(resume, overwrite)
    changes += set_ or []
    table = _recipe(arguments, changes, lengths, out if resume else None, shard=shard)
    train_here(
        Path(arguments[-1]),
        out,
        table,
        threads=threads,
        resume=resume,
        overwrite=overwrite,
        shard=shard,
        check=not no_preflight,
        tensorboard=tensorboard,
    )


def refuse_both(resume: bool, overwrite: bool) -> None:
    """A run goes on, or begins anew."""
    if resume and overwrite:
        raise UserError("--resume and --overwrite: a run goes on or begins anew. Give one of them.")


def _recipe(
    arguments: list[str],
    changes: list[str],
    lengths: dict[str, Any],
    resumed: Path | None,
    *,
    shard: bool,
) -> dict[str, Any] | None:
    """The recipe that was asked for; None if a run that is resumed has its own and nothing was.

    What can be said about the arguments is said here, before torch is imported.
    """
    if len(arguments) > 2:
        raise UserError(f"{len(arguments)} arguments; need a corpus, or a recipe and a corpus.")
    from unmask.data.layout import read_manifest
    from unmask.settings import build
    from unmask.train.recipe import AUTO, Recipe, compose

    read_manifest(Path(arguments[-1]))
    given = len(arguments) == 2 or changes or any(value is not None for value in lengths.values())
    if resumed and not given:
        if not (resumed / "recipe.toml").exists():
            raise UserError(
                f"{resumed}: no run to resume is there. Check --out; to begin one, say what it is "
                "to be (a recipe, --size, --steps, ...)."
            )
        return None
    usual = "budget" if lengths["minutes"] is not None else "bert"
    table = compose(arguments[0] if len(arguments) == 2 else usual, changes, **lengths)
    recipe = build(Recipe, table, where="recipe")
    if recipe.model["size"] != AUTO:
        recipe.network(2**15)
    if shard:
        recipe.optimizer.refuse_shares()
    return table


def train_here(
    corpus: Path, out: Path, table: dict[str, Any] | None, *, threads: int | None, **how: bool
) -> None:
    """Train with a bar, shown by the first of several processes."""
    import torch

    from unmask.train.pretrain import pretrain as run

    if threads:
        torch.set_num_threads(threads)
    total = (table or {}).get("schedule", {}).get("steps")
    first = os.environ.get("RANK", "0") == "0"  # torchrun's other processes keep quiet
    with progress("training", "steps", total) if first else nullcontext(Job("", "", 0)) as job:

        def show(position: "Position", report: "Report", done: float) -> None:
            steps = round(position.step / max(done, 1e-9))
            note = f"loss {report.loss:.3f}, {done:.0%}"
            job.reach("training", "steps", position.step, steps, note=note)

        def checked(tokens: int) -> None:
            before = job.stage.done if job.stage.what == CHECKING else 0
            job.reach(CHECKING, "tokens", before + tokens, None)

        model = run(corpus, out, table, notice=notice, show=show, checked=checked, **how)
    if first:
        print(f"the model is in {model}, the report in {out / 'report.html'}")
