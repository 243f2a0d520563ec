"""Verbs for model folders: get, info, convert, export, compile."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask import load
from unmask.cli import options
from unmask.cli.progress import answer, notice
from unmask.system.disk import check_output_folder
from unmask.system.errors import UserError

if TYPE_CHECKING:
    from unmask.checkpoint.folder import Folder


def get(
    name: Annotated[
        str, typer.Argument(help="minilm, or hf:NAME for a model of the Hugging Face hub.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="A folder to write instead of the cache.")
    ] = None,
) -> None:
    """Download a model, verify it and keep it.

    The model is cached: other commands then accept its name. Models of the Hugging Face hub need
    pip install 'unmask[hub]'.

    Example: unmask get minilm
    """
    from unmask.checkpoint.fetch import get as fetch

    fetch(name, out, say=notice)


def convert(
    source: Annotated[Path, typer.Argument(help="A BERT folder, also with old pickled weights.")],
    out: options.NewFolder,
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
    print(f"written to {out}")


def export(model: options.ModelName, out: options.NewFolder) -> None:
    """Export a model to ONNX for other runtimes.

    The outputs of the graph are compared with those of the model. If they differ, nothing is
    written. Needs pip install 'unmask[onnx]'.

    Example: unmask export minilm --out minilm-onnx
    """
    from unmask.checkpoint.fetch import locate

    check_output_folder(out, renamed=True)
    path = locate(model)  # both before torch is imported
    from unmask.checkpoint.folder import load_folder
    from unmask.infer.compiled.export import export_onnx

    notice("writing the graph and comparing its outputs")
    difference = export_onnx(load_folder(path), out)
    print(f"written to {out}; its outputs differ from the model's by at most {difference:.0e}")


def compile_model(
    model: options.ModelName,
    out: options.NewFolder,
    int8: Annotated[bool, typer.Option("--int8", help="Use 8-bit matrix products.")] = False,
    texts: Annotated[
        str | None,
        typer.Option(help="Typical texts, to calibrate and compare with; 2,000 are used."),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option("--column", "--text", help="The column of a table that holds the text."),
    ] = None,
    least: Annotated[float | None, typer.Option(help="The least agreement to accept.")] = None,
) -> None:
    """Compile a model for ONNX Runtime, in fp32 or int8.

    The new folder works with every command. If its answers differ too much from those of the model,
    nothing is written. Needs pip install 'unmask[onnx]'.

    Example: unmask compile minilm --int8 --out minilm-int8
    """
    check_output_folder(out, renamed=True)
    loaded = load(model)
    from unmask.infer.compiled.compile import compile_model as run
    from unmask.infer.compiled.compile import records_for

    records = records_for(loaded, texts, column)
    compared = run(loaded, out, records, int8=int8, least=least, say=notice)
    print(f"{compared.text}\nwritten to {out}")


def info(
    model: Annotated[
        str | None, typer.Argument(help="A model; without it, this installation is described.")
    ] = None,
) -> None:
    """Describe a model, or this installation.

    Shows the architecture, settings, labels, integrity and origin of a model and, for a fine-tuned
    model, the fields that `unmask predict` accepts.

    Example: unmask info minilm
    """
    table = _installation() if model is None else _model(model)
    width = max(map(len, table))
    for key, value in table.items():
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


def _model(model: str) -> dict[str, str]:
    from unmask.checkpoint.fetch import locate
    from unmask.checkpoint.integrity import require_model_folder

    path = locate(model)
    require_model_folder(path)  # before torch is imported
    from unmask.checkpoint import names
    from unmask.checkpoint.folder import load_folder
    from unmask.model.config import READ_BY_SCHEME
    from unmask.model.network import count_parameters

    folder = load_folder(path)
    config, shape = folder.network.config, folder.network.shape
    differences = names.differences_from_bert(shape)
    unread = {name for name, by in READ_BY_SCHEME.items() if config.positions not in by}
    settings = config.model_dump(exclude=unread, exclude_none=True)
    table = {
        "folder": str(folder.path),
        "kind": names.architecture(shape),
        "parameters": f"{count_parameters(folder.network):,}",
        # The other settings have no effect on this model.
        **{key: str(value) for key, value in settings.items()},
        "on top": ", ".join(shape.heads) or "nothing",
    }
    if shape.labels:
        table["labels"] = f"{shape.labels.on}: {', '.join(shape.labels.names)}"
    table |= _questions(folder)
    if folder.tokenizer:
        casing = folder.tokenizer.casing
        case = "lower-cased" if casing.lowercase else "cased"
        table["vocabulary"] = f"{len(folder.tokenizer.vocabulary):,} tokens, {case}"
    else:
        table["vocabulary"] = "none in the folder: the model cannot read text"
    table["transformers"] = (
        f"cannot load it: {', '.join(differences)}" if differences else "loads it"
    )
    if folder.manifest is None:
        table["integrity"] = "unknown: there is no unmask.json with digests of the files"
    else:
        count = len(folder.manifest["files"])
        table["integrity"] = f"{count} files, unchanged since they were written (sha256)"
        facts = folder.manifest.get("provenance") or {"": "not recorded"}
        table["provenance"] = "; ".join(
            f"{key}: {value}".lstrip(": ") for key, value in facts.items()
        )
    return table


def _questions(folder: "Folder") -> dict[str, str]:
    """Describe the task of a fine-tuned model: its name, input fields and an example."""
    from unmask.tasks.restore import task_of

    shape = folder.network.shape
    if shape.labels is None and shape.decoder is None:
        return {}
    try:
        task = task_of(shape, (folder.manifest or {}).get("task"), str(folder.path))
    except UserError as error:
        return {"task": str(error)}
    fields = {f"field {name}": description for name, description in task.Ask.described().items()}
    example = json.dumps(task.Ask.example(), ensure_ascii=False)
    return {"task": task.name, **fields, "example": example}
