"""The output folder of a run: recipe, metrics, log, checkpoints, model, and the lock on it.

    runs/x/ recipe.toml  facts.json  metrics.jsonl  log.txt  curves.svg  report.html
            checkpoints/step-N/  model/

One process at a time holds the lock. On resuming, the metrics are cut back to the step of the
checkpoint, so that no step is recorded twice. The run lists every file that it writes
(`system/written.py`), because `--overwrite` deletes those and nothing else.
"""

import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

import torch

from unmask.system import written
from unmask.system.console import Console
from unmask.system.disk import (
    check_output_folder,
    disk_error,
    file_lock,
    remove_leftovers,
    write_file,
)
from unmask.system.errors import FolderError, UserError
from unmask.system.settings import read_json, read_toml, write_toml
from unmask.system.written import RECIPE
from unmask.train.compose import Scope, compose, difference
from unmask.train.evaluator import with_present_keys
from unmask.train.recipe import Recipe
from unmask.version import VERSION

FACTS, METRICS, LOG = "facts.json", "metrics.jsonl", "log.txt"
CHECKPOINTS, MODEL, MODELS = "checkpoints", "model", "models"
LOCK = ".lock"
# Facts that decide what a run learns: a resume with other values is refused. "corpus" is the digest
# of any data, labelled too; the fact "data" is its kind, for the error.
BINDING = ("corpus", "tokenizer")
# Facts that decide the last bits: a resume with other values is warned about.
EXACT = ["unmask", "torch", "threads", "processor", "processes", "shard", "device"]
EXACT += ["precision", "micro_batches"]


Listener = Callable[[dict[str, Any]], None]


@dataclass
class RunFolder:
    """The folder that a run writes to; only the first process writes, the others do nothing."""

    path: Path
    console: Console
    writes: bool = True
    listeners: list[Listener] = field(default_factory=list)  # called with every metrics entry
    recipe: dict[str, Any] = field(default_factory=dict)  # as it is stored beside results
    claimed: set[str] = field(default_factory=set)  # names that are known to be listed
    replaces: bool = False  # an old run stays until this one is ready to start
    deferred: list[tuple[str, str]] = field(default_factory=list)  # (file, text) to append then

    def claim(self, name: str) -> None:
        """List a file or folder as written by the run; call it before the first write.

        `--overwrite` deletes only what is listed. Names are relative, as in "best/step-40".
        """
        if self.writes and name not in self.claimed:
            written.add_to_list(self.path, name)
            self.claimed.add(name)

    def start_over(self) -> None:
        """Delete the run that this one replaces, if any; call it on every process."""
        if self.replaces and self.writes:
            delete_run(self.path)
            self.checkpoints.mkdir(exist_ok=True)
        self.replaces = False  # on all processes: metrics() must not hide the new run's lines
        for name, text in self.deferred:
            self._append(name, text)
        self.deferred.clear()

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / CHECKPOINTS

    def say(self, line: str) -> None:
        """Print a line and add it to the log."""
        if self.writes:
            self.console.say(line)
            self._append(LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    def record(self, entry: dict[str, Any]) -> None:
        """Add an entry to the metrics and pass it to the listeners."""
        if self.writes:
            self._append(METRICS, json.dumps(entry, ensure_ascii=False) + "\n")
            for listener in self.listeners:
                listener(entry)

    def put(self, name: str, text: str) -> None:
        """Write a file atomically."""
        if self.writes:
            self.claim(name)
            write_file(self.path / name, text.encode("utf-8"))

    def metrics(self) -> list[dict[str, Any]]:
        """Read the metrics so far; empty while the folder still holds a run to replace."""
        return [] if self.replaces else read_metrics(self.path)

    def log(self) -> list[str]:
        """Read the lines of the log."""
        path = self.path / LOG
        return path.read_text("utf-8", errors="replace").split("\n") if path.exists() else []

    def cut_back(self, step: int) -> None:
        """Drop the metrics of steps after `step`, which will be taken again."""
        if self.writes:
            kept = [entry for entry in self.metrics() if entry["step"] <= step]
            self.put(
                METRICS, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in kept)
            )

    def _append(self, name: str, text: str) -> None:
        # Until the new run can start, the old one stays as it is, its log included.
        if self.replaces:
            self.deferred.append((name, text))
            return
        self.claim(name)
        try:
            with (self.path / name).open("a", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError as error:
            raise disk_error(self.path / name, error, needed=len(text)) from error


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read the metrics of a run, skipping lines that a killed process left unfinished."""
    path = run / METRICS
    entries: list[dict[str, Any]] = []
    for line in path.read_text("utf-8", errors="replace").split("\n") if path.exists() else []:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append(with_present_keys(entry))
    return entries


def of_kind(metrics: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Select the entries of training steps ("train") or of evaluations ("eval")."""
    return [entry for entry in metrics if entry["kind"] == kind]


@contextmanager
def open_run(
    path: Path, *, resume: bool, overwrite: bool, writes: bool, console: Console
) -> Iterator[RunFolder]:
    """Lock the folder of a run while the block runs; refuse an existing run unless told what to do.

    A run that fails before it has started leaves nothing of its own behind.
    """
    has_run = (path / RECIPE).exists()
    folder = RunFolder(path, console, writes, replaces=has_run and overwrite and not resume)
    if not writes:
        yield folder
        return
    check_output_folder(path, renamed=False)
    has_lock = (path / LOCK).exists()  # a run that was killed before it wrote its recipe
    if path.is_dir() and any(path.iterdir()) and not has_run and not has_lock:
        raise FolderError(f"{path}: the folder is not empty and holds no run. Give another --out.")
    if has_run and not resume and not overwrite:
        raise FolderError(
            f"{path}: the folder already holds a run. Continue it (--resume), replace it "
            "(--overwrite), or give another --out."
        )
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    with file_lock(path / LOCK, what="this run"):
        if folder.replaces:
            refuse_foreign_files(path)  # the old run is deleted later, in start_over
        elif has_run or has_lock:
            # Runs of version 0.1 kept no list, and `claim` never adds what exists already.
            written.write_list(path, names_in(path))
        (path / CHECKPOINTS).mkdir(exist_ok=True)
        # Temporary files of a killed writer. The lock is held, so no live writer owns them.
        for name in (written.LIST, *names_in(path)):
            if "/" not in name:
                remove_leftovers(path, f".{escape(name)}.tmp-*")
        try:
            yield folder
        except BaseException:
            if is_new and not (path / RECIPE).exists():
                with suppress(OSError, FolderError):  # keep the folder if it holds foreign files
                    delete_run(path)
                    (path / LOCK).unlink()
                    path.rmdir()
            raise


def delete_run(path: Path) -> None:
    """Delete what a run wrote into its folder, but delete nothing if anything else is there.

    The lock file stays, because the caller holds it.
    """
    contents = refuse_foreign_files(path)
    contents.own = [member for member in contents.own if member != path / LOCK]
    written.delete(contents)


def refuse_foreign_files(path: Path) -> written.FolderContents:
    """Raise an error if the folder holds anything that the run did not write."""
    names = [*names_in(path), LOCK, written.LIST]
    contents = written.survey(path, names, holders=[CHECKPOINTS])
    written.refuse_foreign(path, contents.foreign)
    return contents


def names_in(path: Path) -> list[str]:
    """Return the names that the run listed; without a list, those that version 0.1 wrote."""
    listed = written.read_list(path)
    if listed is not None:
        return listed
    names = [RECIPE, FACTS, METRICS, LOG, "curves.svg", "report.html", MODEL, written.TENSORBOARD]
    if path.name.startswith("trial-"):
        names.append("result.json")  # written by a hyper-parameter search
    for parent in (CHECKPOINTS, "best"):
        for entry in (path / parent).glob("*"):
            if step := re.search(r"step-\d+", entry.name):  # unfinished and damaged ones too
                names.append(f"{parent}/{step[0]}")
    with suppress(UserError):  # an unreadable recipe names no tasks
        tasks = read_toml(path / RECIPE).get("tasks", [])
        names += [
            f"models/{task['name']}" for task in tasks if isinstance(task, dict) and "name" in task
        ]
    return list(dict.fromkeys(names))


def begin(
    folder: RunFolder, scope: Scope, recipe: Recipe, facts: dict[str, Any], stored: Recipe | None
) -> None:
    """Store the recipe and facts of a new run; compare those of a resumed one.

    `stored` is the recipe of the run to resume, with everything that it left open filled in.
    """
    folder.recipe = scope.table(recipe)
    if not folder.writes:
        return
    if stored is None:
        folder.put(FACTS, json.dumps(facts, indent=1) + "\n")
        # The recipe goes last: a folder without one does not count as a run.
        folder.put(RECIPE, write_toml(folder.recipe))
        return
    stored_facts = read_json(folder.path / FACTS)
    for name in BINDING:
        if stored_facts.get(name) != facts[name]:
            data_name = facts["data"] if name == "corpus" else name
            raise FolderError(
                f"{folder.path}: the run was started with another {data_name} (sha256 was "
                f"{stored_facts.get(name)!s:.12}..., is now {facts[name]!s:.12}...). Resume it "
                f"with the original {data_name}, or start a new run with another --out."
            )
    changed = difference(scope.table(stored), folder.recipe)
    if changed:
        raise FolderError(
            f"{folder.path}: the run was started with other settings: {changed}. Resume with the "
            "same settings, or start a new run with another --out."
        )
    _compare_plugins(folder, stored_facts.get("plugins", {}), facts["plugins"])
    for name in EXACT:
        if name in stored_facts and stored_facts[name] != facts[name]:
            folder.say(
                f"warning: not bit-identical to an uninterrupted run, because {name} was "
                f"{stored_facts[name]!r} and is {facts[name]!r}"
            )


def _compare_plugins(folder: RunFolder, stored: dict[str, str], loaded: dict[str, str]) -> None:
    """Refuse to resume without a plugin of the run; warn about one whose code has changed."""
    for name, digest in stored.items():
        if name not in loaded:
            raise FolderError(
                f"{folder.path}: the run was started with the plugin {name}, which is not loaded. "
                f"Add --plugin {name}."
            )
        if loaded[name] != digest:
            folder.say(f"warning: the plugin {name} has changed since the run was started")


def stored_recipe(path: Path, scope: Scope, console: Console | None = None) -> Recipe | None:
    """Read the recipe of the run in a folder; None if the folder holds no run."""
    if not (path / RECIPE).is_file():
        return None
    return compose(scope, read_toml(path / RECIPE), stored=True, console=console)


def environment() -> dict[str, object]:
    """Return what the results of a run depend on besides its recipe and data."""
    return {
        "unmask": VERSION,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "begun": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }


def processor() -> str:
    """Return the name of the CPU: kernels differ between CPUs, and with them the order of sums."""
    with suppress(OSError):
        cpuinfo = Path("/proc/cpuinfo").read_text("utf-8")
        if name := re.search(r"^model name\s*:(.*)", cpuinfo, re.MULTILINE):
            return name[1].strip()
    return platform.processor() or platform.machine()
