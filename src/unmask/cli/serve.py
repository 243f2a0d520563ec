"""The verb `serve`: models -> HTTP server with a web page."""

import os
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.progress import notice
from unmask.system.errors import SettingsError

TOKEN = "UNMASK_TOKEN"  # noqa: S105  the name of the environment variable
LOOPBACK = ("127.0.0.1", "localhost", "::1")


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
    token = (token or os.environ.get(TOKEN) or "").strip() or None
    if token and not token.isascii():
        raise SettingsError("the token has letters that HTTP cannot carry. Use plain ones.")
    if host not in LOOPBACK and not token and not insecure:
        raise SettingsError(
            f"--host {host}: others could use it. Give a --token, or say --insecure."
        )
    folders = _named(models)
    from unmask.server.threads import load, wait_briefly

    wait_briefly()  # sets a variable that OpenMP reads once, when torch is imported
    from unmask.checkpoint.fetch import locate

    for folder in folders.values():
        locate(folder)
    runs = _watched(run or [])
    if texts > queue:
        raise SettingsError(f"--texts {texts}: more than may wait (--queue {queue}). Raise that.")
    try:
        from unmask.server.app import create_app
        from unmask.server.server import make_server
    except ImportError as error:
        raise SettingsError(
            f"needs {error.name}, which is not installed. Run: pip install 'unmask[serve]'"
        ) from None
    from unmask.server.guard import LOCAL_HOSTS
    from unmask.server.limits import Limits

    loaded = load(folders)
    limits = Limits(queue=queue, texts=texts)
    hosts = (*LOCAL_HOSTS, *(allow_host or []))
    app = create_app(loaded, limits=limits, token=token, hosts=hosts, runs=runs)
    notice(f"serving {', '.join(loaded)} at http://{host}:{port} (the page; /docs; Ctrl-C ends it)")
    make_server(app, host=host, port=port, limits=limits).run()


def _named(models: list[str]) -> dict[str, str]:
    """["a=path", "other"] -> {"a": "path", "other": "other"}"""
    found: dict[str, str] = {}
    for given in models:
        name, equals, path = given.partition("=")
        if not equals or Path(given).exists():  # a path may contain "=", too
            name, path = Path(given).name, given
        if name in found:
            raise SettingsError(f"two models named {name}. Name one of them: NAME={path}.")
        found[name] = path
    return found


def _watched(paths: list[Path]) -> dict[str, Path]:
    """Return run folders by name; refuse missing ones and equal names."""
    runs: dict[str, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise SettingsError(f"--run {path}: there is no such folder.")
        if path.resolve().name in runs:
            raise SettingsError(f"--run {path}: two runs of that name. Serve one of them.")
        runs[path.resolve().name] = path
    return runs
