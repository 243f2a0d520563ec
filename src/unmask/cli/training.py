"""The verb pretrain: a corpus folder -> a run folder with a model in it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.progress import answer, terminal
from unmask.console import Console
from unmask.disk import check_output_folder
from unmask.errors import SettingsError, UserError

if TYPE_CHECKING:
    from unmask.train.recipe import Recipe


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
Set = Annotated[list[str] | None, typer.Option("--set", help="Any setting: data.held_out=10")]
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
    if steps is not None and minutes is not None:
        raise SettingsError("--steps and --minutes: a run has one length. Give one of them.")
    flags = {"model.size": size, "optimizer.rate": rate, "schedule.warmup": warmup}
    flags |= {"data.pairs": pairs, "seed": seed}
    flags |= {"schedule.steps": steps, "schedule.minutes": minutes}
    changes = [f"{name}={value}" for name, value in flags.items() if value is not None]
    changes += set_ or []
    check_run(out, resume, overwrite)
    resumed = out if resume else None
    recipe = _recipe(arguments, changes, length, batch_tokens, resumed, shard=shard)
    from unmask.jobs.pretrain import Pretrain
    from unmask.train.run import Options, Run

    options = Options(resume, overwrite, shard, not no_preflight, tensorboard, threads)
    console = console_of_run()
    outcome = Run(Pretrain(Path(arguments[-1])), recipe, out, console, options).go()
    if is_main():
        answer(f"the model is in {outcome.model}, the report in {out / 'report.html'}")


def is_main() -> bool:
    """Is this the process that prints, of those that torchrun has started?"""
    return os.environ.get("RANK", "0") == "0"


def console_of_run() -> Console:
    """The terminal, or silence for the other processes that torchrun has started."""
    return terminal if is_main() else Console()


def check_run(out: Path, resume: bool, overwrite: bool) -> None:
    """Refuse to resume and to start over at once, and a folder that cannot be written."""
    if resume and overwrite:
        raise UserError(
            "--resume and --overwrite: a run is resumed or started over. Give one of them."
        )
    check_output_folder(out, renamed=False)


def _recipe(
    arguments: list[str],
    changes: list[str],
    length: int | None,
    batch_tokens: int | None,
    resumed: Path | None,
    *,
    shard: bool,
) -> "Recipe | None":
    """The recipe that was asked for; None if a run that is resumed has its own and nothing was.

    What is wrong with the arguments is reported here, before torch is imported.
    """
    if len(arguments) > 2:
        raise UserError(f"{len(arguments)} arguments; need a corpus, or a recipe and a corpus.")
    from unmask.data.layout import read_manifest

    read_manifest(Path(arguments[-1]))
    if resumed and not (len(arguments) == 2 or changes or length or batch_tokens):
        if not (resumed / "recipe.toml").exists():
            raise UserError(
                f"{resumed}: no run to resume is there. Check --out; to start one, give a recipe, "
                "--size, --steps or --minutes."
            )
        return None
    from unmask.jobs.scopes import PRETRAIN, check_network
    from unmask.settings import read_toml
    from unmask.train.compose import compose, recipe_path

    def check(recipe: "Recipe") -> None:
        check_network(recipe)
        if shard:
            recipe.optimizer.refuse_shares()

    minutes = any(change.startswith("schedule.minutes=") for change in changes)
    name = arguments[0] if len(arguments) == 2 else "budget" if minutes else "bert"
    source = _with_phases(read_toml(recipe_path("", name)), length, batch_tokens)
    return compose(PRETRAIN, source, changes, console=console_of_run(), check=check)


def _with_phases(
    table: dict[str, Any], length: int | None, batch_tokens: int | None
) -> dict[str, Any]:
    """A recipe with a single phase of a length, and with a number of tokens a step, if given."""
    if length is None and batch_tokens is None:
        return table
    old = "phases" in table  # as recipes of the first version have them
    place = table if old else dict(table.get("schedule", {}))
    phases = place.get("phases") or [{}]
    if length is not None:
        phases = [{**phases[0], "share": 1.0, "length": length}]
    if batch_tokens is not None:
        phases = [{**phase, "batch_tokens": batch_tokens} for phase in phases]
    place = {**place, "phases": phases}
    return place if old else {**table, "schedule": place}
