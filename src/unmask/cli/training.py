"""The verb `pretrain`: corpus folder -> run folder with a model in it."""

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import options
from unmask.system.errors import SettingsError, UserError

Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="[RECIPE] CORPUS", help="Without a recipe, bert; with --minutes, budget."
    ),
]
Size = Annotated[str | None, typer.Option(help="tiny, mini, small, medium, base, large or auto.")]
Minutes = Annotated[
    float | None, typer.Option(help="Time limit in minutes; the learning rate ends with it.")
]


def pretrain(
    arguments: Arguments,
    *,
    size: Size = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps.")] = None,
    minutes: Minutes = None,
    max_length: Annotated[
        int | None, typer.Option(help="Train in one phase with this sequence length.")
    ] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Batch size in tokens.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Warm-up, as a fraction of the run.")] = None,
    pairs: Annotated[str | None, typer.Option(help="nsp, sop or off.")] = None,
    run: options.RunFlags,
) -> None:
    """Pre-train a BERT on a corpus of your own.

    It learns to predict masked tokens and, if the recipe has sentence pairs, next sentences. With
    --minutes, it times your machine, chooses a model size and finishes on time. To train with
    several processes, run
    torchrun --nproc-per-node 2 -m unmask pretrain ...

    Example: unmask pretrain corpus --minutes 30 --out run
    """
    if steps is not None and minutes is not None:
        raise SettingsError("--steps and --minutes: a run has one length. Give one of them.")
    flags = {"model.size": size, "schedule.warmup": warmup, "data.pairs": pairs}
    flags |= {"schedule.steps": steps, "schedule.minutes": minutes}
    run.check()
    phase = {"length": max_length, "batch_tokens": batch_tokens}
    if len(arguments) > 2:
        raise UserError(f"{len(arguments)} arguments; need a corpus, or a recipe and a corpus.")
    from unmask.jobs.pretrain_recipe import pretrain_recipe

    console = options.console_of_run()
    recipe = pretrain_recipe(
        Path(arguments[-1]),
        arguments[0] if len(arguments) == 2 else None,
        run.changes(flags),
        {name: value for name, value in phase.items() if value is not None},
        run.out,
        resume=run.resume,
        shard=run.shard,
        console=console,
    )
    from unmask.jobs.pretrain import Pretrain
    from unmask.train.run import Run

    job = Pretrain(Path(arguments[-1]))
    outcome = Run(job, recipe, run.out, console, run.how()).go()
    report = run.out / "report.html"
    options.answer_of_run(f"the model is in {outcome.model}, the report in {report}")
