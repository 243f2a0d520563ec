"""The verb `serve`: models -> HTTP server with a web page."""

import os
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import completion, options
from unmask.cli.checks import check_model, require_optional
from unmask.cli.progress import detail, notice
from unmask.system.devices import check_device
from unmask.system.errors import SettingsError

TOKEN = "UNMASK_TOKEN"  # noqa: S105  the name of the environment variable
LOOPBACK = ("127.0.0.1", "localhost", "::1")


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
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any free one.")
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
    token = (token or os.environ.get(TOKEN) or "").strip() or None
    if token and not token.isascii():
        raise SettingsError(
            "--token: it has characters that HTTP headers cannot carry. Use ASCII only."
        )
    if host not in LOOPBACK and not token and not insecure:
        raise SettingsError(
            f"--host {host}: other machines could use the server. Give a --token, or --insecure."
        )
    folders = _named(models)
    from unmask.server.threads import load, wait_briefly

    wait_briefly()  # sets a variable that OpenMP reads once, when torch is imported
    for folder in folders.values():
        check_model(folder)
    runs = _run_folders(run or [])
    if texts > queue:
        raise SettingsError(
            f"--texts {texts}: more than the queue holds (--queue {queue}). Raise --queue."
        )
    require_optional("unmask serve")
    check_device(device)
    from unmask.server.app import create_app
    from unmask.server.guard import LOCAL_HOSTS
    from unmask.server.limits import Limits
    from unmask.server.server import make_server

    loaded = load(folders)
    for name, model in loaded.items():
        options.move_model(model, device)
        detail(f"model: {name}, {model.path}, {options.describe(model)}")
    limits = Limits(queue=queue, texts=texts)
    hosts = (*LOCAL_HOSTS, *(allow_host or []))
    app = create_app(loaded, limits=limits, token=token, hosts=hosts, runs=runs)
    notice(f"serving {', '.join(loaded)} at http://{host}:{port} (the page; /docs; Ctrl-C ends it)")
    make_server(app, host=host, port=port, limits=limits).run()


def _named(models: list[str]) -> dict[str, str]:
    """["a=path", "other"] -> {"a": "path", "other": "other"}"""
    folders: dict[str, str] = {}
    for argument in models:
        name, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():  # a path may contain "=", too
            name, path = Path(argument).name, argument
        if name in folders:
            raise SettingsError(f"two models named {name}. Rename one of them: NAME={path}.")
        folders[name] = path
    return folders


def _run_folders(paths: list[Path]) -> dict[str, Path]:
    """Return run folders by name; refuse missing ones and equal names."""
    runs: dict[str, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise SettingsError(f"--run {path}: no such folder. Check the path.")
        if path.resolve().name in runs:
            raise SettingsError(f"--run {path}: two runs have this name. Serve one of them.")
        runs[path.resolve().name] = path
    return runs
