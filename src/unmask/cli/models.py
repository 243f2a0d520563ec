"""Verbs for model folders: get, info, convert, export, compile."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import completion, options
from unmask.cli.checks import check_inputs, check_model, require_optional
from unmask.cli.progress import answer, notice, terminal
from unmask.system.disk import check_output_folder
from unmask.system.errors import UserError

if TYPE_CHECKING:
    from unmask.checkpoint.folder import Folder


def get(
    name: Annotated[
        str,
        typer.Argument(
            help="minilm, or hf:NAME for a model of the Hugging Face hub.",
            autocompletion=completion.models,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="A folder to write instead of the cache.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Download a model, verify it and cache it.

    Other commands then accept its name. Models of the Hugging Face hub need pip install
    'unmask[hub]'.

    Example: unmask get minilm
    """
    from unmask.checkpoint.fetch import get as fetch

    if out is not None:
        check_output_folder(out, renamed=True)
    if name.startswith("hf:"):
        require_optional("unmask get hf:NAME")
        if terminal.quiet:  # the hub's client has progress bars of its own
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    folder = fetch(name, out, say=notice)
    if as_json:
        options.print_json({"name": name, "folder": str(folder)})


def convert(
    source: Annotated[Path, typer.Argument(help="A BERT folder; its weights may be pickled.")],
    out: options.NewFolder,
    as_json: options.Json = False,
) -> None:
    """Convert an old BERT folder to safetensors.

    The new folder has safetensors in place of pickled weights, current tensor names and a manifest
    with digests.

    Example: unmask convert old-bert --out new-bert
    """
    from unmask.checkpoint.integrity import require_model_folder

    check_output_folder(out, renamed=True)
    require_model_folder(source)  # both before torch is imported
    from unmask.checkpoint.convert import convert as run

    run(source, out)
    if as_json:
        options.print_json({"folder": str(out)})
    else:
        print(f"written to {out}")


def export(model: options.ModelName, out: options.NewFolder, as_json: options.Json = False) -> None:
    """Export a model to ONNX for other runtimes.

    The outputs of the graph are compared with those of the model. If they differ, nothing is
    written. Needs pip install 'unmask[onnx]'.

    Example: unmask export minilm --out minilm-onnx
    """
    from unmask.checkpoint.fetch import locate

    # All of this before torch is imported.
    check_output_folder(out, renamed=True)
    check_model(model)
    require_optional("unmask export")
    from unmask.checkpoint.folder import load_folder
    from unmask.infer.compiled.export import export_onnx

    notice("writing the graph and comparing its outputs")
    difference = export_onnx(load_folder(locate(model)), out)
    if as_json:
        options.print_json({"folder": str(out), "difference": float(difference)})
        return
    print(f"written to {out}; its outputs differ from the model's by at most {difference:.0e}")


def compile_model(
    model: options.ModelName,
    out: options.NewFolder,
    int8: Annotated[bool, typer.Option("--int8", help="Use 8-bit matrix products.")] = False,
    texts: Annotated[
        str | None,
        typer.Option(help="Typical texts, to calibrate and compare with; at most 2,000."),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option("--column", "--text", help="The column of a table that holds the text."),
    ] = None,
    least: Annotated[float | None, typer.Option(help="The least agreement to accept.")] = None,
    as_json: options.Json = False,
) -> None:
    """Compile a model for ONNX Runtime, in fp32 or int8.

    The new folder works with every command. If its answers differ too much from those of the model,
    nothing is written. Needs pip install 'unmask[onnx]'.

    Example: unmask compile minilm --int8 --out minilm-int8
    """
    check_output_folder(out, renamed=True)
    check_model(model)
    if texts is not None:
        check_inputs([texts])
    require_optional("unmask compile")
    loaded = options.load_model(model, "cpu")  # ONNX Runtime computes on the CPU here
    from unmask.infer.compiled.compile import compile_model as run
    from unmask.infer.compiled.compile import records_for

    records = records_for(loaded, texts, column)
    compared = run(loaded, out, records, int8=int8, least=least, say=notice)
    if as_json:
        table = {"agreement": compared.found, "least": compared.bar, "texts": compared.texts}
        options.print_json({"folder": str(out), **table})
    else:
        print(f"{compared.text}\nwritten to {out}")


def info(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model; without it, this installation is described.",
            autocompletion=completion.models,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Describe a model, or this installation.

    It shows the architecture, settings, labels, integrity and origin of a model and, for a
    fine-tuned model, the fields that `unmask predict` accepts.

    Example: unmask info minilm
    """
    if model is None:
        facts: dict[str, Any] = dict(_installation())
        lines = _installation()
    else:
        facts = _facts(model)
        lines = _lines(facts)
    if as_json:
        options.print_json(facts)
        return
    width = max(map(len, lines))
    for key, value in lines.items():
        answer(f"{key:<{width}}  {value}")


def _installation() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    table = {"python": platform.python_version(), "system": platform.platform()}
    for package in ("unmask", "torch", "tokenizers", "safetensors", "numpy", "huggingface_hub"):
        try:
            table[package] = version(package)
        except PackageNotFoundError:
            table[package] = "not installed"
    return table


def _facts(model: str) -> dict[str, Any]:
    """Collect what is known about a model; these are the keys of --json."""
    check_model(model)  # before torch is imported
    from unmask.checkpoint import names
    from unmask.checkpoint.fetch import locate
    from unmask.checkpoint.folder import load_folder
    from unmask.model.config import READ_BY_SCHEME
    from unmask.model.network import count_parameters

    folder = load_folder(locate(model))
    config, shape = folder.network.config, folder.network.shape
    # Settings that have no effect on this model are skipped.
    unread = {name for name, schemes in READ_BY_SCHEME.items() if config.positions not in schemes}
    settings = config.model_dump(mode="json", exclude=unread, exclude_none=True)
    labels = shape.labels and {"head": shape.labels.on, "names": list(shape.labels.names)}
    tokenizer, manifest = folder.tokenizer, folder.manifest
    vocabulary = tokenizer and {
        "tokens": len(tokenizer.vocabulary),
        "lowercase": tokenizer.casing.lowercase,
    }
    return {
        "folder": str(folder.path),
        "architecture": names.architecture(shape),
        "parameters": count_parameters(folder.network),
        "config": settings,
        "heads": list(shape.heads),
        "labels": labels,
        "task": _task(folder),
        "vocabulary": vocabulary,
        "differences": names.differences_from_bert(shape),  # none: transformers loads it
        "verified_files": None if manifest is None else len(manifest["files"]),
        "provenance": None if manifest is None else manifest.get("provenance"),
    }


def _task(folder: "Folder") -> dict[str, Any] | None:
    """Describe the task of a fine-tuned model: its name, input fields and an example."""
    from unmask.tasks.restore import task_of

    shape = folder.network.shape
    if shape.labels is None and shape.decoder is None:
        return None
    try:
        task = task_of(shape, (folder.manifest or {}).get("task"), str(folder.path))
    except UserError as error:
        return {"error": str(error)}
    return {"name": task.name, "fields": task.Ask.described(), "example": task.Ask.example()}


def _lines(facts: dict[str, Any]) -> dict[str, str]:
    """Lay the facts out for people: a name and a text for each line."""
    table = {
        "folder": facts["folder"],
        "kind": facts["architecture"],
        "parameters": f"{facts['parameters']:,}",
        **{key: str(value) for key, value in facts["config"].items()},
        "output heads": ", ".join(facts["heads"]) or "none",
    }
    if labels := facts["labels"]:
        table["labels"] = f"{labels['head']}: {', '.join(labels['names'])}"
    if task := facts["task"]:
        table["task"] = task.get("error") or task["name"]
        for name, description in task.get("fields", {}).items():
            table[f"field {name}"] = description
        if "example" in task:
            table["example"] = json.dumps(task["example"], ensure_ascii=False)
    vocabulary = facts["vocabulary"]
    if vocabulary is None:
        table["vocabulary"] = "none in the folder: the model cannot read text"
    else:
        case = "lower-cased" if vocabulary["lowercase"] else "cased"
        table["vocabulary"] = f"{vocabulary['tokens']:,} tokens, {case}"
    different = ", ".join(facts["differences"])
    table["transformers"] = f"cannot load it: {different}" if different else "loads it"
    if facts["verified_files"] is None:
        table["integrity"] = "unknown: there is no unmask.json with digests of the files"
    else:
        count = facts["verified_files"]
        table["integrity"] = f"{count} files, unchanged since they were written (sha256)"
        provenance = facts["provenance"] or {"": "not recorded"}
        table["provenance"] = "; ".join(
            f"{key}: {value}".lstrip(": ") for key, value in provenance.items()
        )
    return table
