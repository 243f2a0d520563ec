"""Arguments and options that several verbs share. Nothing here imports torch.

Options that belong together are fields of a dataclass, and a verb takes them as one parameter
(`flatten_options`).
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask import load
from unmask.cli import completion
from unmask.cli.checks import check_model, require_optional
from unmask.cli.progress import answer, detail, terminal
from unmask.system.console import Console
from unmask.system.devices import DEVICES, check_device
from unmask.system.disk import check_output_folder
from unmask.system.errors import FolderError, SettingsError, UserError, unknown_name

if TYPE_CHECKING:
    from unmask.data.labelled.columns import Columns
    from unmask.data.read.lines import StopOrSkip
    from unmask.infer.model import Model
    from unmask.train.run import RunOptions

ModelName = Annotated[
    str,
    typer.Argument(
        help="A model folder, or the name of a downloaded model.",
        autocompletion=completion.models,
    ),
]
TextFiles = Annotated[list[str], typer.Argument(help="Text files: .txt .jsonl .csv .tsv .parquet")]
Column = Annotated[str | None, typer.Option(help="The column of a table that holds the text.")]
NewFolder = Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training data.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, as NAME=VALUE: data.held_out=10; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda, cuda:0 or mps.", autocompletion=completion.choices(*DEVICES)
    ),
]

SECRET = {"token"}  # options that --verbose does not print
LOCK = ".lock"  # in the folder of a run
SEVERAL = re.compile(r"(seed|trial)-\d+$")  # folders of several runs


def flatten_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Let a verb take a dataclass as parameter whose fields are options of the command line.

    typer reads options from a function's signature. The wrapper shows it a flat one, with a
    parameter for each field, and builds the dataclasses before it calls the verb.
    """
    parameters = signature(verb).parameters
    types = {name: p.annotation for name, p in parameters.items() if isinstance(p.annotation, type)}
    groups = {name: group for name, group in types.items() if is_dataclass(group)}
    fields = {name: signature(group).parameters for name, group in groups.items()}

    @wraps(verb)
    def call(**values: object) -> None:
        _report_options(values)
        for name, group in groups.items():
            values[name] = group(**{option: values.pop(option) for option in fields[name]})
        verb(**values)

    flat: list[Parameter] = []
    for name, parameter in parameters.items():
        flat += fields[name].values() if name in fields else [parameter]
    # Fields have defaults and later parameters may have none, which only keywords allow.
    keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in flat]
    # `wraps` has set __wrapped__, which inspect would follow; __signature__ comes first.
    vars(call)["__signature__"] = Signature(keywords)
    return call


def _report_options(values: Mapping[str, object]) -> None:
    """With --verbose, print the value of every option and argument that has one."""
    for name, value in values.items():
        if value is not None:
            shown = "(not shown)" if name in SECRET else value
            detail(f"option: {name.strip('_').replace('_', '-')} = {shown}")


@dataclass(frozen=True)
class TableFlags:
    """Options that name the columns of a table."""

    text: Annotated[
        str | None, typer.Option(help="The column with the text, or with the source text.")
    ] = None
    second: Annotated[
        str | None,
        typer.Option(help="The column with the second text of a pair, or the translation."),
    ] = None
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help="The column of a field; repeatable. `unmask info MODEL` lists the fields.",
        ),
    ] = None
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Whether the first row names the columns."),
    ] = None

    def columns(self, label: str | None = None) -> "Columns":
        """Return the chosen columns, with `label` as the column of the label."""
        from unmask.data.labelled.columns import Columns

        short_forms = {"text": self.text, "second": self.second, "label": label}
        chosen = {name: column for name, column in short_forms.items() if column is not None}
        for assignment in self.column or []:
            name, _, column = assignment.partition("=")
            if not name or not column:
                raise SettingsError(f"--column {assignment}: need FIELD=COLUMN, as in text=review.")
            if name in chosen:
                raise SettingsError(
                    f"--column {assignment}: '{name}' already has a column. Choose one of them."
                )
            chosen[name] = column
        return Columns.from_fields(chosen, self.header)


@dataclass(frozen=True)
class DataFlags(TableFlags):
    """Options that name the columns of a table and say what to do with bad records."""

    on_bad: Annotated[
        str,
        typer.Option(
            help="What to do with a bad record: stop or skip.",
            autocompletion=completion.choices("stop", "skip"),
        ),
    ] = "stop"

    def watcher(self) -> "StopOrSkip":
        """Return the policy for bad records: stop at the first, or report and skip them."""
        from unmask.data.read.lines import StopOrSkip

        if self.on_bad not in (known := ("stop", "skip")):
            raise SettingsError(unknown_name("choice", self.on_bad, known))
        return StopOrSkip(self.on_bad == "skip", terminal.say)


@dataclass(frozen=True)
class RunFlags:
    """Options of every verb that starts a training run."""

    out: Annotated[Path, typer.Option(help="The folder of the run.")]
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="Peak learning rate.")
    ] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed.")] = None
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; all cores by default.")
    ] = None
    device: Device = "auto"
    set_: Set = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run in --out and start over.")
    ] = False
    shard: Annotated[
        bool, typer.Option("--shard", help="Shard the weights across processes (FSDP2).")
    ] = False
    tensorboard: Annotated[
        bool,
        typer.Option("--tensorboard", help="Also log to OUT/tensorboard."),
    ] = False
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Skip the checks before the first step.")
    ] = False
    as_json: Json = False

    def check(self) -> None:
        """Refuse contradictory flags, an unusable folder or device, and missing packages.

        All of this is known before the recipe is composed or any data is read.
        """
        if self.resume and self.overwrite:
            raise UserError(
                "--resume and --overwrite exclude each other: a run is either continued or started "
                "over. Give one of them."
            )
        check_output_folder(self.out, renamed=False)
        self._check_runs_there()
        check_device(self.device)
        if self.tensorboard:
            require_optional("--tensorboard")

    def _check_runs_there(self) -> None:
        """Refuse a folder with something else in it, or with a run that is not to be touched."""
        from unmask.system.written import RECIPE  # imports pydantic, which no help needs

        names = {path.name for path in self.out.iterdir()} if self.out.is_dir() else set()
        if RECIPE in names and not (self.resume or self.overwrite or _is_restarted()):
            raise FolderError(
                f"{self.out}: the folder already holds a run. Continue it (--resume), replace it "
                "(--overwrite), or give another --out."
            )
        # A run that was killed early has a lock only; several seeds or trials have folders.
        known = names & {RECIPE, LOCK} or any(SEVERAL.match(name) for name in names)
        if names and not known:
            raise FolderError(
                f"{self.out}: the folder is not empty and holds no run. Give another --out."
            )

    def changes(self, flags: Mapping[str, object]) -> list[str]:
        """Return the user's settings as NAME=VALUE; those of --set come last and win."""
        flags = {"optimizer.learning_rate": self.learning_rate, "seed": self.seed, **flags}
        settings = [f"{name}={value}" for name, value in flags.items() if value is not None]
        return settings + (self.set_ or [])

    def run_options(self) -> "RunOptions":
        """Return how the run is carried out. Imports torch."""
        from unmask.train.run import RunOptions

        return RunOptions(
            resume=self.resume,
            overwrite=self.overwrite,
            shard=self.shard,
            check=not self.no_preflight,
            tensorboard=self.tensorboard,
            threads=self.threads,
            device=self.device,
        )


def console_of_run() -> Console:
    """Return the terminal in the main process, and a silent console in others of torchrun."""
    return terminal if _is_main() else Console()


def answer_of_run(line: str) -> None:
    """Print the result of a run, in the main process of torchrun only."""
    if _is_main():
        answer(line)


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _is_restarted() -> bool:
    """Whether torchrun has restarted this process, and so repeats the original command."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def load_model(name: str, device: str = "auto") -> "Model":
    """Load a model onto a device; refuse a wrong name or device before torch is imported."""
    check_device(device)
    check_model(name)
    started = time.monotonic()
    model = load(name)
    from unmask.infer.loaded import move_model

    move_model(model, device)
    seconds = time.monotonic() - started
    detail(f"model: {model.path}, {describe(model)}, loaded in {seconds:.2f} s")
    return model


def describe(model: "Model") -> str:
    """Describe a loaded model in a few words."""
    from unmask.model.network import count_parameters

    count = count_parameters(model.network)
    return f"{count:,} parameters on {model.network.table().device}"


def print_json(table: Mapping[str, object]) -> None:
    """Print a result as one JSON object on one line."""
    answer(json.dumps(table, ensure_ascii=False))


def report_recipe(table: Mapping[str, object], prefix: str = "") -> None:
    """With --verbose, print every setting of a recipe."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            report_recipe(value, f"{prefix}{name}.")
        else:
            detail(f"setting: {prefix}{name} = {value}")
