"""The verb `serve`: models -> HTTP server with a web page."""

import os
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import completion, options
from unmask.cli.checks import check_model, require_optional
from unmask.cli.progress import detail, notice
from unmask.system.devices import check_device

TOKEN = "UNMASK_TOKEN"  # noqa: S105  the name of the environment variable


ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        help="Model folders or names; NAME=FOLDER sets the served name.",
        autocompletion=completion.models,
    ),
]
HostOption = Annotated[
    str, typer.Option(help="Address to listen on; by default, only this machine.")
]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
]
TokenOption = Annotated[
    str | None, typer.Option(help=f"Token that clients must send; also read from {TOKEN}.")
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Allow other machines without a token.")
]
AllowHostOption = Annotated[
    list[str] | None, typer.Option(help="A host name that clients may use; repeatable.")
]
RunOption = Annotated[
    list[Path] | None,
    typer.Option(help="A run folder whose curves the page shows; repeatable."),
]


def serve(
    models: ModelsArgument,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    token: TokenOption = None,
    insecure: InsecureOption = False,
    allow_host: AllowHostOption = None,
    run: RunOption = None,
    queue: Annotated[int, typer.Option(min=1, help="Texts that may wait in the queue.")] = 256,
    texts: Annotated[int, typer.Option(min=1, help="Texts per request, at most.")] = 32,
    device: options.Device = "auto",
) -> None:
    """Serve models over HTTP, with a web page.

    It offers routes that are compatible with OpenAI and text-embeddings-inference, and others;
    /docs lists all of them.

    Example: unmask serve minilm my-run/model --port 8000
    """
    from unmask.server.start import named_models, run_server

    folders = named_models(models)
    for folder in folders.values():
        check_model(folder)
    require_optional("unmask serve")
    check_device(device)
    run_server(
        folders,
        host=host,
        port=port,
        token=token or os.environ.get(TOKEN),
        insecure=insecure,
        allow_hosts=allow_host or [],
        runs=run or [],
        queue=queue,
        texts=texts,
        device=device,
        say=notice,
        detail=detail,
    )
