"""Models -> faster models, graphs for other runtimes, and a server: compile, export, serve."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.system.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unmask.api.results import CompiledModel, ExportedModel
    from unmask.infer.model import Model
    from unmask.system.plugins import Kind


def compile(
    model: str | Path | Model,
    out: str | Path,
    *,
    int8: bool = False,
    texts: Any = None,
    column: str | None = None,
    least: float | None = None,
) -> CompiledModel:
    """Compile a model for ONNX Runtime, in fp32 or int8, into a new folder.

    If the answers differ too much from those of the model, nothing is written. Needs
    `pip install 'unmask[onnx]'`.

    Args:
        model: A loaded model, a model folder, or the name of a downloaded model.
        out: The folder to write: new, or empty.
        int8: Use 8-bit matrix products.
        texts: Texts or records like those that the model will read, to calibrate and compare with:
            a file, or what `predict` takes. At most 2,000 are used. None uses Python's
            documentation.
        column: The column of a file that has the text.
        least: Refuse a lower agreement than this, instead of the usual limit.

    Example:
        result = unmask.compile("minilm", "minilm-fp32", texts="texts.txt")
        result.agreement
        unmask.load(result.folder)
    """
    from unmask.api.arguments import LoggingConsole, opened
    from unmask.system.disk import check_output_folder

    folder = Path(out)
    check_output_folder(folder, renamed=True)
    loaded = opened(model)
    from unmask.api.results import CompiledModel
    from unmask.infer.compiled.compile import MAX_TEXTS, compile_model, records_for

    if texts is None or isinstance(texts, str | Path):
        records = records_for(loaded, None if texts is None else str(texts), column)
    else:
        records = list(islice(_records(loaded, texts), MAX_TEXTS))
    compared = compile_model(
        loaded, folder, records, int8=int8, least=least, say=LoggingConsole().say
    )
    return CompiledModel(
        folder,
        agreement=compared.found,
        least=compared.bar if least is None else least,
        texts=compared.texts,
        summary=compared.text,
    )


def _records(model: Model, texts: object) -> Iterable[Any]:
    """Return the texts of an encoder, or the records of a fine-tuned model."""
    from unmask.api.records import records_of
    from unmask.data.read.objects import texts_of

    if model.network.shape.labels is None:
        return texts_of(texts)
    return records_of(model.task, texts, name="texts")


def export(model: str | Path | Model, out: str | Path) -> ExportedModel:
    """Export a model as an ONNX graph for other runtimes, into a new folder.

    The outputs of the graph are compared with those of the model. If they differ, nothing is
    written. Needs `pip install 'unmask[onnx]'`.

    Args:
        model: A loaded model, a model folder, or the name of a downloaded model.
        out: The folder to write: new, or empty.

    Example:
        result = unmask.export("minilm", "minilm-onnx")
        result.difference
    """
    from unmask.api.arguments import opened
    from unmask.system.disk import check_output_folder

    folder = Path(out)
    check_output_folder(folder, renamed=True)
    loaded = opened(model)
    from unmask.api.results import ExportedModel
    from unmask.infer.compiled.export import export_onnx

    return ExportedModel(folder, export_onnx(loaded.folder, folder))


def serve(
    models: str | Path | Iterable[str | Path] | Mapping[str, str | Path | Model],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    insecure: bool = False,
    allow_hosts: Iterable[str] = (),
    runs: Iterable[str | Path] = (),
    queue: int = 256,
    texts: int = 32,
) -> None:
    """Serve models over HTTP, with a web page, until the process is interrupted.

    Needs `pip install 'unmask[serve]'`.

    Args:
        models: A model folder or the name of a downloaded model, several of them, or a dictionary
            from names to folders or loaded models.
        host: The address to listen on. Beyond this machine, the server needs a token or
            `insecure`.
        port: The port; 0 chooses a free one.
        token: What clients must send as a bearer token.
        insecure: Listen beyond this machine without a token.
        allow_hosts: Further host names that clients may use.
        runs: Run folders whose curves the page shows.
        queue: The maximum number of texts that may wait.
        texts: The maximum number of texts per request.

    Example:
        unmask.serve({"encoder": "minilm"}, port=8001)
    """
    from unmask.api.arguments import LoggingConsole
    from unmask.server.start import named_models, run_server

    if isinstance(models, Mapping):
        named: Mapping[str, str | Path | Model] = models
    else:
        named = named_models([models] if isinstance(models, str | Path) else models)
    if not named:
        raise SettingsError("models is empty; need at least one model.")
    run_server(
        named,
        host=host,
        port=port,
        token=token,
        insecure=insecure,
        allow_hosts=allow_hosts,
        runs=runs,
        queue=queue,
        texts=texts,
        say=LoggingConsole().say,
    )


def register(kind: Kind, name: str, thing: Any) -> None:
    """Register an objective, task, metric or callback of your own under a name.

    Call it before the functions that use the name, or in a Python file that the command line loads
    with `--plugin FILE.py`. docs/extend.md has an example of each kind.

    Args:
        kind: "objective", "task", "metric" or "callback".
        name: The name in recipes and results. A name that exists is refused.
        thing: A class for objectives and tasks, a function for metrics and callbacks.

    Example:
        def exact(records, answers):
            return sum(r.label[0] == a.label for r, a in zip(records, answers)) / len(records)


        unmask.register("metric", "exact", exact)
    """
    from unmask.system.plugins import register

    register(kind, name, thing)
