"""Models, address and limits -> a running server: what `unmask serve` and `unmask.serve` call."""

import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.system.console import Console
from unmask.system.errors import SettingsError

if TYPE_CHECKING:
    from unmask.infer.model import Model

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run_server(
    models: "Mapping[str, str | Path | Model]",
    *,
    host: str,
    port: int,
    token: str | None = None,
    insecure: bool = False,
    allow_hosts: Iterable[str] = (),
    runs: Iterable[str | Path] = (),
    queue: int,
    texts: int,
    device: str = "auto",
    say: Callable[[str], None] = Console().say,
    detail: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve models until a signal stops the process; check all arguments before importing torch."""
    token = (token or "").strip() or None
    if token and not token.isascii():
        raise SettingsError("token: it has characters that HTTP headers cannot carry. Use ASCII.")
    if host not in LOOPBACK and not token and not insecure:
        raise SettingsError(
            f"host {host}: other machines could use the server. Give a token, or insecure."
        )
    from unmask.server.threads import load, wait_briefly

    wait_briefly()  # sets a variable that OpenMP reads once, when torch is imported
    from unmask.checkpoint.fetch import locate

    folders = {name: model for name, model in models.items() if isinstance(model, str | Path)}
    for folder in folders.values():
        locate(folder)
    run_folders = named_runs(runs)
    _refuse_busy_port(host, port)
    if texts > queue:
        raise SettingsError(f"texts {texts}: more than the queue holds ({queue}). Raise queue.")
    try:
        from unmask.server.app import create_app
        from unmask.server.server import make_server
    except ImportError as error:
        raise SettingsError(
            f"the server needs {error.name}, which is not installed. "
            "Run: pip install 'unmask[serve]'"
        ) from None
    from unmask.infer.loaded import move_model
    from unmask.server.guard import LOCAL_HOSTS
    from unmask.server.limits import Limits

    loaded = load(folders)
    for name, model in loaded.items():
        move_model(model, device)
        detail(f"model: {name}, {model!r}")
    served = {
        name: loaded[name] if isinstance(model, str | Path) else model
        for name, model in models.items()
    }
    limits = Limits(queue=queue, texts=texts)
    hosts = (*LOCAL_HOSTS, *allow_hosts)
    app = create_app(served, limits=limits, token=token, hosts=hosts, runs=run_folders)
    say(f"serving {', '.join(served)} at http://{host}:{port} (the page; /docs; Ctrl-C ends it)")
    make_server(app, host=host, port=port, limits=limits).run()


def _refuse_busy_port(host: str, port: int) -> None:
    """Raise an error if the server could not listen, before models are loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise SettingsError(
            f"host {host}, port {port}: cannot listen there ({error.strerror}). Choose another."
        ) from None


def named_models(models: Iterable[str | Path]) -> dict[str, str]:
    """["a=path", "other"] -> {"a": "path", "other": "other"}"""
    folders: dict[str, str] = {}
    for model in map(str, models):
        name, equals, path = model.partition("=")
        if not equals or Path(model).exists():  # a path may contain "=", too
            name, path = Path(model).name, model
        if name in folders:
            raise SettingsError(f"two models named {name}. Rename one of them: NAME={path}.")
        folders[name] = path
    return folders


def named_runs(paths: Iterable[str | Path]) -> dict[str, Path]:
    """Return run folders by name; refuse missing ones and equal names."""
    runs: dict[str, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise SettingsError(f"run {path}: no such folder. Check the path.")
        if path.resolve().name in runs:
            raise SettingsError(f"run {path}: two runs have this name. Serve one of them.")
        runs[path.resolve().name] = path
    return runs
