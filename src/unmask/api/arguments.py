"""Arguments of the Python functions -> what jobs take: settings, columns, consoles, run options."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.system.console import LOGGER, Console
from unmask.system.errors import SettingsError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unmask.data.labelled.columns import Columns
    from unmask.data.read.lines import ErrorPolicy
    from unmask.infer.model import Model
    from unmask.train.run import RunOptions

SECONDS = 10.0  # between two lines about the progress of a stage


class LoggingConsole(Console):
    """A console whose messages and progress go to the logger "unmask"."""

    def __init__(self) -> None:
        self.stage, self.due = "", 0.0

    def progress(
        self,
        what: str,
        unit: str,
        done: int,
        total: int | None = None,
        *,
        note: str = "",
        seconds_left: float | None = None,
    ) -> None:
        """Log how far a stage has come: when it begins, and then every few seconds."""
        now = time.monotonic()
        if what == self.stage and now < self.due:
            return
        self.stage, self.due = what, now + SECONDS
        amount = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        LOGGER.info("%s: %s %s%s", what, amount, unit, f", {note}" if note else "")

    def finish(self) -> None:
        """End the current stage."""
        self.stage = ""


def changes_of(flags: Mapping[str, object], settings: Mapping[str, Any] | None) -> list[str]:
    """Return settings as NAME=VALUE; those in `settings` come last and win.

    >>> changes_of({"seed": 1, "schedule.epochs": None}, {"loop": {"batch_size": 8}})
    ['seed=1', 'loop.batch_size=8']
    """
    given = {name: value for name, value in flags.items() if value is not None}
    table = {**given, **_flat(settings or {})}
    return [f"{name}={_value(name, value)}" for name, value in table.items()]


def _flat(table: Mapping[str, Any], inside: str = "") -> dict[str, object]:
    """{"loop": {"batch_size": 8}} -> {"loop.batch_size": 8}"""
    flat: dict[str, object] = {}
    for name, value in table.items():
        if hasattr(value, "items"):
            flat |= _flat(value, f"{inside}{name}.")
        else:
            flat[f"{inside}{name}"] = value
    return flat


def _value(name: str, value: Any) -> str:
    """Write a value as TOML, which has JSON's strings, numbers and lists."""
    if isinstance(value, Path):
        value = str(value)
    if hasattr(value, "tolist"):  # a number or array of numpy
        value = value.tolist()
    try:
        if value is not None:
            return json.dumps(value)
    except TypeError:
        pass
    raise SettingsError(
        f"settings[{name!r}] is {value!r:.60}; need a number, a string, true or false, or a list. "
        "Leave it out to keep the default."
    )


def columns_of(
    text: str | None,
    second: str | None,
    label: str | None,
    columns: Mapping[str, str] | None,
    header: bool | None,
) -> Columns:
    """Return the columns of a table; a field that is named twice is refused."""
    from unmask.data.labelled.columns import Columns

    short = {"text": text, "second": second, "label": label}
    named = {name: column for name, column in short.items() if column is not None}
    for name, column in (columns or {}).items():
        if name in named:
            raise SettingsError(f"columns[{name!r}]: {name}={named[name]!r} is given, too.")
        named[name] = column
    return Columns.from_fields(named, header)


def policy_of(on_bad: str, console: Console) -> ErrorPolicy:
    """Return what happens to bad records: the first one stops the job, or they are skipped."""
    from unmask.data.read.lines import ErrorPolicy, StopOrSkip

    if on_bad not in (known := ("stop", "skip")):
        raise SettingsError(f"on_bad: {unknown_name('choice', on_bad, known)}")
    return StopOrSkip(True, console.say) if on_bad == "skip" else ErrorPolicy()


def run_options(
    resume: bool,
    overwrite: bool,
    shard: bool,
    tensorboard: bool,
    preflight: bool,
    threads: int | None,
) -> RunOptions:
    """Return how a run is carried out. Imports torch."""
    from unmask.train.run import RunOptions

    return RunOptions(
        resume=resume,
        overwrite=overwrite,
        shard=shard,
        check=preflight,
        tensorboard=tensorboard,
        threads=threads,
    )


def check_run(out: str | Path, *, resume: bool, overwrite: bool) -> Path:
    """Return the folder of a run; refuse one that cannot be written, before any work."""
    from unmask.system.disk import check_output_folder

    if resume and overwrite:
        raise SettingsError("resume and overwrite: a run is resumed or started over. Give one.")
    path = Path(out)
    check_output_folder(path, renamed=False)
    return path


def opened(model: str | Path | Model) -> Model:
    """Load a model by its folder or name; return a loaded one as it is."""
    if not isinstance(model, str | Path):
        return model
    from unmask.checkpoint.fetch import locate

    path = locate(model)  # before the slow import of torch: a wrong name fails at once
    from unmask.infer.model import Model

    return Model.load(path)


def paths_of(files: str | Path | Sequence[str | Path], name: str = "files") -> list[str]:
    """Return the paths of one file or of several."""
    listed = [files] if isinstance(files, str | Path) else list(files)
    for index, file in enumerate(listed):
        if not isinstance(file, str | Path):
            raise SettingsError(f"{name}[{index}] is {file!r:.60}; need the path of a file.")
    if not listed:
        raise SettingsError(f"{name} is empty; need at least one file.")
    return [str(file) for file in listed]
