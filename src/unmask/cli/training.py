"""The verb `pretrain`: corpus folder -> run folder with a model in it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import completion, options
from unmask.system.errors import SettingsError, UserError

Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="[RECIPE] CORPUS",
        help="A corpus folder, after a recipe: bert by default, budget with --minutes.",
        autocompletion=completion.pretraining_recipes,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        help="tiny, mini, small, medium, base, large or auto.", autocompletion=completion.sizes
    ),
]
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
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Batch size, in sequences of full length.")
    ] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Batch size, in tokens.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Warm-up, as a fraction of the run.")] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            help="Sentence pairs: nsp, sop or off.",
            autocompletion=completion.choices("nsp", "sop", "off"),
        ),
    ] = None,
    run: options.RunFlags,
) -> None:
    """Pre-train a BERT on a corpus of your own.

    It learns to predict masked tokens and, if the recipe has sentence pairs, next sentences. With
    --minutes, it times your machine, chooses a model size and finishes on time. To train with
    several processes, run
    torchrun --nproc-per-node 2 -m unmask pretrain ...

    Example: unmask pretrain corpus --minutes 30 --out run
    """
    _refuse_both("the length of the run", {"--steps": steps, "--minutes": minutes})
    _refuse_both("the batch size", {"--batch-size": batch_size, "--batch-tokens": batch_tokens})
    flags = {"model.size": size, "schedule.warmup": warmup, "data.pairs": pairs}
    flags |= {"schedule.steps": steps, "schedule.minutes": minutes}
    run.check()
    phase = {"length": max_length, "batch_tokens": batch_tokens, "batch_size": batch_size}
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
    from unmask.jobs.summary import say_summary
    from unmask.train.run import Run

    if recipe is not None:
        options.report_recipe(Pretrain.scope.table(recipe))
    job = Pretrain(Path(arguments[-1]))
    outcome = Run(job, recipe, run.out, console, run.run_options()).go()
    say_summary(console, job, outcome)
    model, report = str(outcome.model), str(run.out / "report.html")
    if run.as_json:
        table = {"model": model, "report": report, "summary": outcome.summary}
        options.answer_of_run(json.dumps(table))
    else:
        options.answer_of_run(f"the model is in {model}, the report in {report}")


def _refuse_both(purpose: str, flags: Mapping[str, float | None]) -> None:
    """Refuse two flags that set the same thing."""
    if None not in flags.values():
        raise SettingsError(f"{' and '.join(flags)} both set {purpose}. Give one of them.")
