"""The verb `pretrain`: corpus folder -> run folder with a model in it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import completion, options
from unmask.system.errors import SettingsError, UserError

if TYPE_CHECKING:
    from unmask.train.recipe import Recipe


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
    if steps is not None and minutes is not None:
        raise SettingsError(
            "--steps and --minutes both set the length of the run. Give one of them."
        )
    if batch_size is not None and batch_tokens is not None:
        raise SettingsError(
            "--batch-size and --batch-tokens both set the size of a batch. Give one of them."
        )
    flags = {"model.size": size, "schedule.warmup": warmup, "data.pairs": pairs}
    flags |= {"schedule.steps": steps, "schedule.minutes": minutes}
    run.check()
    phase = {"length": max_length, "batch_tokens": batch_tokens, "batch_size": batch_size}
    phase_settings = {name: value for name, value in phase.items() if value is not None}
    recipe = _recipe(arguments, run.changes(flags), phase_settings, run)
    from unmask.jobs.pretrain import Pretrain
    from unmask.jobs.summary import say_summary
    from unmask.train.run import Run

    if recipe is not None:
        options.report_recipe(Pretrain.scope.table(recipe))
    job, console = Pretrain(Path(arguments[-1])), options.console_of_run()
    outcome = Run(job, recipe, run.out, console, run.run_options()).go()
    say_summary(console, job, outcome)
    report = run.out / "report.html"
    if run.as_json:
        table = {"model": str(outcome.model), "report": str(report), "summary": outcome.summary}
        options.answer_of_run(json.dumps(table))
    else:
        options.answer_of_run(f"the model is in {outcome.model}, the report in {report}")


def _recipe(
    arguments: list[str], changes: list[str], phase: dict[str, int], run: options.RunFlags
) -> "Recipe | None":
    """Compose the recipe from the arguments; None if a resumed run continues with its own.

    Errors in the arguments are raised here, before torch is imported.
    """
    if len(arguments) > 2:
        raise UserError(f"{len(arguments)} arguments; need a corpus, or a recipe and a corpus.")
    from unmask.data.corpus.layout import read_manifest

    read_manifest(Path(arguments[-1]))
    if run.resume and not (len(arguments) == 2 or changes or phase):
        if not (run.out / "recipe.toml").exists():
            raise UserError(
                f"{run.out}: no run to resume. Check --out; to start a run, give a recipe, "
                "--size, --steps or --minutes."
            )
        return None
    from unmask.jobs.settings_read import PRETRAIN, check_network
    from unmask.system.settings import read_toml
    from unmask.train.compose import compose, recipe_path

    minutes = any(change.startswith("schedule.minutes=") for change in changes)
    name = arguments[0] if len(arguments) == 2 else "budget" if minutes else "bert"

    def check(recipe: "Recipe") -> None:
        check_network(recipe)
        if run.shard:
            recipe.optimizer.refuse_sharding()

    # Options hold for every phase, so they go in before --set, which can change a single one.
    source = _with_phases(read_toml(recipe_path("", name)), phase)
    return compose(PRETRAIN, source, changes, console=options.console_of_run(), check=check)


def _with_phases(table: dict[str, Any], phase: dict[str, int]) -> dict[str, Any]:
    """Put settings into every phase of a recipe; with a length, only one phase is left."""
    if not phase:
        return table
    old = "phases" in table  # as in recipes of version 0.1
    schedule = table if old else table.get("schedule", {})
    phases = schedule.get("phases") or [{}]
    if "length" in phase:
        phases = [{**phases[0], "share": 1.0}]
    from unmask.system.settings import validate
    from unmask.train.optim.schedules import Phase

    phase = dict(phase)
    sequences = phase.pop("batch_size", None)
    phases = [{**before, **phase} for before in phases]
    if sequences is not None:
        lengths = [
            validate(Phase, each, where="recipe [[schedule.phases]]").length for each in phases
        ]
        phases = [
            {**each, "batch_tokens": sequences * length}
            for each, length in zip(phases, lengths, strict=True)
        ]
    schedule = {**schedule, "phases": phases}
    return schedule if old else {**table, "schedule": schedule}
