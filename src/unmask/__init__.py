"""BERT from raw text to a trained, inspected and served model.

    text -> tokens -> examples -> batches -> hidden states -> loss -> checkpoint -> answers

>>> import unmask
>>> model = unmask.load("minilm")  # doctest: +SKIP
>>> model.embed(["a text", "another"])  # doctest: +SKIP

The subpackages follow this pipeline; docs/architecture.md describes each of them. torch is imported
inside functions only, so that `import unmask` and the command line start fast.
"""

from typing import TYPE_CHECKING, Any

from unmask.version import VERSION as __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from unmask.infer.model import Model
    from unmask.jobs.inputs.labelled import Rows
    from unmask.system.plugins import Kind

__all__ = ["__version__", "finetune", "load", "register"]


def register(kind: "Kind", name: str, thing: "Any") -> None:
    """Register an objective, task, metric or callback of your own under a name.

    Call this in a Python file that is loaded with `--plugin FILE.py`; docs/extend.md has an example
    of each kind.
    """
    from unmask.system.plugins import register

    register(kind, name, thing)


def load(model: "str | Path") -> "Model":
    """Load a model from a folder, or by the name of a model that `unmask get` has fetched."""
    from unmask.checkpoint.fetch import locate

    path = locate(model)  # before the slow import of torch: a wrong name fails at once
    from unmask.infer.model import Model

    return Model.load(path)


def finetune(
    task: str,
    model: "str | Path",
    *,
    train: "Rows",
    dev: "Rows | None" = None,
    out: "str | Path",
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
    settings: "Mapping[str, Any] | None" = None,
    seeds: int = 1,
    resume: bool = False,
    overwrite: bool = False,
) -> "Model":
    """Fine-tune a model for a task ("classify", "regress", "qa", "ner") and load the result.

    `train` and `dev` are files, or lists of dictionaries with one record each. Without `dev`, a
    tenth of `train` is held out. `text`, `second` and `label` name their columns. `settings`
    override those of the recipe, for example
    `{"schedule.epochs": 2, "optimizer.learning_rate": 1e-4}`.
    """
    import json
    from pathlib import Path

    from unmask.data.labelled.columns import Columns
    from unmask.jobs.inputs.labelled import LabelledFiles
    from unmask.jobs.start import finetune_files
    from unmask.train.run import RunOptions

    finetune_files(
        task,
        model,
        LabelledFiles(train, dev, Columns(text, second, label)),
        Path(out),
        changes=[f"{name}={json.dumps(value)}" for name, value in (settings or {}).items()],
        seeds=seeds,
        options=RunOptions(resume=resume, overwrite=overwrite),
    )
    return load(Path(out) / "model")
