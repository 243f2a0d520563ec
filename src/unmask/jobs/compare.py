"""A comparison recipe -> translation runs on the same pairs, a table of scores and a figure.

A comparison is a TOML file with the data and several variants, each a recipe with some settings
replaced. Finished variants are not trained again, and a stopped one is resumed.
"""

from dataclasses import dataclass
from pathlib import Path

from unmask.evaluation.report.charts import Chart, Line, stacked
from unmask.evaluation.tasks import Labelled
from unmask.jobs.comparison import ComparisonRecipe, check_folders
from unmask.jobs.finetune import Finetune
from unmask.jobs.inputs.labelled import LabelledFiles
from unmask.jobs.seeds import run_one
from unmask.jobs.settings_read import TRANSLATE
from unmask.system.console import Console
from unmask.system.disk import write_file
from unmask.train.compose import compose
from unmask.train.run import RunOptions
from unmask.train.run_folder import MODEL, of_kind, read_metrics

FIGURE = "compare.svg"


@dataclass(frozen=True)
class ComparisonRow:
    """The best held-out scores of a variant, and its training time."""

    variant: str
    bleu: float
    chrf: float
    perplexity: float
    minutes: float


def compare(
    comparison: ComparisonRecipe,
    console: Console,
    *,
    threads: int | None = None,
    device: str = "auto",
) -> list[ComparisonRow]:
    """Train every variant, draw all curves in one figure, and return a row for each variant."""
    out = Path(comparison.out)
    runs = check_folders(comparison)
    train, dev = comparison.files.paths()
    data: LabelledFiles | Labelled = LabelledFiles(train, dev)
    for variant in comparison.variants:
        run = runs[variant.name]
        if (run / MODEL).exists():
            console.say(f"{variant.name}: already trained, skipped")
            continue
        changes = [*comparison.set, *variant.set]
        console.say(f"{variant.name}: {variant.recipe} {' '.join(changes)}".rstrip())
        recipe = compose(TRANSLATE, variant.recipe, changes, console=console)
        job = Finetune(None, data, scope=TRANSLATE)
        data = job.read(recipe)  # read once: the next variant gets the records, not the files
        options = RunOptions(threads=threads, device=device)
        run_one(job, recipe, run, console, options, resume=True)
    write_file(out / FIGURE, comparison_figure(runs).encode("utf-8"))
    return [summarise(name, run) for name, run in runs.items()]


def summarise(name: str, run: Path) -> ComparisonRow:
    """Summarise a run by its evaluation with the highest BLEU."""
    metrics = read_metrics(run)
    # Step 0 is untrained, and never the published step.
    evaluations = [entry for entry in of_kind(metrics, "eval") if entry["step"] > 0]
    best = max(evaluations, key=lambda entry: float(entry["bleu"]))
    scores: dict[str, float] = {key: best[key] for key in ("bleu", "chrf", "perplexity")}
    seconds: float = of_kind(metrics, "train")[-1]["seconds"]
    return ComparisonRow(name, **scores, minutes=seconds / 60)


def comparison_figure(runs: dict[str, Path]) -> str:
    """Draw held-out BLEU and loss of all runs over the tokens that they were trained on.

    Not over steps, because the variants may have different batch sizes.
    """
    evaluations = {name: of_kind(read_metrics(run), "eval") for name, run in runs.items()}
    charts = []
    for title, key in (("Held-out BLEU", "bleu"), ("Held-out loss per token", "loss")):
        lines = [
            Line(
                name,
                [entry["tokens"] / 1e6 for entry in entries],
                [entry[key] for entry in entries],
            )
            for name, entries in evaluations.items()
        ]
        charts.append(Chart(title, lines, across="million training tokens"))
    return stacked(charts)
