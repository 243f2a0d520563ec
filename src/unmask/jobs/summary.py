"""A finished run -> the table that it ends with: scores, length, files, and the next command.

    accuracy     0.7700   0.5050 before training
    loss         0.6511   0.7024 before training
    steps            64   published: step 48, the best of 6 evaluations
    time         12.4 s   25,600 tokens, 2,065 per second
    model        run/model
    report       run/report.html
    next         unmask predict run/model dev.tsv --out answers.csv

Several runs end with one table: a line for each, and their mean and standard deviation.
"""

import inspect
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from unmask.data.labelled.columns import NAMES, Columns
from unmask.data.read.lines import file_ending
from unmask.system.console import Console
from unmask.system.errors import plural
from unmask.tasks.base import Task
from unmask.train.evaluator import METRIC
from unmask.train.run import Outcome
from unmask.train.run_folder import MODEL, MODELS, of_kind, read_metrics

REPORT = "report.html"
WIDTH = 80  # columns of a terminal that tables of several runs fit into
MASKED = "The weather is [MASK] today."  # an example that any model for masked tokens can read
PLUGIN_MODULES = "unmask_plugin_"  # beginning of the names of the modules of plugins
Row = tuple[str, str, str]  # name, value, remark


class Summarised(Protocol):
    """What the table asks of a job when its run is over."""

    def main_metrics(self) -> Sequence[str]:
        """Return the scores that decide which step is published, by their names in the metrics."""

    def next_command(self, run: Path) -> list[str]:
        """Return a command that uses a model of the run, word by word."""


def say_summary(console: Console, job: Summarised, outcome: Outcome) -> None:
    """Print the table of a single run."""
    metrics = read_metrics(outcome.folder)
    rows = [*_scores(metrics, outcome.summary, job.main_metrics()), *_length(metrics, outcome)]
    _say_rows(console, rows, outcome.folder, job)


def _say_rows(console: Console, rows: Sequence[Row], out: Path, job: Summarised) -> None:
    """Print rows, and below them where the results are and what to do next."""
    places = {"model": out / MODEL, "models": out / MODELS, "report": out / REPORT}
    files = {name: str(path) for name, path in places.items() if path.exists()}
    files["next"] = shlex.join(job.next_command(out))
    width = max(len(name) for name in (*files, *(row[0] for row in rows)))
    values = max((len(row[1]) for row in rows), default=0)
    for name, value, remark in rows:
        console.say(f"{name:<{width}}   {value:>{values}}   {remark}".rstrip())
    for name, value in files.items():
        console.say(f"{name:<{width}}   {value}")


def _scores(
    metrics: Sequence[dict[str, Any]], summary: Mapping[str, Any], main: Sequence[str]
) -> Iterator[Row]:
    """Yield the held-out scores of the published step, each beside its baseline."""
    held = of_kind(metrics, "eval")
    if not held:
        return
    if "targets" in held[-1]:  # pre-training, which publishes the last step
        yield from _language_scores(held[-1])
        return
    first = held[0] if held[0]["step"] == 0 else {}
    names = [name for name, value in summary.items() if isinstance(value, float) and name != METRIC]
    # The loss goes last: it is no score of the answers.
    for name in sorted(names, key=lambda name: (name not in main, name == "loss")):
        before = f"{first[name]:.4f} before training" if name in first else ""
        yield name, f"{summary[name]:.4f}", before


def _language_scores(entry: Mapping[str, Any]) -> Iterator[Row]:
    targets: Mapping[str, str] = entry["targets"]
    for number, (term, about) in enumerate(targets.items()):
        known = {"unigram": "unigram_loss", "ln V": "ln_v"} if number == 0 else {}
        beside = [f"{name} {entry[key]:.3f}" for name, key in known.items() if key in entry]
        loss = "held-out loss" if number == 0 else f"loss, {about}"
        if term in entry:
            yield loss, f"{entry[term]:.3f}", ", ".join(beside)
        right = entry.get(f"{term}_accuracy")
        if right is not None:
            plain = entry.get("unigram_accuracy") if number == 0 else None
            name = "unigram" if plain is not None else "chance"
            plain = entry.get(f"{term}_chance") if plain is None else plain
            beside = [] if plain is None else [f"{name} {plain:.1%}"]
            yield f"accuracy, {about}", f"{right:.1%}", ", ".join(beside)


def _length(metrics: Sequence[dict[str, Any]], outcome: Outcome) -> Iterator[Row]:
    """Yield steps and time of a run."""
    train = of_kind(metrics, "train")
    if not train:
        return
    last, remark = train[-1], ""
    if METRIC in outcome.summary:
        tried = sum(entry["step"] > 0 for entry in of_kind(metrics, "eval"))
        best = outcome.summary["step"]
        remark = f"published: step {best:,}, the best of {tried:,} {plural('evaluation', tried)}"
    yield "steps", f"{last['step']:,}", remark
    speed = last["tokens"] / max(last["seconds"], 1e-9)
    yield "time", duration(last["seconds"]), f"{last['tokens']:,} tokens, {speed:,.0f} per second"


def duration(seconds: float) -> str:
    """Format a duration in the unit that suits it.

    >>> duration(12.34), duration(600), duration(9000)
    ('12.3 s', '10.0 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def say_several(
    console: Console,
    job: Summarised,
    out: Path,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> None:
    """Print the table of several runs: the names of its columns, and a row for each run.

    The last columns are dropped where the table is wider than a terminal.
    """
    lines = [heads, *rows]
    sizes = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    fitting = next(n for n in range(len(sizes), 0, -1) if n == 1 or sum(sizes[:n]) + 2 * n <= WIDTH)
    for line in lines:
        cells = [f"{cell:>{size}}" for cell, size in zip(line, sizes[:fitting], strict=False)]
        console.say("  ".join([line[0].ljust(sizes[0]), *cells[1:]]).rstrip())
    _say_rows(console, [], out, job)


def seed_rows(
    summaries: Mapping[str, Mapping[str, float]],
    means: Mapping[str, float],
    deviations: Mapping[str, float],
    best: str,
    main: Sequence[str],
) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the rows of the table of several seeds."""
    names = [name for name in means if name != METRIC]
    names = sorted(names, key=lambda name: (name not in main, name == "loss"))
    runs: list[list[str]] = []
    for run, scores in summaries.items():
        mark = " (best)" if run == best else ""
        runs.append([f"{run}{mark}", *(f"{scores[name]:.4f}" for name in names)])
    runs.append(["mean", *(f"{means[name]:.4f}" for name in names)])
    runs.append(["standard deviation", *(f"{deviations[name]:.4f}" for name in names)])
    return ["", *names], runs


def command_for_files(
    kind: type[Task[Any, Any]], files: Sequence[Path], columns: Columns, model: Path
) -> list[str]:
    """Return a command that asks a model about files in the format of its training data."""
    if not files:  # the data were rows of a program
        return ["unmask", "info", str(model), *_plugin_option(kind)]
    if kind.parallel and len(files) == 2:
        return ["unmask", "translate", "run", str(model), str(files[0])]
    plugin = _plugin_option(kind)
    # `predict` would read a table of pairs, or words and tags in a .txt file, as something else.
    # A task of the user may ask for columns that its training data do not have.
    if kind.parallel or plugin or file_ending(files[0]) == ".txt":
        verb, options = "evaluate", _column_options(columns)
    else:
        by_field = columns.by_field()
        askable = {name: by_field[name] for name in by_field if name in kind.Ask.model_fields}
        verb, options = "predict", _column_options(Columns.from_fields(askable, columns.header))
        options += ["--out", _free_name()]
    return ["unmask", verb, str(model), str(files[0]), *options, *plugin]


def _column_options(columns: Columns) -> list[str]:
    """Return the options of the command line that name these columns."""
    words: list[str] = []
    for name, column in columns.by_field().items():
        words += [f"--{name}", column] if name in NAMES else ["--column", f"{name}={column}"]
    if columns.header is not None:
        words.append("--header" if columns.header else "--no-header")
    return words


def _plugin_option(kind: type[Task[Any, Any]]) -> list[str]:
    """Return the option that loads the file of a user's from_plugin task."""
    from_plugin = kind.__module__.startswith(PLUGIN_MODULES)
    return ["--plugin", inspect.getfile(kind)] if from_plugin else []


def _free_name() -> str:
    """Return the name of a table that is not in the current folder yet."""
    names = (f"answers{number if number > 1 else ''}.csv" for number in count(1))
    return next(name for name in names if not Path(name).exists())
