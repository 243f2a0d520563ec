"""The verb `serve`: models -> HTTP server with a web page."""

import os
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.progress import notice

TOKEN = "UNMASK_TOKEN"  # noqa: S105  the name of the environment variable


def serve(
    models: Annotated[
        list[str], typer.Argument(help="Model folders or fetched models; NAME=FOLDER names one.")
    ],
    host: Annotated[str, typer.Option(help="Where to listen; loopback by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    token: Annotated[
        str | None, typer.Option(help=f"What clients must send; or the variable {TOKEN}.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond loopback without a token.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A host name that clients may use; any number.")
    ] = None,
    run: Annotated[
        list[Path] | None, typer.Option(help="A run folder whose curves the page shows.")
    ] = None,
    queue: Annotated[int, typer.Option(min=1, help="Texts that may wait.")] = 256,
    texts: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 32,
) -> None:
    """Serve models over HTTP, with a web page.

    `unmask serve minilm my-run/model` offers routes that are compatible with OpenAI and
    text-embeddings-inference, and others; /docs lists all of them.
    """
    from unmask.server.start import named_models, run_server

    run_server(
        named_models(models),
        host=host,
        port=port,
        token=token or os.environ.get(TOKEN),
        insecure=insecure,
        allow_hosts=allow_host or [],
        runs=run or [],
        queue=queue,
        texts=texts,
        say=notice,
    )
