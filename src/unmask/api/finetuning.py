"""A model and labelled data -> a model for a task: finetune."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.api.answers import load
from unmask.api.arguments import (
    LoggingConsole,
    changes_of,
    check_run,
    columns_of,
    policy_of,
    run_options,
)
from unmask.system.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unmask.data.labelled.columns import Columns
    from unmask.infer.model import Model
    from unmask.tasks.asks import Ask
    from unmask.train.run import RunOptions

MODEL = "model"  # the folder of a run that has its published model


def finetune(
    task: str | Path,
    model: str | Path | None,
    *,
    train: Any,
    dev: Any = None,
    out: str | Path,
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    header: bool | None = None,
    on_bad: str = "stop",
    epochs: float | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    seeds: int = 1,
    trials: int = 0,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    shard: bool = False,
    tensorboard: bool = False,
    preflight: bool = True,
    threads: int | None = None,
) -> Model:
    """Fine-tune a model for a task and load the best result, which is in `out/model`.

    Args:
        task: "classify", "regress", "qa", "ner", "translate", a task of a plugin, or a TOML recipe.
        model: A model folder, or the name of a downloaded model. With None, a task with a decoder
            starts from scratch.
        train: Training data: a file, a list of files, or rows. Rows are dictionaries, (text,
            label) pairs, (text, second, label) tuples, a DataFrame, a `datasets.Dataset` or a
            pyarrow Table. A generator is read once.
        dev: Held-out data to score on, like `train`. With None, a tenth of `train` is held out.
        out: The run's folder.
        text: The column of the text. Common names are recognised.
        second: The column of the second text of a pair, or of the translation.
        label: The column of the label.
        columns: The columns of other fields of the task, by field.
        header: Whether the first row of a CSV or TSV file names the columns. None detects it.
        on_bad: "stop" at a bad record, or "skip" it.
        epochs: Passes over the training data.
        batch_size: Examples per step.
        max_length: The longest window, in tokens.
        learning_rate: The peak learning rate.
        seed: The random seed.
        seeds: Number of runs, each with a seed of its own; the best model is kept.
        trials: Number of hyper-parameter trials (`pip install 'unmask[search]'`); 0 for none.
        settings: Any other settings by name, such as {"schedule.warmup": 0.2}; they win over the
            arguments above.
        resume: Continue the run in `out`.
        overwrite: Delete the run in `out` and start over.
        shard: Shard the weights across the processes of torchrun (FSDP2).
        tensorboard: Also log to `out/tensorboard` (`pip install 'unmask[tensorboard]'`).
        preflight: Check the set-up before the first step.
        threads: CPU threads; None uses all cores.

    Example:
        rows = [("the cat sat", "cat"), ("the dog sat", "dog")] * 8
        model = unmask.finetune("classify", "minilm", train=rows, dev=rows, out="my-run", epochs=1)
        model.classify("the cat sat").label
        model.scores
    """
    folder = check_run(out, resume=resume, overwrite=overwrite)
    flags = {
        "schedule.epochs": epochs,
        "loop.batch_size": batch_size,
        "tokenizer.max_length": max_length,
        "optimizer.learning_rate": learning_rate,
        "seed": seed,
    }
    changes, chosen = changes_of(flags, settings), columns_of(text, second, label, columns, header)
    policy_of(on_bad, LoggingConsole())  # a wrong choice is refused before torch is imported
    options = run_options(resume, overwrite, shard, tensorboard, preflight, threads)
    job = FinetuneCall(str(task), _checked(model), folder, chosen, on_bad, changes, options)
    job.run(train, dev, seeds, trials)
    return load(folder / MODEL)


def _checked(model: object) -> str | Path | None:
    """Return the folder or name of the model to start from; refuse a loaded model."""
    if model is None or isinstance(model, str | Path):
        return model
    raise SettingsError(
        f"model is a {type(model).__name__}; need a folder or a name. Give its path, or save it "
        "first."
    )


@dataclass(frozen=True)
class FinetuneCall:
    """The arguments of `finetune`, as its job takes them."""

    task: str
    model: str | Path | None
    out: Path
    columns: Columns
    on_bad: str
    changes: list[str]
    options: RunOptions

    def run(self, train: object, dev: object, seeds: int, trials: int) -> None:
        """Fine-tune on files or rows; rows are read from temporary files during the run."""
        from unmask.api.records import as_files
        from unmask.jobs.inputs.labelled import LabelledFiles
        from unmask.jobs.start import finetune_files

        console, ask = LoggingConsole(), _ask_of(self.task)
        with ExitStack() as files:
            paths: dict[str, Any] = {
                name: None if data is None else files.enter_context(as_files(data, ask, name)).paths
                for name, data in (("train", train), ("dev", dev))
            }
            watcher = policy_of(self.on_bad, console)
            finetune_files(
                self.task,
                self.model,
                LabelledFiles(**paths, columns=self.columns, watcher=watcher),
                self.out,
                self.changes,
                console,
                self.options,
                seeds=seeds,
                trials=trials,
            )


def _ask_of(task: str) -> type[Ask]:
    """Return the question of a task, given its name or a recipe."""
    from unmask.system.plugins import find_class
    from unmask.system.settings import read_toml
    from unmask.tasks import TASKS
    from unmask.tasks.base import Task

    name = task
    if task.endswith(".toml"):
        name = str(read_toml(Path(task)).get("task", {}).get("name"))
    kind: type[Task[Any, Any]] = find_class("task", TASKS, name)
    return kind.Ask
